//! Runs heavy work — lint, plan, large bodies, tables — off the async workers that answer requests,
//! on at most all cores but one, so that a health check is always answered.

use std::sync::LazyLock;
use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tokio::sync::Semaphore;

use crate::plumbing::problem::Problem;

/// Maximum number of requests waiting for a core.
const WAITING_MAX: usize = 64;
/// How long a request waits for a core.
const PATIENCE: Duration = Duration::from_secs(15);
/// Smaller bodies are parsed in place.
pub(crate) const BODY_ASIDE_FROM: usize = 16 * 1024;

static CORES: LazyLock<Cores> = LazyLock::new(|| {
    let all = std::thread::available_parallelism().map_or(1, usize::from);
    Cores {
        free: Semaphore::new((all - 1).max(1)),
        places: Semaphore::new(WAITING_MAX),
        patience: PATIENCE,
    }
});

/// Runs the work off the async workers, or answers that the service is busy.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    CORES.run(work).await
}

/// A JSON reply whose size depends on the stored data.
pub(crate) async fn json<T: Serialize + Send + 'static>(value: T) -> Result<Response, Problem> {
    let body = aside(move || serde_json::to_vec(&value))
        .await?
        .map_err(|error| {
            tracing::error!(%error, "serializing a reply failed");
            Problem::internal()
        })?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

struct Cores {
    free: Semaphore,
    /// Places in the queue.
    places: Semaphore,
    patience: Duration,
}

impl Cores {
    async fn run<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let busy = || Problem::unavailable("the service is busy computing; try again in a moment");
        let place = self.places.try_acquire().map_err(|_| busy())?;
        let core = tokio::time::timeout(self.patience, self.free.acquire()).await;
        let core = core.map_err(|_| busy())?.map_err(|_| busy())?;
        drop(place);
        let request = tracing::Span::current();
        // The core stays taken until the work is done, even if the client disconnects meanwhile.
        let done = tokio::task::spawn_blocking(move || {
            let _core = core;
            request.in_scope(work)
        });
        match done.await {
            Ok(done) => Ok(done),
            // Resume the panic here, so that the layer that catches panics answers.
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Problem::unavailable("the service is stopping")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn cores(free: usize, places: usize, patience: Duration) -> &'static Cores {
        Box::leak(Box::new(Cores {
            free: Semaphore::new(free),
            places: Semaphore::new(places),
            patience,
        }))
    }

    #[tokio::test]
    async fn whoever_finds_no_core_is_sent_away_after_a_while() {
        let cores = cores(1, 2, Duration::from_millis(20));
        let (release, wait) = channel::<()>();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let first = tokio::spawn(cores.run(move || {
            begun.send(()).unwrap();
            wait.recv()
        }));
        has_begun.await.unwrap();
        let refused = cores.run(|| 1).await.unwrap_err();
        assert_eq!((refused.status, refused.retryable), (503, true));
        // A disconnecting client does not free the core: the work continues.
        first.abort();
        assert!(first.await.is_err() && cores.run(|| 1).await.is_err());
        release.send(()).unwrap();
        while cores.run(|| 1).await.is_err() {}
    }

    #[tokio::test]
    async fn the_queue_is_bounded() {
        let cores = cores(0, 1, Duration::from_mins(10));
        let waiting = cores.run(|| 1);
        tokio::pin!(waiting);
        assert!(futures::poll!(waiting.as_mut()).is_pending());
        assert_eq!(cores.run(|| 1).await.unwrap_err().status, 503, "at once");
    }
}
