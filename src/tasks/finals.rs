//! The last values that SageMaker keeps of a job's own metrics: the least that is known of it, where nothing else was read.

use bakeoff_domain::job::ObservedJob;
use bakeoff_domain::metric::{Source, Subject};
use bakeoff_domain::samples::Point;
use chrono::{DateTime, Utc};

use crate::app::App;
use crate::store::StoreError;
use crate::store::series::{Named, Samples};
use crate::store::trials::Claimed;

/// Writes them; again changes nothing.
pub(super) async fn keep(app: &App, trial: &Claimed, job: &ObservedJob, now: DateTime<Utc>) -> Result<(), StoreError> {
    if job.final_metrics.is_empty() {
        return Ok(());
    }
    let defined = trial.plan.request.as_ref().map(|request| request.metrics.as_slice()).unwrap_or_default();
    let mut samples = Samples::default();
    for (place, last) in job.final_metrics.iter().enumerate() {
        let metric = defined.iter().find(|metric| metric.name == last.name);
        samples.named.push(Named {
            subject: Subject::Trial(trial.id),
            name: last.name.clone(),
            metric: metric.and_then(|metric| metric.meaning.standard()),
        });
        samples.points.push(Point { name: place, step: None, at: last.at, value: last.value });
    }
    app.store.append(Source::Final, &samples, now).await.map(drop)
}
