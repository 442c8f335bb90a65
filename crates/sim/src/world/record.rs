//! The region's own record of what ran, what it was billed and which calls were made: what the product
//! is judged against.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::account::billing::Span;
use crate::account::quotas::Calls;
use crate::jobs::job::Job;
use crate::world::World;

impl World {
    /// The region's own record: one entry per job, billed by its own arithmetic, and the calls by
    /// operation.
    pub(crate) fn record(&self, now: DateTime<Utc>) -> Value {
        let jobs: Vec<Value> = self
            .jobs
            .iter()
            .map(|job| self.record_of(job, now))
            .chain(
                self.processing
                    .iter()
                    .map(|job| job.record(&self.rates, now)),
            )
            .chain(self.tunings.iter().map(|job| job.record(&self.rates, now)))
            .chain(
                self.transforms
                    .iter()
                    .map(|job| job.record(&self.rates, now)),
            )
            .chain(self.endpoints.record(&self.rates, now))
            .collect();
        let each = |figure: fn(&Calls) -> u64| -> BTreeMap<&String, u64> {
            self.calls
                .iter()
                .map(|(operation, calls)| (operation, figure(calls)))
                .collect()
        };
        let most = self
            .calls
            .get("ListTrainingJobs")
            .map_or(0, |calls| calls.most_in_a_second);
        json!({
            "now": now,
            "jobs": jobs,
            "calls": each(|calls| calls.count),
            "throttled": each(|calls| calls.throttled),
            "list_per_second_max": most,
            "faults": self.done,
            "model_packages": self.model_packages.record(),
            "models_and_configs": self.endpoints.parts(),
            "schedules": self.schedules.record(),
            "subscriptions": self.subscriptions,
        })
    }

    fn record_of(&self, job: &Job, now: DateTime<Utc>) -> Value {
        let billable = job.billable_seconds(now);
        let pool: Vec<Span> = job.retained(now).into_iter().collect();
        let bill = |spans: &[Span], percent: i64| -> Option<i64> {
            let groups = [(job.instance, job.count)]
                .into_iter()
                .chain(job.helpers.iter().copied());
            groups
                .map(|(kind, count)| {
                    self.rates
                        .bill(&kind.instance_type, i64::from(count), spans, percent)
                })
                .sum()
        };
        json!({
            "kind": "training",
            "name": job.name,
            "account": job.account,
            "attempt": job.request["Environment"]["BAKEOFF_ATTEMPT_ID"],
            "instance_type": job.instance.instance_type,
            "instance_count": job.count,
            "spot": job.is_spot,
            "status": job.status(now),
            "secondary_status": job.secondary_status(now),
            "training_seconds": job.timeline.training_seconds(now),
            "billable_seconds": billable,
            "micro_usd": bill(&job.timeline.billed_spans(now), if job.is_spot { 100 - job.saving_percent } else { 100 }),
            "storage_micro_usd": job.volumes(&job.timeline.billed_spans(now)),
            "trial": job.tags.get("bakeoff:trial"),
            "created_at": job.created_at,
            "stop_asked_at": job.stop_asked_at,
            "ended_at": job.timeline.end().filter(|end| *end <= now),
            "idle_pool": job.has_idle_pool(now),
            "pool_reused_by": job.pool_end.as_ref().and_then(|end| end.reused_by.as_ref()),
            "pool_ran_out": job.pool_end.is_none() && job.pool_span().is_some_and(|(_, end)| end <= now),
            "pool_listed": job.pool_listed,
            "retained_seconds": job.retained_seconds(now),
            "pool_micro_usd": bill(&pool, 100),
            "pool_storage_micro_usd": job.volumes(&pool),
            "metrics_requested": self.metrics_requested.get(&job.name).copied().unwrap_or(0),
            "metrics_unserved": self.metrics_unserved.get(&job.name).copied().unwrap_or(0),
        })
    }
}
