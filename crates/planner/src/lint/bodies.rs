//! Bodies of requests: the linter's rules on a training job and on what is made of training jobs, on
//! processing, transform and endpoint bodies, with the values that are known.

mod tuning;

use bakeoff_domain::finding::Finding;
use serde_json::Value;

use super::api::{self, Call};
use super::pointers::moved;
use super::variables::{self, Plain};
use super::{algorithms, job, libraries, shape, training};
use crate::rules::found;

/// A body, and how it is written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Body<'a> {
    pub(super) call: Call,
    pub(super) value: &'a Value,
    /// Whether whoever sends it gives it its name, as pipelines do and CloudFormation may.
    pub(super) is_named_later: bool,
    /// Whether numbers may be written as text, as in CloudFormation.
    pub(super) is_loose: bool,
}

/// Checks a body as far as its values are known.
pub(super) fn check(body: Body<'_>, findings: &mut Vec<Finding>) {
    let plain = variables::split(body.value);
    let mut own = Vec::new();
    shape::check_loosely(body.call, &plain.value, body.is_loose, &mut own);
    match body.call {
        Call::TrainingJob => training_job(&plain.value, &mut own),
        Call::TuningJob => tuning::check(&plain.value, &mut own),
        Call::ProcessingJob | Call::TransformJob | Call::EndpointConfig | Call::Model => {}
    }
    security_groups(&plain.value, &mut own);
    plain.leave_out(&mut own);
    if body.is_named_later || plain.is_of_pipeline {
        let place = format!("/{}", body.call.name_member());
        own.retain(|finding| finding.rule != "member-missing" || finding.pointer != place);
    }
    findings.extend(own);
    findings.extend(not_known(&plain));
}

/// The request within what DescribeTrainingJob answers; `None` of anything else.
pub(super) fn request_of_description(body: &Value) -> Option<Value> {
    let mut own = body.as_object().cloned()?;
    own.remove("TrainingJobArn")?;
    let known = api::members(Call::TrainingJob, "");
    own.retain(|name, _| known.contains(&name.as_str()));
    Some(own.into())
}

/// Says how many values are not known here.
fn not_known(plain: &Plain) -> Option<Finding> {
    let (first, rest) = plain.variables.split_first()?;
    let comes = match rest.len() {
        0 => "comes".to_owned(),
        more => format!("and {more} more come"),
    };
    let finding = found("value-not-known", first);
    Some(finding.says(format!("{first} {comes} from outside of the document")))
}

/// The rules on a training job.
fn training_job(body: &Value, findings: &mut Vec<Finding>) {
    training::preferences(body, findings);
    training::groups(body, findings);
    for key in ["TrainingJobName", "job_name", "job_name_prefix"] {
        let name = body.get(key).and_then(Value::as_str).unwrap_or("");
        training::fixed_name(name, &format!("/{key}"), findings);
    }
    file_systems(body, findings);
    algorithms::check(body, findings);
    let plan = "/ResourceConfig/TrainingPlanArn";
    if body.pointer(plan).is_some() {
        findings.push(found("training-plan-price", plan));
    }
    let job = job::of_body(body);
    training::check(&job, findings);
    libraries::check(&job, findings);
}

/// File systems are reached from within a VPC only.
fn file_systems(body: &Value, findings: &mut Vec<Finding>) {
    if body.get("VpcConfig").is_some() {
        return;
    }
    let channels = body.get("InputDataConfig").and_then(Value::as_array);
    for (index, channel) in channels.into_iter().flatten().enumerate() {
        if let Some(source) = channel.pointer("/DataSource/FileSystemDataSource") {
            let id = source.get("FileSystemId").and_then(Value::as_str);
            let at = format!("/InputDataConfig/{index}/DataSource/FileSystemDataSource");
            findings.push(found("file-system-needs-vpc", at).says(format!(
                "{} is read, but there is no VpcConfig: the job could not reach it",
                id.unwrap_or("a file system")
            )));
        }
    }
}

/// Subnets and security groups that were given in each other's place: the API's model lets both pass.
pub(super) fn security_groups(body: &Value, findings: &mut Vec<Finding>) {
    for place in [
        "/VpcConfig",
        "/NetworkConfig/VpcConfig",
        "/TrainingJobDefinition/VpcConfig",
    ] {
        for (member, own, other) in [
            ("SecurityGroupIds", "sg-", "subnet-"),
            ("Subnets", "subnet-", "sg-"),
        ] {
            let at = format!("{place}/{member}");
            let ids = body.pointer(&at).and_then(Value::as_array);
            for (index, id) in ids.into_iter().flatten().enumerate() {
                let Some(id) = id.as_str().filter(|id| id.starts_with(other)) else {
                    continue;
                };
                findings.push(
                    found("vpc", format!("{at}/{index}"))
                        .says(format!("{member} has {id}; its ids begin with {own}"))
                        .fix(format!("put ids that begin with {own} there")),
                );
            }
        }
    }
}

/// Checks a part of a body as one of its own, whose pointers are then below `at`.
fn within(at: &str, findings: &mut Vec<Finding>, part: impl FnOnce(&mut Vec<Finding>)) {
    let mut own = Vec::new();
    part(&mut own);
    for finding in &mut own {
        moved(finding, "", at);
    }
    findings.extend(own);
}
