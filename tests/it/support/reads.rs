//! What tests read, in its own type: a field that is renamed does not compile here, where a key of
//! a JSON value would read null. The names on the wire are held by `cargo xtask openapi --check`.

use std::collections::BTreeMap;

use bakeoff_api::comparison::Comparison;
use bakeoff_api::decisions::RecommendationView;
use bakeoff_api::events::EventView;
use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::money::{LedgerEntryView, Spending};
use bakeoff_api::page::Page;
use bakeoff_api::plans::PreviewView;
use bakeoff_api::trials::TrialView;
use bakeoff_http::Problem;
use bakeoff_planner::preview::Preview;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;

use crate::support::TestApp;

/// A job in the region's own record; money in millionths of a dollar. What may be null must still
/// be there.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RegionJob {
    pub(crate) name: String,
    /// The attempt and the trial that it names, if it is ours.
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) attempt: Option<String>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) trial: Option<String>,
    pub(crate) spot: bool,
    pub(crate) status: String,
    pub(crate) training_seconds: u64,
    pub(crate) billable_seconds: u64,
    pub(crate) micro_usd: i64,
    pub(crate) storage_micro_usd: i64,
    pub(crate) pool_micro_usd: i64,
    pub(crate) pool_storage_micro_usd: i64,
    pub(crate) created_at: DateTime<Utc>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) stop_asked_at: Option<DateTime<Utc>>,
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) ended_at: Option<DateTime<Utc>>,
    pub(crate) idle_pool: bool,
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) pool_reused_by: Option<String>,
    pub(crate) pool_ran_out: bool,
    #[serde(deserialize_with = "Option::deserialize")]
    pub(crate) retained_seconds: Option<u64>,
    pub(crate) metrics_requested: i64,
}

impl RegionJob {
    pub(crate) fn usd(&self) -> f64 {
        dollars(self.micro_usd)
    }

    /// With its volumes, and the pool that it left.
    pub(crate) fn usd_of_all(&self) -> f64 {
        let pool = self.pool_micro_usd + self.pool_storage_micro_usd;
        dollars(self.micro_usd + self.storage_micro_usd + pool)
    }

    pub(crate) fn is_running(&self) -> bool {
        self.status == "InProgress"
    }
}

/// The answer to a refused request.
pub(crate) fn problem(body: Value) -> Problem {
    serde_json::from_value(body).expect("a problem")
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn dollars(micro_usd: i64) -> f64 {
    micro_usd as f64 / 1e6
}

impl TestApp {
    pub(crate) async fn experiment(&self, id: &str) -> ExperimentView {
        self.read(&format!("/v1/experiments/{id}")).await
    }

    /// What an experiment would do.
    pub(crate) async fn plan(&self, spec: &Value) -> Preview {
        let (status, body) = self.post("/v1/plans", spec).await;
        assert!(status.is_success(), "{body:#}");
        serde_json::from_value(body).unwrap()
    }

    /// The same with the requests, which the planner keeps in another form.
    pub(crate) async fn plan_view(&self, spec: &Value) -> PreviewView {
        let (status, body) = self.post("/v1/plans", spec).await;
        assert!(status.is_success(), "{body:#}");
        serde_json::from_value(body).unwrap()
    }

    /// All trials of an experiment, in the order of its plan.
    pub(crate) async fn trials(&self, id: &str) -> Vec<TrialView> {
        self.page(&format!("/v1/experiments/{id}/trials")).await
    }

    pub(crate) async fn comparison(&self, id: &str) -> Comparison {
        self.read(&format!("/v1/experiments/{id}/comparison")).await
    }

    pub(crate) async fn recommendation(&self, id: &str) -> RecommendationView {
        self.read(&format!("/v1/experiments/{id}/recommendation"))
            .await
    }

    /// The first five hundred events of an experiment.
    pub(crate) async fn events(&self, id: &str) -> Vec<EventView> {
        self.page(&format!("/v1/experiments/{id}/events?page_size=500"))
            .await
    }

    /// The first five hundred entries of an experiment.
    pub(crate) async fn ledger(&self, id: &str) -> Vec<LedgerEntryView> {
        self.page(&format!("/v1/experiments/{id}/ledger?page_size=500"))
            .await
    }

    pub(crate) async fn spending(&self, query: &str) -> Spending {
        self.read(&format!("/v1/spending?{query}")).await
    }

    /// All jobs that the region has ever had, somebody else's included.
    pub(crate) async fn jobs(&self) -> Vec<RegionJob> {
        let mut record = self.record().await;
        serde_json::from_value(record["jobs"].take()).expect("jobs")
    }

    pub(crate) async fn in_progress(&self) -> usize {
        let jobs = self.jobs().await;
        jobs.iter().filter(|job| job.is_running()).count()
    }

    /// How often the region was called for an operation.
    pub(crate) async fn calls(&self, operation: &str) -> u64 {
        let mut record = self.record().await;
        let calls: BTreeMap<String, u64> =
            serde_json::from_value(record["calls"].take()).expect("calls by operation");
        calls.get(operation).copied().unwrap_or(0)
    }

    pub(crate) async fn page<T>(&self, path: &str) -> Vec<T>
    where
        T: serde::de::DeserializeOwned + utoipa::ToSchema,
    {
        self.read::<Page<T>>(path).await.items
    }
}
