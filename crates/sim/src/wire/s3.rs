//! S3: a real S3 protocol server (`s3s`) over a folder, one subfolder per bucket.

use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

/// Credentials of the simulated account; S3 refuses any others, as it would a wrong key.
const ACCESS_KEY: &str = "simulated";

/// Serves until the listener fails.
pub(crate) async fn serve(listener: TcpListener, root: &Path) -> std::io::Result<()> {
    let files =
        FileSystem::new(root).map_err(|error| std::io::Error::other(format!("{error:?}")))?;
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, ACCESS_KEY));
    let service = builder.build();
    let server = Builder::new(TokioExecutor::new());
    loop {
        let (socket, _) = listener.accept().await?;
        let connection = server
            .serve_connection(TokioIo::new(socket), service.clone())
            .into_owned();
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an S3 connection ended");
            }
        });
    }
}
