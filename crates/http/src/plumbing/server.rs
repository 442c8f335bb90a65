//! The server's accept loop, with a limit on everything a client can be slow at: the number of
//! connections, and the time for the head of a request, for the next piece of its body, for
//! accepting the response, and between two requests. A connection over the limit waits in the
//! kernel's queue until another one ends.

use std::future::Future;
use std::io::{Error, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_http::timeout::TimeoutBody;

use crate::plumbing::problem::Problem;
use bakeoff_process::clock::real_sleep;
use bakeoff_store::Unfinished;

/// Maximum size of a request's head, and of the part of its body buffered at once.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Pause after an accept error that does not concern one connection, such as no free file
/// descriptor.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Time until a response must begin; a long poll extends it by its own wait.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
const WAIT_SECONDS_MAX: u64 = 60;
const CONNECTIONS_MAX: usize = 8192;

/// Limits for clients.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of open connections; further ones wait.
    pub connections: usize,
    /// Time for a whole request head, from its first byte, or from the connection for the first
    /// one.
    pub head: Duration,
    /// Time for the next piece of a body, and for accepting the next piece of a response.
    pub stall: Duration,
    /// Time between two requests.
    pub idle: Duration,
}

impl Limits {
    /// Raises the limit of open files to the system's maximum, and uses half of them for
    /// connections.
    pub fn of_process() -> Self {
        let mut files = getrlimit(Resource::Nofile);
        let raised = Rlimit {
            current: files.maximum,
            maximum: files.maximum,
        };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            files = raised;
        }
        let files = files
            .current
            .and_then(|files| usize::try_from(files).ok())
            .unwrap_or(usize::MAX);
        Self {
            connections: (files / 2).clamp(1, CONNECTIONS_MAX),
            head: Duration::from_secs(10),
            stall: Duration::from_secs(15),
            idle: Duration::from_secs(75),
        }
    }
}

/// Serves until `stop`; then finishes the requests in progress.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let open = TaskTracker::new();
    loop {
        let (stream, place) = tokio::select! {
            () = stop.cancelled() => break,
            next = next(&listener, &places) => next,
        };
        let (router, stop) = (router.clone(), stop.clone());
        open.spawn(async move {
            connection(stream, router, limits, stop).await;
            drop(place);
        });
    }
    drop(listener);
    open.close();
    open.wait().await;
}

async fn next(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // The semaphore is never closed.
    let place = Arc::clone(places).acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::error!(%error, "accepting a connection failed; retrying");
                real_sleep(ACCEPT_AGAIN_AFTER).await;
            }
        }
    }
}

fn is_of_one_connection(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
    )
}

async fn connection(stream: TcpStream, router: Router, limits: Limits, stop: CancellationToken) {
    let is_busy = Arc::new(AtomicBool::new(false));
    let head = Some(deadline(limits.head));
    let socket = Socket {
        stream,
        is_busy: Arc::clone(&is_busy),
        limits,
        head,
        writing: None,
    };
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        is_busy.store(true, Ordering::Relaxed);
        let busy = Busy(Arc::clone(&is_busy));
        let answer = router.call(request.map(|body| TimeoutBody::new(limits.stall, body)));
        async move {
            answer
                .await
                .map(|answer| answer.map(|body| Answer { body, _busy: busy }))
        }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.idle)
        .max_buf_size(BUFFER_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(socket), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended early");
    }
}

type Deadline = Pin<Box<dyn Future<Output = ()> + Send>>;

fn deadline(after: Duration) -> Deadline {
    Box::pin(real_sleep(after))
}

/// A connection that limits how slow its client may be. hyper's own limit for a head runs from the
/// previous request, so it serves as the limit for idle connections.
struct Socket {
    stream: TcpStream,
    /// Whether a request is being read or answered.
    is_busy: Arc<AtomicBool>,
    limits: Limits,
    /// Deadline for the rest of a head, once it has begun.
    head: Option<Deadline>,
    /// Deadline for the client to accept part of the response.
    writing: Option<Deadline>,
}

impl Socket {
    fn in_time<T>(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<Result<T, Error>>,
    ) -> Poll<Result<T, Error>> {
        if wrote.is_ready() {
            self.writing = None;
            return wrote;
        }
        let stall = self.limits.stall;
        ready!(
            self.writing
                .get_or_insert_with(|| deadline(stall))
                .as_mut()
                .poll(cx)
        );
        Poll::Ready(Err(ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.is_busy.load(Ordering::Relaxed) {
            self.head = None;
            return polled;
        }
        if buf.filled().len() > before && self.head.is_none() {
            self.head = Some(deadline(self.limits.head));
        }
        match &mut self.head {
            Some(head) if polled.is_pending() => {
                ready!(head.as_mut().poll(cx));
                Poll::Ready(Err(ErrorKind::TimedOut.into()))
            }
            _ => polled,
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<Result<usize, Error>> {
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.in_time(cx, wrote)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.in_time(cx, wrote)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Marks the connection as busy until a response has been sent completely.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

struct Answer {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        hyper::body::Body::is_end_stream(&self.body)
    }

    fn size_hint(&self) -> SizeHint {
        hyper::body::Body::size_hint(&self.body)
    }
}

/// Ensures that a response begins within a minute plus the wait of a long poll; how long a stream
/// then lasts is up to the stream.
pub(crate) async fn answer_in_time(request: Request, next: Next) -> Response {
    let asked = request
        .uri()
        .query()
        .into_iter()
        .flat_map(|query| query.split('&'))
        .find_map(|part| part.strip_prefix("wait_seconds="));
    let wait = asked
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0)
        .min(WAIT_SECONDS_MAX);
    let within = ANSWER_WITHIN + Duration::from_secs(wait);
    let mut answer = std::pin::pin!(next.run(request));
    // Dropped before the answer is: when the client disconnects or the time is over, the running
    // statement is given up with it.
    let unfinished = Unfinished::default();
    tokio::select! {
        answer = &mut answer => {
            unfinished.finished();
            answer
        }
        () = real_sleep(within) => {
            tracing::warn!(within_seconds = within.as_secs(), "request timed out");
            Problem::unavailable("the request took too long; ask for less, or try again").into_response()
        }
    }
}
