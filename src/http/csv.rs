//! The comparison as CSV: one flat row a trial, units in the column names, the columns that people read first in front.

use bakeoff_domain::attempt::TrialState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::price::PriceStatus;
use bakeoff_domain::spec::PurchaseOption;
use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::view::ComparisonRow;

#[derive(Serialize)]
struct Record<'a> {
    candidate: &'a str,
    instance_type: &'a str,
    instance_count: u32,
    purchase_option: PurchaseOption,
    state: TrialState,
    tokens_per_second: Option<f64>,
    tokens_per_second_half_width: Option<f64>,
    gpu_utilization_percent: Option<f64>,
    train_loss: Option<f64>,
    usd_per_million_tokens: Option<Usd>,
    training_seconds: u64,
    billable_seconds: u64,
    cost_usd: Usd,
    cost_estimated: bool,
    metrics_cost_usd: Usd,
    usd_per_hour: Option<Usd>,
    price_source: Option<&'a str>,
    price_status: Option<PriceStatus>,
    price_effective_from: Option<DateTime<Utc>>,
    global_batch: u64,
    comparable: bool,
    progress: Option<f64>,
    attempts: u32,
    interruptions: u32,
    secondary_status: Option<&'a str>,
    reason: Option<&'a str>,
    trial_id: String,
}

fn record(row: &ComparisonRow) -> Record<'_> {
    let speed = row.tokens_per_second.as_ref();
    Record {
        candidate: &row.candidate,
        instance_type: &row.instance_type,
        instance_count: row.instance_count,
        purchase_option: row.purchase_option,
        state: row.state,
        tokens_per_second: speed.map(|steady| steady.mean),
        tokens_per_second_half_width: speed.map(|steady| steady.half_width),
        gpu_utilization_percent: row.gpu_utilization_percent,
        train_loss: row.train_loss,
        usd_per_million_tokens: row.usd_per_million_tokens,
        training_seconds: row.training_seconds,
        billable_seconds: row.billable_seconds,
        cost_usd: row.cost_usd,
        cost_estimated: row.cost_estimated,
        metrics_cost_usd: row.metrics_cost_usd,
        usd_per_hour: row.usd_per_hour,
        price_source: row.price_source.as_deref(),
        price_status: row.price_status,
        price_effective_from: row.price_effective_from,
        global_batch: row.global_batch,
        comparable: row.comparable,
        progress: row.progress,
        attempts: row.attempts,
        interruptions: row.interruptions,
        secondary_status: row.secondary_status.as_deref(),
        reason: row.reason.as_deref(),
        trial_id: row.trial_id.to_string(),
    }
}

/// The table with its header line.
pub(super) fn table(rows: &[ComparisonRow]) -> Option<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    rows.iter().try_for_each(|row| writer.serialize(record(row))).ok()?;
    String::from_utf8(writer.into_inner().ok()?).ok()
}
