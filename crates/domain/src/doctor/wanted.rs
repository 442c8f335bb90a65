//! What an installation is to be used for: the region, role, image, buckets and types that the checks
//! look at.

use std::collections::BTreeSet;

use crate::sagemaker::image::ImageUri;
use crate::spec::{ExperimentSpec, PurchaseOption, WorkloadSpec};

/// What jobs do with a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum S3Use {
    /// Read: channels, a script's sources.
    Input,
    /// Write.
    Output,
    /// Write, and be restored from.
    Checkpoints,
}

/// A prefix in S3, and what jobs do there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct S3Place {
    /// `s3://bucket/prefix`.
    pub uri: String,
    pub usage: S3Use,
}

impl S3Place {
    pub fn bucket(&self) -> &str {
        let rest = self.uri.strip_prefix("s3://").unwrap_or(&self.uri);
        rest.split('/').next().unwrap_or_default()
    }

    /// As it is written, which is how SageMaker lists it.
    pub fn prefix(&self) -> &str {
        let rest = self.uri.strip_prefix("s3://").unwrap_or(&self.uri);
        rest.split_once('/').map_or("", |(_, prefix)| prefix)
    }

    /// The ARN of an object below it.
    pub fn object_arn(&self, partition: &str) -> String {
        let folder = match self.prefix().trim_end_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        format!("arn:{partition}:s3:::{}/{folder}bakeoff", self.bucket())
    }
}

/// The prefixes that an experiment's jobs use, each once.
fn places(spec: &ExperimentSpec, workload: Option<&WorkloadSpec>) -> Vec<S3Place> {
    let mut places = BTreeSet::new();
    let mut place = |uri: &str, usage| {
        places.insert(S3Place {
            uri: uri.to_owned(),
            usage,
        });
    };
    if let Some(workload) = workload {
        place(&workload.output_s3_uri, S3Use::Output);
        for channel in &workload.channels {
            place(&channel.s3_uri, S3Use::Input);
        }
        if let Some(script) = &workload.script {
            place(&script.source_s3_uri, S3Use::Input);
        }
    }
    if let Some(checkpoint) = &spec.checkpoint {
        place(&checkpoint.s3_uri, S3Use::Checkpoints);
    }
    places.into_iter().collect()
}

/// What the checks look at. What is not named is not looked at, and the check says so.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckScope {
    pub region: String,
    pub role_arn: Option<String>,
    pub image: Option<ImageUri>,
    pub places: Vec<S3Place>,
    /// The types that are to be used; every type where empty.
    pub instance_types: Vec<String>,
    /// Instances of a type that are to be used at once; 1 when absent.
    pub instance_count: Option<u32>,
    /// On demand when empty.
    pub purchase_options: Vec<PurchaseOption>,
    /// SageMaker's MaxRuntimeInSeconds; an hour when absent.
    pub max_runtime_seconds: Option<u32>,
}

impl CheckScope {
    /// What an experiment uses. Its workload may have been named instead of given.
    pub fn of(spec: &ExperimentSpec, workload: Option<&WorkloadSpec>) -> Self {
        let counts = spec.candidates.iter().map(|one| one.instance_count);
        let options: BTreeSet<PurchaseOption> = spec
            .candidates
            .iter()
            .flat_map(|candidate| candidate.purchase_options.clone())
            .collect();
        let types: BTreeSet<String> = spec
            .candidates
            .iter()
            .map(|candidate| candidate.instance_type.clone())
            .collect();
        Self {
            region: spec.region.clone(),
            role_arn: workload.map(|workload| workload.role_arn.clone()),
            image: workload.map(|workload| ImageUri(workload.image.clone())),
            places: places(spec, workload),
            instance_types: types.into_iter().collect(),
            instance_count: counts.max(),
            purchase_options: options.into_iter().collect(),
            max_runtime_seconds: Some(spec.max_runtime_seconds),
        }
    }

    /// Whether there is nothing to look at but the account itself.
    pub fn names_nothing(&self) -> bool {
        let named = self.role_arn.is_some() || self.image.is_some();
        !named && self.places.is_empty() && self.instance_types.is_empty()
    }

    /// The buckets, each once, with all places in it.
    pub fn buckets(&self) -> Vec<(&str, Vec<&S3Place>)> {
        let mut all: Vec<(&str, Vec<&S3Place>)> = Vec::new();
        for place in &self.places {
            let bucket = place.bucket();
            let known = all.iter_mut().find(|(name, _)| *name == bucket);
            match known {
                Some((_, places)) => places.push(place),
                None => all.push((bucket, vec![place])),
            }
        }
        all
    }
}
