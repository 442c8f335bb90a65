//! The server's loop over connections, with a limit on everything that a client can be slow at: so
//! many connections, so long for the head of a request, for the next piece of its body, for taking
//! the answer, and between two requests. A connection for which there is no place waits in the
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

use super::problem::Problem;
use crate::clock::real_sleep;
use crate::store::Unfinished;

/// The largest head of a request, and what is kept of its body at once.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// After an error that is not of one connection: no file is left, for example.
const ACCEPT_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Until an answer begins; a long poll may wait beyond it.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);
const WAIT_SECONDS_MAX: u64 = 60;
const CONNECTIONS_MAX: usize = 8192;

/// What a client may take.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// At once; further ones wait.
    pub connections: usize,
    /// From the first byte of a request's head, or from the connection, to its last.
    pub head: Duration,
    /// For the next piece of a body, and for taking the next piece of an answer.
    pub stall: Duration,
    /// Between two requests.
    pub idle: Duration,
}

impl Limits {
    /// Half of the files that the process may have open are for connections; as many as the system
    /// allows are asked for.
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

/// Answers until it is to stop; then until the requests in hand are answered.
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
                tracing::error!(%error, "no connection can be accepted");
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
        tracing::debug!(%error, "a connection ended early");
    }
}

type Deadline = Pin<Box<dyn Future<Output = ()> + Send>>;

fn deadline(after: Duration) -> Deadline {
    Box::pin(real_sleep(after))
}

/// A connection whose client may be slow only for so long. hyper's own limit for a head runs from
/// the request before, so it is the one for idle connections.
struct Socket {
    stream: TcpStream,
    /// A request is being read or answered.
    is_busy: Arc<AtomicBool>,
    limits: Limits,
    /// For the rest of a head, once it has begun.
    head: Option<Deadline>,
    /// For the client to take something of the answer.
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

/// Until an answer has been handed over whole.
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

/// An answer begins within a minute, and what a long poll asked for; how long a stream then goes on
/// is its own business.
pub(super) async fn answer_in_time(request: Request, next: Next) -> Response {
    let asked = request
        .uri()
        .query()
        .unwrap_or_default()
        .split('&')
        .find_map(|part| part.strip_prefix("wait_seconds="));
    let wait = asked
        .and_then(|text| text.parse::<u64>().ok())
        .unwrap_or(0)
        .min(WAIT_SECONDS_MAX);
    let within = ANSWER_WITHIN + Duration::from_secs(wait);
    let mut answer = std::pin::pin!(next.run(request));
    // Dropped before the answer is: a statement under way is given up with it, when the client goes
    // away or the time is over.
    let unfinished = Unfinished::default();
    tokio::select! {
        answer = &mut answer => {
            unfinished.finished();
            answer
        }
        () = real_sleep(within) => {
            tracing::warn!(within_seconds = within.as_secs(), "a request took too long and was given up");
            Problem::unavailable("the answer took too long; ask for less, or try again").into_response()
        }
    }
}
