//! Calls to EventBridge Scheduler, paced and counted: the ends at AWS of jobs that SageMaker itself never ends.

use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::schedule::ScheduledEnd;
use chrono::{DateTime, Utc};

use super::jobs::account_of;
use super::{Aws, Operation};
use bakeoff_process::crash;

impl Aws {
    /// Has AWS end a job that is about to be created, and returns when. A schedule that an earlier try has made stays
    /// as it is: it may have been moved since.
    pub async fn schedule_end(&self, end: &ScheduledEnd) -> Result<DateTime<Utc>, AwsError> {
        match self.create_schedule(end).await {
            Ok(()) => Ok(end.at),
            Err(AwsError::AlreadyExists(_)) => match self.scheduled_end(end).await {
                Ok(at) => Ok(at),
                // It was deleted in between: the same create is sent again later.
                Err(AwsError::NotFound(why)) => Err(AwsError::Throttled(why)),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    /// Has AWS end a job at another moment than before; not found if there is no schedule, or it was carried out.
    pub async fn move_end(&self, end: &ScheduledEnd) -> Result<(), AwsError> {
        self.wait_for(Operation::UpdateSchedule).await?;
        crash::point("before_move_schedule");
        let reply = self.ports.schedules.update(end).await;
        crash::point("after_move_schedule");
        let reply = self.count(Operation::UpdateSchedule, reply, 0);
        self.in_our_account(reply).await
    }

    /// When the schedule of a job ends it; not found if there is none.
    pub async fn scheduled_end(&self, end: &ScheduledEnd) -> Result<DateTime<Utc>, AwsError> {
        self.wait_for(Operation::GetSchedule).await?;
        let reply = self.ports.schedules.get(&end.job_name).await;
        match self.count(Operation::GetSchedule, reply, 0)? {
            Some(found) if found.is_of_same_job(end) => Ok(found.at),
            Some(_) | None => Err(AwsError::Rejected {
                code: "ConflictException".to_owned(),
                message: format!(
                    "a schedule named {} exists that Bakeoff did not create",
                    end.job_name
                ),
            }),
        }
    }

    /// Deletes the schedule of a job that is over. Safe to repeat.
    pub async fn unschedule_end(&self, job_name: &str) -> Result<(), AwsError> {
        self.wait_for(Operation::DeleteSchedule).await?;
        crash::point("before_delete_schedule");
        let reply = self.ports.schedules.delete(job_name).await;
        crash::point("after_delete_schedule");
        match self.count(Operation::DeleteSchedule, reply, 0) {
            Err(AwsError::NotFound(_)) => Ok(()),
            reply => reply,
        }
    }

    /// Has AWS end a job of which there is no schedule.
    pub async fn create_schedule(&self, end: &ScheduledEnd) -> Result<(), AwsError> {
        self.wait_for(Operation::CreateSchedule).await?;
        crash::point("before_schedule");
        let reply = self.ports.schedules.create(end).await;
        crash::point("after_schedule");
        let reply = self.count(Operation::CreateSchedule, reply, 0);
        self.in_our_account(reply).await
    }

    /// A schedule in another account ends nothing of ours, and a refusal there says nothing about ours.
    async fn in_our_account(&self, reply: Result<String, AwsError>) -> Result<(), AwsError> {
        match reply {
            Ok(arn) => match account_of(&arn).filter(|account| !self.may_own(account)) {
                None => Ok(()),
                Some(account) => {
                    self.doubt_account();
                    let what = format!("the schedule is in account {account}, not in ours");
                    Err(AwsError::Unknown(what))
                }
            },
            Err(refusal @ (AwsError::Denied(_) | AwsError::Rejected { .. })) => {
                self.doubt_account();
                match self.confirm_account().await {
                    Ok(()) => Err(refusal),
                    Err(error) => Err(AwsError::Unknown(error.to_string())),
                }
            }
            Err(error) => Err(error),
        }
    }
}
