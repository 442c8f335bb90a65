//! What the service has booked for a job, from the entries of its ledger.

use chrono::{DateTime, Utc};
use serde_json::Value;

/// What the service has recorded for one attempt.
#[derive(Default)]
pub(in crate::storm) struct Booked {
    pub(super) experiment: usize,
    /// Cost of its job and pool, millionths of a dollar.
    pub(super) usd: i64,
    /// The most that its job, pool and volumes may cost, as it was reserved, millionths of a dollar.
    pub(super) reserved: i64,
    /// Cost of reading its metrics, millionths of a dollar.
    pub(super) metrics_usd: i64,
    /// When it ended; none of one that was made for a job which the database knew nothing of.
    pub(super) ended_at: Option<DateTime<Utc>>,
    /// When it was declared to have no job, or no longer to have one.
    pub(super) given_up_at: Option<DateTime<Utc>>,
    /// Some of it is an estimate.
    pub(super) is_estimated: bool,
    /// Its ledger entries, for diagnosis.
    pub(super) entries: Vec<String>,
}

impl Booked {
    /// Of a job that belongs to none of the experiments submitted.
    pub(in crate::storm) fn of_step() -> Self {
        Self {
            experiment: usize::MAX,
            ..Self::default()
        }
    }

    pub(super) fn is_of_step(&self) -> bool {
        self.experiment == usize::MAX
    }

    /// Adds an entry that was reserved or paid.
    pub(in crate::storm) fn add(&mut self, entry: &Value) {
        let usd = micro(entry["usd"].as_f64().unwrap_or(f64::NAN));
        if entry["kind"] == "reserved" && entry["component"] != "cloudwatch" {
            self.reserved += usd;
        }
        if entry["kind"] != "settled" && entry["kind"] != "adjusted" {
            return;
        }
        self.entries.push(format!(
            "{} {}",
            text(&entry["recorded_at"]),
            entry_in_words(entry)
        ));
        match entry["component"].as_str() {
            Some(
                "training" | "processing" | "tuning" | "transform" | "hosting" | "warm_pool"
                | "orphaned_job" | "storage",
            ) => {
                self.usd += usd;
                self.is_estimated |= entry["estimated"] == true;
            }
            Some("cloudwatch") => self.metrics_usd += usd,
            _ => {}
        }
    }
}

fn entry_in_words(entry: &Value) -> String {
    let of = |key: &str| {
        entry[key]
            .as_str()
            .map_or_else(|| entry[key].to_string(), str::to_owned)
    };
    [
        "kind",
        "component",
        "usd",
        "quantity",
        "estimated",
        "used_from",
        "used_until",
    ]
    .map(of)
    .join(" ")
}

pub(super) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[expect(clippy::cast_possible_truncation, reason = "dollars of a storm")]
pub(in crate::storm) fn micro(usd: f64) -> i64 {
    (usd * 1e6).round() as i64
}
