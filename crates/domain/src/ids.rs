//! Typed identifiers: a prefix that names the kind, then a UUIDv7, which sorts by creation time.
//! Ids are generated elsewhere (time and randomness are parameters); this module only parses and
//! formats them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;
use uuid::Uuid;

/// The text is not `<prefix>_` followed by 32 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{text}` is not an id of this kind: it looks like `{prefix}_` and 32 hexadecimal digits")]
pub struct InvalidId {
    pub text: String,
    pub prefix: &'static str,
}

macro_rules! typed_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "_{}"), self.0.as_simple())
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .filter(|digits| digits.len() == 32)
                    .and_then(|digits| Uuid::try_parse(digits).ok())
                    .map(Self)
                    .ok_or_else(|| InvalidId { text: text.to_owned(), prefix: $prefix })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
                text.parse().map_err(de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some(concat!("^", $prefix, "_[0-9a-f]{32}$")))
                    .description(Some(concat!("An id that begins with `", $prefix, "_`")))
                    .examples([concat!($prefix, "_01930a5dac96774bbcceb302099a8057")])
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

typed_id!(/// A tenant.
    ProjectId, "prj");
typed_id!(/// One version of a workload.
    WorkloadId, "wkl");
typed_id!(/// One version of an instance profile.
    ProfileId, "prf");
typed_id!(/// A price row.
    PriceId, "prc");
typed_id!(/// An experiment.
    ExperimentId, "exp");
typed_id!(/// A run outside of SageMaker.
    RunId, "run");
typed_id!(/// A trial.
    TrialId, "trl");
typed_id!(/// A job: one thing that AWS runs for us. An attempt of a trial has the id of its job.
    JobId, "job");
typed_id!(/// A version of a model in SageMaker's Model Registry.
    ModelPackageId, "mpk");
typed_id!(/// A pipeline.
    PipelineId, "pip");
typed_id!(/// An endpoint.
    EndpointId, "end");
typed_id!(/// An API key (not its secret).
    ApiKeyId, "key");
typed_id!(/// A stored experiment template that CI may start.
    TemplateId, "tpl");
typed_id!(/// What CI has started for a commit.
    CiRunId, "cir");
typed_id!(/// Somebody who hears of events.
    WebhookEndpointId, "whe");
typed_id!(/// An event on its way to a webhook endpoint. Receivers know repeats by it.
    DeliveryId, "msg");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_of_another_kind_is_refused() {
        let uuid = Uuid::from_u128(7);
        let text = TrialId(uuid).to_string();
        assert_eq!(text, "trl_00000000000000000000000000000007");
        assert_eq!(text.parse::<TrialId>(), Ok(TrialId(uuid)));
        assert!(text.parse::<ExperimentId>().is_err());
        assert!("trl_7".parse::<TrialId>().is_err());
    }
}
