//! Listens to the database's notifications: wakes the scheduler, and tells event streams to read
//! again. A lost notification loses nothing, since every waiter also polls on a timer.

use std::time::Duration;

use bakeoff_domain::ids::{ExperimentId, ProjectId};
use sqlx::postgres::PgListener;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::replica::event_board::Topic;
use bakeoff_process::clock::real_sleep;

/// What `/readyz` and `/metrics` call it.
const NAME: &str = "listener";
const RECONNECT_AFTER: Duration = Duration::from_millis(500);

pub(super) async fn run(app: App, stop: CancellationToken) {
    loop {
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = listen(&app) => ended,
        };
        if let Err(error) = ended {
            app.place.tasks.failed(NAME);
            tracing::debug!(%error, "listener connection lost");
        }
        // A poll finds anything missed meanwhile.
        app.wake_schedulers();
        app.events.wake_all();
        real_sleep(RECONNECT_AFTER).await;
    }
}

async fn listen(app: &App) -> Result<(), sqlx::Error> {
    let mut listener = PgListener::connect_with(app.store.pool()).await?;
    listener
        .listen_all(["bakeoff_wake", "bakeoff_events"])
        .await?;
    app.place.tasks.succeeded(NAME);
    while let Some(notification) = listener.try_recv().await? {
        match notification.channel() {
            "bakeoff_wake" => app.wake_schedulers(),
            _ => match ids(notification.payload()) {
                Some((project, experiment)) => {
                    app.events.wake(Topic::Project(project));
                    app.events.wake(Topic::Experiment(experiment));
                }
                None => app.events.wake_all(),
            },
        }
    }
    Ok(())
}

/// Whose event it is: `<project>/<experiment>`.
fn ids(payload: &str) -> Option<(ProjectId, ExperimentId)> {
    let (project, experiment) = payload.split_once('/')?;
    Some((
        ProjectId(project.parse().ok()?),
        ExperimentId(experiment.parse().ok()?),
    ))
}
