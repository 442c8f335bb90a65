//! What an attempt adds to the job of its trial: its name, its marker and its tags; and the names of all kinds.

use std::collections::BTreeMap;

use bakeoff_domain::sagemaker::endpoint::{
    EndpointRequest, MARKER_TAG, ModelSource, TransformJobRequest,
};
use bakeoff_domain::sagemaker::job::Job;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::processing::ProcessingJobRequest;
use bakeoff_domain::sagemaker::request::{MARKER, TrainingJobRequest};
use bakeoff_domain::sagemaker::tuning::TuningJobRequest;
use bakeoff_domain::spec::labels::Labels;
use uuid::Uuid;

use super::request::TRIAL_VARIABLE;

/// What names an attempt.
#[derive(Debug, Clone, Copy)]
pub struct Names<'a> {
    pub job: &'a str,
    pub marker: &'a str,
    pub trial: &'a str,
    /// Of its experiment.
    pub labels: &'a Labels,
}

impl Names<'_> {
    /// The labels of its experiment as tags; our own tags have other names.
    fn label(self, tags: &mut BTreeMap<String, String>) {
        tags.extend(self.labels.clone());
    }

    fn mark(self, environment: &mut BTreeMap<String, String>, tags: &mut BTreeMap<String, String>) {
        for (name, value) in [(MARKER, self.marker), (TRIAL_VARIABLE, self.trial)] {
            environment.insert(name.to_owned(), value.to_owned());
        }
        self.label(tags);
        tags.insert("bakeoff:trial".to_owned(), self.trial.to_owned());
    }
}

fn training(template: &TrainingJobRequest, names: Names<'_>) -> TrainingJobRequest {
    let mut request = super::request::for_attempt(template, names.job, names.marker, names.trial);
    names.label(&mut request.tags);
    request
}

fn processing(template: &ProcessingJobRequest, names: Names<'_>) -> ProcessingJobRequest {
    let mut request = template.clone();
    names.job.clone_into(&mut request.job_name);
    names.mark(&mut request.environment, &mut request.tags);
    request
}

fn tuning(template: &TuningJobRequest, names: Names<'_>) -> TuningJobRequest {
    let mut request = template.clone();
    names.job.clone_into(&mut request.job_name);
    names.mark(
        &mut request.training.environment,
        &mut request.training.tags,
    );
    // Trials of other tuning jobs must not be found by them.
    if let Some(checkpoint) = &mut request.training.checkpoint {
        checkpoint.s3_uri = format!(
            "{}/{}",
            checkpoint.s3_uri.trim_end_matches('/'),
            names.trial
        );
    }
    request
}

fn transform(template: &TransformJobRequest, names: Names<'_>) -> TransformJobRequest {
    let mut request = template.clone();
    names.job.clone_into(&mut request.job_name);
    names.mark(&mut request.environment, &mut request.tags);
    request
}

/// Its marker is a tag of the endpoint, since only a container has an environment.
fn endpoint(template: &EndpointRequest, names: Names<'_>) -> EndpointRequest {
    let mut request = template.clone();
    names.job.clone_into(&mut request.job_name);
    let mut environment = BTreeMap::new();
    names.mark(&mut environment, &mut request.tags);
    request
        .tags
        .insert(MARKER_TAG.to_owned(), names.marker.to_owned());
    if let ModelSource::Container(container) = &mut request.model.source {
        container.environment.extend(environment);
    }
    request
}

/// The job of an attempt.
pub fn job(template: &Job, names: Names<'_>) -> Job {
    match template {
        Job::Training(template) => Job::Training(Box::new(training(template, names))),
        Job::Processing(template) => Job::Processing(Box::new(processing(template, names))),
        Job::Tuning(template) => Job::Tuning(Box::new(tuning(template, names))),
        Job::Transform(template) => Job::Transform(Box::new(transform(template, names))),
        Job::Endpoint(template) => Job::Endpoint(Box::new(endpoint(template, names))),
    }
}

/// `bakeoff-<installation>-<attempt>`: 8 + 8 + 1 + 32 of SageMaker's 63 characters. A tuning job has only 32:
/// `b<installation>-<attempt>`, in 36 digits.
pub fn job_name(kind: JobKind, installation: &str, attempt: Uuid) -> String {
    match kind {
        JobKind::Tuning => {
            let prefix = fragment(kind, installation);
            format!("{prefix}{:0>25}", in_36_digits(attempt.as_u128()))
        }
        JobKind::Training | JobKind::Processing | JobKind::Transform | JobKind::Endpoint => {
            let prefix = fragment(kind, installation);
            format!("{prefix}{}", attempt.as_simple())
        }
    }
}

/// What the names of an installation's jobs begin with.
pub fn fragment(kind: JobKind, installation: &str) -> String {
    match kind {
        JobKind::Tuning => {
            // The same for the same installation; another one of the account has another, but for one in 60
            // million, and the marker tells them apart.
            let number = installation.bytes().fold(7_u128, |sum, byte| {
                sum.wrapping_mul(1_000_003).wrapping_add(u128::from(byte))
            });
            format!("b{:0>5}-", in_36_digits(number % 36_u128.pow(5)))
        }
        JobKind::Training | JobKind::Processing | JobKind::Transform | JobKind::Endpoint => {
            format!("bakeoff-{installation}-")
        }
    }
}

fn in_36_digits(mut number: u128) -> String {
    let mut digits = Vec::new();
    while number > 0 {
        let digit = u32::try_from(number % 36).unwrap_or(0);
        digits.extend(char::from_digit(digit, 36));
        number /= 36;
    }
    digits.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_of_all_kinds_fit_and_begin_with_their_fragment() {
        for kind in JobKind::ALL {
            for attempt in [Uuid::nil(), Uuid::max()] {
                let name = job_name(*kind, "1a2b3c4d", attempt);
                let most = if *kind == JobKind::Tuning { 32 } else { 59 };
                assert!(name.len() <= most, "{name}");
                assert!(name.starts_with(&fragment(*kind, "1a2b3c4d")), "{name}");
            }
        }
        let other = fragment(JobKind::Tuning, "1a2b3c4e");
        assert_ne!(other, fragment(JobKind::Tuning, "1a2b3c4d"));
        let one = job_name(JobKind::Tuning, "x", Uuid::from_u128(36));
        assert!(one.ends_with("0000010"), "{one}");
    }
}
