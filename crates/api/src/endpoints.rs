//! API views of endpoints, and what is asked for.

use std::collections::BTreeMap;

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::endpoint::scheduled_end::{NO_ROLE, REFUSED, SCHEDULED, no_end};
use bakeoff_domain::ids::{EndpointId, ExperimentId, ModelPackageId, TrialId};
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::cost;
use bakeoff_domain::sagemaker::observed::seconds_between;
use bakeoff_domain::spec::pipeline::endpoint::{EndpointSpec, ServedSpec};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use bakeoff_store::endpoints::{Endpoint, Revision};

/// An endpoint that is to serve a model
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CreateEndpoint {
    /// One line of at most 100 characters, for people; SageMaker's name is derived from its id.
    pub name: String,
    /// Such as `us-east-1`.
    pub region: String,
    /// Who is to be asked about it; the API key when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Hard cap on what it may cost, at least the most that its time to live can cost; that when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<Usd>,
    /// Its instances carry them as tags, at most 20.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    pub endpoint: EndpointSpec,
}

/// The endpoint that is being created.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CreatedEndpoint {
    pub id: EndpointId,
    pub name: String,
    pub state: EndpointState,
    pub budget_usd: Usd,
    /// What each day costs that the service is away, beyond the reservation; absent where AWS itself ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent_service_usd_per_day: Option<Usd>,
    /// What ends it when the service is away.
    pub end_at_aws: String,
}

/// A change of an endpoint that serves: one of `time_to_live_hours`, `model` and `revision`
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ChangeEndpoint {
    /// Serve so many hours in all, at most 720, and not fewer than before. What that may cost is reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_to_live_hours: Option<u32>,
    /// With `time_to_live_hours`: the endpoint's budget from now on. When absent, a budget that was stated before stays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_usd: Option<Usd>,
    /// Serve another model. The old one serves until the new one does, and is put back if the smoke test fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ServedSpec>,
    /// Serve an earlier revision again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u32>,
}

/// An endpoint, what it serves and what it costs.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Endpoint)]
pub struct EndpointView {
    pub id: EndpointId,
    pub name: String,
    pub owner: String,
    pub region: String,
    pub state: EndpointState,
    /// Why it is in this state, or what it waits for.
    pub reason: Option<String>,
    /// EndpointName, once it is being created.
    pub endpoint_name: Option<String>,
    /// EndpointStatus, as last seen.
    pub status: Option<String>,
    pub instance_type: String,
    pub instance_count: u32,
    /// What serves, if it is a version of the registry.
    pub model_package_id: Option<ModelPackageId>,
    pub revision: u32,
    /// What is to serve; the same unless it is being updated.
    pub wanted_revision: u32,
    /// Oldest first; of one endpoint only.
    pub revisions: Vec<RevisionView>,
    pub time_to_live_hours: f64,
    pub in_service_at: Option<DateTime<Utc>>,
    /// When it is deleted, unless it is extended.
    pub expires_at: Option<DateTime<Utc>>,
    /// When AWS itself deletes it, also if the service is away; as AWS has confirmed it.
    pub scheduled_end_at: Option<DateTime<Utc>>,
    /// What ends it when the service is away, and what is wrong with that; absent once it is over.
    pub end_at_aws: Option<String>,
    /// What each day costs that the service is away, beyond the reservation; absent where AWS itself ends it.
    pub absent_service_usd_per_day: Option<Usd>,
    /// Of one instance.
    pub usd_per_hour: Option<Usd>,
    /// What it has cost since it was created, estimated at that price; what is settled once it is deleted.
    pub cost_usd: Usd,
    pub budget_usd: Usd,
    pub settled_usd: Usd,
    pub reserved_usd: Usd,
    /// Where its ledger and its events are.
    pub experiment_id: ExperimentId,
    pub trial_id: TrialId,
    pub created_at: DateTime<Utc>,
    pub ended_at: Option<DateTime<Utc>>,
}

/// A model that an endpoint serves, or was to serve.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = EndpointRevision)]
pub struct RevisionView {
    pub revision: u32,
    pub model_package_id: Option<ModelPackageId>,
    pub created_at: DateTime<Utc>,
    /// What became of it, once that is known.
    pub outcome: Option<String>,
}

impl From<Revision> for RevisionView {
    fn from(revision: Revision) -> Self {
        Self {
            revision: revision.revision,
            model_package_id: revision.model_package_id,
            created_at: revision.created_at,
            outcome: revision.outcome,
        }
    }
}

impl EndpointView {
    /// `has_role`: whether the service has a role that schedules may use.
    pub fn of(
        endpoint: Endpoint,
        revisions: Vec<Revision>,
        has_role: bool,
        now: DateTime<Utc>,
    ) -> Self {
        let cost_usd = cost_so_far(&endpoint, now);
        let end = EndAtAws::of(&endpoint, has_role);
        let spec = endpoint.spec;
        Self {
            id: endpoint.id,
            name: endpoint.name,
            owner: endpoint.owner,
            region: endpoint.region,
            state: endpoint.state,
            reason: endpoint.reason,
            endpoint_name: endpoint.job_name,
            status: endpoint.status,
            instance_type: spec.instance_type,
            instance_count: spec.instance_count,
            model_package_id: endpoint.model_package_id,
            revision: endpoint.revision,
            wanted_revision: endpoint.wanted_revision,
            revisions: revisions.into_iter().map(Into::into).collect(),
            time_to_live_hours: endpoint.time_to_live.as_seconds_f64() / 3600.0,
            in_service_at: endpoint.in_service_at,
            expires_at: endpoint.expires_at,
            scheduled_end_at: endpoint.end.at.filter(|_| !endpoint.state.is_over()),
            end_at_aws: end.says,
            absent_service_usd_per_day: end.usd_per_day,
            usd_per_hour: endpoint.usd_per_hour,
            cost_usd,
            budget_usd: endpoint.budget_usd,
            settled_usd: endpoint.settled_usd,
            reserved_usd: endpoint.reserved_usd,
            experiment_id: endpoint.experiment_id,
            trial_id: endpoint.trial_id,
            created_at: endpoint.created_at,
            ended_at: endpoint.ended_at,
        }
    }
}

/// What ends an endpoint when the service is away.
struct EndAtAws {
    says: Option<String>,
    usd_per_day: Option<Usd>,
}

impl EndAtAws {
    fn of(endpoint: &Endpoint, has_role: bool) -> Self {
        let end = &endpoint.end;
        if endpoint.state.is_over() {
            return Self {
                says: None,
                usd_per_day: None,
            };
        }
        let trouble = || {
            let why = end.trouble.clone()?;
            Some(if end.is_refused {
                format!("{why}. {REFUSED}")
            } else {
                why
            })
        };
        match end.at {
            Some(at) => Self {
                says: trouble().or_else(|| Some(deleted_by_aws(Some(at)))),
                usd_per_day: None,
            },
            None if has_role && !end.is_refused => Self {
                says: trouble().or_else(|| Some(deleted_by_aws(None))),
                usd_per_day: None,
            },
            None => {
                let usd = endpoint.usd_per_day_absent();
                let says = || Some(format!("{}. {NO_ROLE}", no_end(usd?)));
                Self {
                    says: trouble().or_else(says),
                    usd_per_day: usd,
                }
            }
        }
    }
}

/// That AWS itself ends it; without a moment, before its creation has told one.
pub fn deleted_by_aws(at: Option<DateTime<Utc>>) -> String {
    match at {
        Some(at) => format!("AWS itself deletes it at {}", at.to_rfc3339()),
        None => SCHEDULED.to_owned(),
    }
}

fn cost_so_far(endpoint: &Endpoint, now: DateTime<Utc>) -> Usd {
    let running = endpoint.started_at.zip(endpoint.usd_per_hour);
    match running.filter(|_| !endpoint.trial_state.is_terminal()) {
        Some((start, rate)) => {
            let seconds = seconds_between(start, now);
            cost::training(seconds, endpoint.spec.instance_count, rate)
        }
        None => endpoint.settled_usd,
    }
}
