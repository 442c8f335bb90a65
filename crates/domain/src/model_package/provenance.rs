//! Where a registered model comes from, as metadata of its package: experiment, trial, job, versions of data
//! and code, what was measured, and the recommendation that it rests on.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use crate::embedded::pattern;
use crate::ids::{ExperimentId, JobId, ModelPackageId, TrialId};
use crate::model_package::MARKER;

/// Keys of ours begin with it.
pub const PREFIX: &str = "bakeoff:";
/// Characters of a value (CustomerMetadataValue).
pub const VALUE_MAX: usize = 256;

named! {
    /// What trained a model
    TrainedBy {
        /// On all tokens.
        FullRun = "full_run",
        /// On a trial's tokens.
        Trial = "trial",
        /// For a tuning job, whose best trial it is.
        TunedTrial = "tuned_trial",
    }
}

/// What is known of a model's origin; a text that is not known is empty.
#[derive(Debug, Clone, PartialEq)]
pub struct Origin<'a> {
    pub id: ModelPackageId,
    pub experiment: ExperimentId,
    pub trial: TrialId,
    pub job: JobId,
    /// TrainingJobName of what left the model.
    pub training_job: &'a str,
    pub by: TrainedBy,
    pub workload: &'a str,
    pub candidate: &'a str,
    pub instance_type: &'a str,
    pub purchase_option: &'a str,
    pub data_version: &'a str,
    pub code_version: &'a str,
    pub training_image: &'a str,
    /// The experiment whose answer was bought, and the trial behind it, if it is a full run of one.
    pub bought: Option<(ExperimentId, TrialId)>,
    /// Tokens that it was to be trained on, where that was said.
    pub tokens: Option<u64>,
    /// SHA-256 of what the recommendation rests on: that which was bought, or else the experiment's own.
    pub evidence_sha256: Option<&'a str>,
    /// Figures by name.
    pub measured: Vec<(&'static str, f64)>,
}

impl Origin<'_> {
    /// As metadata; values that SageMaker does not take are written without what it does not take.
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let measured = self.measured.iter();
        let measured = measured.map(|(name, value)| (format!("{PREFIX}{name}"), value.to_string()));
        self.named()
            .into_iter()
            .chain(self.source())
            .map(|(name, value)| (name.to_owned(), value))
            .chain(measured)
            .map(|(name, value)| (name, taken(&value)))
            .filter(|(_, value)| !value.is_empty())
            .collect()
    }

    fn named(&self) -> [(&'static str, String); 14] {
        let tokens = self.tokens.map(|tokens| tokens.to_string());
        [
            (MARKER, self.id.to_string()),
            ("bakeoff:experiment", self.experiment.to_string()),
            ("bakeoff:trial", self.trial.to_string()),
            ("bakeoff:job", self.job.to_string()),
            ("bakeoff:training_job", self.training_job.to_owned()),
            ("bakeoff:kind", self.by.as_str().to_owned()),
            ("bakeoff:tokens", tokens.unwrap_or_default()),
            ("bakeoff:workload", self.workload.to_owned()),
            ("bakeoff:candidate", self.candidate.to_owned()),
            ("bakeoff:instance_type", self.instance_type.to_owned()),
            ("bakeoff:purchase_option", self.purchase_option.to_owned()),
            ("bakeoff:data_version", self.data_version.to_owned()),
            ("bakeoff:code_version", self.code_version.to_owned()),
            ("bakeoff:training_image", self.training_image.to_owned()),
        ]
    }

    /// What it rests on.
    fn source(&self) -> Vec<(&'static str, String)> {
        let mut source = Vec::new();
        if let Some((experiment, trial)) = self.bought {
            source.push(("bakeoff:source_experiment", experiment.to_string()));
            source.push(("bakeoff:source_trial", trial.to_string()));
        }
        if let Some(sha256) = self.evidence_sha256 {
            source.push(("bakeoff:evidence_sha256", sha256.to_owned()));
        }
        source
    }
}

/// A value with `_` in the place of what CustomerMetadataValue does not allow, cut to its length.
fn taken(value: &str) -> String {
    let allowed = |each: char| if is_allowed(each) { each } else { '_' };
    value.trim().chars().map(allowed).take(VALUE_MAX).collect()
}

/// Whether CustomerMetadataValue allows a character.
pub(super) fn is_allowed(each: char) -> bool {
    static ALLOWED: LazyLock<Regex> = LazyLock::new(|| pattern(r"[\p{L}\p{Z}\p{N}_.:/=+\-@]"));
    ALLOWED.is_match(each.encode_utf8(&mut [0; 4]))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn every_value_is_one_that_sagemaker_takes() {
        let long = "x".repeat(300);
        let origin = Origin {
            id: ModelPackageId(Uuid::nil()),
            experiment: ExperimentId(Uuid::nil()),
            trial: TrialId(Uuid::nil()),
            job: JobId(Uuid::nil()),
            training_job: "bakeoff-1",
            by: TrainedBy::Trial,
            workload: "legal (he)",
            candidate: "p5",
            instance_type: "ml.p5.48xlarge",
            purchase_option: "spot",
            data_version: "2026-10#7 हिं",
            code_version: &long,
            training_image: "",
            bought: None,
            tokens: None,
            evidence_sha256: None,
            measured: vec![("validation_loss", 2.113)],
        };
        let metadata = origin.metadata();
        assert_eq!(metadata["bakeoff:workload"], "legal _he_");
        assert_eq!(metadata["bakeoff:data_version"], "2026-10_7 ह__");
        assert_eq!(metadata["bakeoff:code_version"].len(), VALUE_MAX);
        assert_eq!(metadata["bakeoff:validation_loss"], "2.113");
        for unknown in ["bakeoff:training_image", "bakeoff:tokens"] {
            assert!(!metadata.contains_key(unknown), "{unknown}");
        }
        assert!(metadata[MARKER].starts_with("mpk_"));
    }
}
