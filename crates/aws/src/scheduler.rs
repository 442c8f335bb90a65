//! One-time schedules that end endpoints and batch transforms, on aws-sdk-scheduler: a universal target calls
//! SageMaker under a role of its own, and the schedule is deleted once it has.

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_scheduler::Client;
use aws_sdk_scheduler::error::BuildError;
use aws_sdk_scheduler::operation::create_schedule::CreateScheduleError;
use aws_sdk_scheduler::operation::delete_schedule::DeleteScheduleError;
use aws_sdk_scheduler::operation::get_schedule::GetScheduleOutput;
use aws_sdk_scheduler::operation::update_schedule::UpdateScheduleError;
use aws_sdk_scheduler::types::{
    ActionAfterCompletion, FlexibleTimeWindow, FlexibleTimeWindowMode, RetryPolicy, Target,
};
use bakeoff_domain::ports::Schedules;
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::schedule::{ScheduledAction, ScheduledEnd};
use chrono::NaiveDateTime;

use crate::error::classify;

/// An endpoint that is being created or updated cannot be deleted: it is tried for a day.
const MAX_AGE_SECONDS: i32 = 86_400;
const RETRIES_MAX: i32 = 185;
const TIMEZONE: &str = "UTC";
/// Characters of a client token.
const TOKEN_MAX: usize = 64;

/// EventBridge Scheduler in one region.
#[derive(Debug, Clone)]
pub struct Scheduler {
    client: Client,
}

impl Scheduler {
    pub(crate) fn new(config: &SdkConfig) -> Self {
        Self {
            client: Client::new(config),
        }
    }
}

#[async_trait]
impl Schedules for Scheduler {
    async fn create(&self, end: &ScheduledEnd) -> Result<String, AwsError> {
        let call = self
            .client
            .create_schedule()
            .name(&end.job_name)
            .schedule_expression(expression(end))
            .schedule_expression_timezone(TIMEZONE)
            .flexible_time_window(window().map_err(unbuilt)?)
            .action_after_completion(ActionAfterCompletion::Delete)
            .client_token(token(end))
            .target(target(end).map_err(unbuilt)?);
        match call.send().await {
            Ok(made) => Ok(made.schedule_arn().to_owned()),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(CreateScheduleError::is_conflict_exception) =>
            {
                Err(AwsError::AlreadyExists(end.job_name.clone()))
            }
            Err(error) => Err(classify(error)),
        }
    }

    async fn update(&self, end: &ScheduledEnd) -> Result<String, AwsError> {
        let call = self
            .client
            .update_schedule()
            .name(&end.job_name)
            .schedule_expression(expression(end))
            .schedule_expression_timezone(TIMEZONE)
            .flexible_time_window(window().map_err(unbuilt)?)
            .action_after_completion(ActionAfterCompletion::Delete)
            .client_token(token(end))
            .target(target(end).map_err(unbuilt)?);
        match call.send().await {
            Ok(made) => Ok(made.schedule_arn().to_owned()),
            // Another change of it is under way.
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(UpdateScheduleError::is_conflict_exception) =>
            {
                Err(AwsError::Throttled(classify(error).to_string()))
            }
            Err(error) => Err(classify(error)),
        }
    }

    async fn get(&self, job_name: &str) -> Result<Option<ScheduledEnd>, AwsError> {
        let found = self.client.get_schedule().name(job_name).send().await;
        Ok(read(&found.map_err(classify)?))
    }

    async fn delete(&self, job_name: &str) -> Result<(), AwsError> {
        let call = self.client.delete_schedule().name(job_name);
        match call.send().await {
            Ok(_) => Ok(()),
            Err(error)
                if error
                    .as_service_error()
                    .is_some_and(DeleteScheduleError::is_conflict_exception) =>
            {
                Err(AwsError::Throttled(classify(error).to_string()))
            }
            Err(error) => Err(classify(error)),
        }
    }
}

/// A part of a request that lacks a member; nothing was sent.
#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn unbuilt(error: BuildError) -> AwsError {
    AwsError::Unknown(format!("the request was not sent: {error}"))
}

fn expression(end: &ScheduledEnd) -> String {
    end.at.format("at(%Y-%m-%dT%H:%M:%S)").to_string()
}

fn window() -> Result<FlexibleTimeWindow, BuildError> {
    FlexibleTimeWindow::builder()
        .mode(FlexibleTimeWindowMode::Off)
        .build()
}

fn target(end: &ScheduledEnd) -> Result<Target, BuildError> {
    let input = serde_json::json!({ end.action.member(): end.job_name });
    let retries = RetryPolicy::builder()
        .maximum_event_age_in_seconds(MAX_AGE_SECONDS)
        .maximum_retry_attempts(RETRIES_MAX);
    Target::builder()
        .arn(end.action.target_arn(end.partition()))
        .role_arn(&end.role_arn)
        .input(input.to_string())
        .retry_policy(retries.build())
        .build()
}

/// The same for the same end of the same job: what makes its name unique, and the moment.
fn token(end: &ScheduledEnd) -> String {
    let at = format!("-{}", end.at.timestamp());
    let skipped = (end.job_name.len() + at.len()).saturating_sub(TOKEN_MAX);
    format!("{}{at}", end.job_name.get(skipped..).unwrap_or_default())
}

/// A schedule as AWS has it; nothing if it is not like ours.
fn read(found: &GetScheduleOutput) -> Option<ScheduledEnd> {
    let target = found.target()?;
    let action = ScheduledAction::of_target(target.arn())?;
    let input: serde_json::Value = serde_json::from_str(target.input()?).ok()?;
    let job_name = input.get(action.member())?.as_str()?.to_owned();
    let at = found.schedule_expression()?.strip_prefix("at(")?;
    let at = NaiveDateTime::parse_from_str(at.strip_suffix(')')?, "%Y-%m-%dT%H:%M:%S").ok()?;
    let is_utc = found
        .schedule_expression_timezone()
        .is_none_or(|zone| zone == TIMEZONE);
    is_utc.then(|| ScheduledEnd {
        action,
        job_name,
        at: at.and_utc(),
        role_arn: target.role_arn().to_owned(),
    })
}
