//! Versions of models in SageMaker's Model Registry (model packages): what is asked for, what is known of
//! one, and what is done next. Who calls AWS, and when, is the service's matter.

pub mod check;
pub mod decide;
pub mod provenance;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Metadata that says which of our rows a package belongs to.
pub const MARKER: &str = "bakeoff:model_package";

named! {
    /// Where a model package is on its way into the registry
    RegistryState {
        /// It is being created, or nobody knows yet whether it was.
        Registering = "registering",
        Registered = "registered",
        /// SageMaker refused it; the reason says why.
        Failed = "failed",
    }
}

named! {
    /// Whether a model package may be deployed (ModelApprovalStatus)
    Approval {
        Pending = "pending",
        Approved = "approved",
        Rejected = "rejected",
    }
}

/// CreateModelPackage, in our words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelPackageRequest {
    pub group: String,
    pub description: String,
    /// The image that serves the model.
    pub image: String,
    /// `model.tar.gz` as its training job left it.
    pub model_s3_uri: String,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    pub content_types: Vec<String>,
    pub response_types: Vec<String>,
    #[serde(default)]
    pub realtime_instance_types: Vec<String>,
    #[serde(default)]
    pub transform_instance_types: Vec<String>,
    /// CustomerMetadataProperties, with the marker.
    pub metadata: BTreeMap<String, String>,
    /// What was measured, as JSON (ModelMetrics.ModelQuality.Statistics); written before the package.
    pub statistics_s3_uri: String,
    pub statistics: String,
    pub approval: Approval,
    /// The same for every try, so that SageMaker counts them as one.
    pub client_token: String,
}

impl ModelPackageRequest {
    /// The fields, as the API names them, in which two people have asked for something else. What is known of
    /// the model's origin may have grown, each request has a marker of its own, and approval is another
    /// matter.
    pub fn differences(&self, other: &Self) -> Vec<&'static str> {
        let own = |request: &Self| -> BTreeMap<String, String> {
            let all = request.metadata.clone().into_iter();
            all.filter(|(name, _)| !name.starts_with(provenance::PREFIX))
                .collect()
        };
        let fields = [
            ("image", self.image != other.image),
            ("description", self.description != other.description),
            ("environment", self.environment != other.environment),
            ("content_types", self.content_types != other.content_types),
            (
                "response_types",
                self.response_types != other.response_types,
            ),
            (
                "realtime_instance_types",
                self.realtime_instance_types != other.realtime_instance_types,
            ),
            (
                "transform_instance_types",
                self.transform_instance_types != other.transform_instance_types,
            ),
            ("metadata", own(self) != own(other)),
        ];
        let differing = fields.into_iter().filter(|(_, differs)| *differs);
        differing.map(|(name, _)| name).collect()
    }
}

/// A package as SageMaker describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedPackage {
    pub arn: String,
    pub approval: Approval,
    pub metadata: BTreeMap<String, String>,
}

impl ObservedPackage {
    /// Whether it is the one with this marker.
    pub fn is_marked(&self, marker: &str) -> bool {
        self.metadata.get(MARKER).is_some_and(|own| own == marker)
    }
}

/// The version in a package's ARN, `…:model-package/<group>/<version>`.
pub fn version_of(arn: &str) -> Option<u32> {
    arn.rsplit_once('/')?.1.parse().ok()
}
