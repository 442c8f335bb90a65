//! What is odd in metrics that were sent, by what is known of the run or the trial that they are of.

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::measure::metric::Subject;
use bakeoff_domain::measure::samples::{Batch, Note, figures};

use super::rows::{shape_of_plan, shape_of_run};
use bakeoff_store::{Store, StoreError};

/// Checks a batch against the plan, the machines and the model; nothing is said of what the project does not have.
pub async fn check(
    store: &Store,
    project: ProjectId,
    subject: Subject,
    batch: &Batch,
) -> Result<Vec<Note>, StoreError> {
    match subject {
        Subject::Run(id) => {
            let run = store.runs_by_id(project, &[id]).await?.pop();
            Ok(run.map_or_else(Vec::new, |run| {
                figures::check(batch, &shape_of_run(&run.spec))
            }))
        }
        Subject::Trial(id) => {
            let Some(trial) = store.trial(project, id).await? else {
                return Ok(Vec::new());
            };
            let experiment = store.experiment(project, trial.experiment_id).await?;
            Ok(experiment.map_or_else(Vec::new, |experiment| {
                let workload = experiment.resolved.workload();
                figures::check(batch, &shape_of_plan(&trial.plan, workload))
            }))
        }
    }
}
