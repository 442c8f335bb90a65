//! Measures the CPU cost of planning twenty candidates: linter, fit, advice, requests, forecasts,
//! i.e. all the computation behind `POST /v1/plans`.

use bakeoff_domain::money::price;
use bakeoff_domain::money::worst_case::Tariff;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint;
use bakeoff_planner::lint::Kind;
use bakeoff_planner::plan::{PlanContext, choose_starts, plan};
use bakeoff_planner::predict::forecast;
use bakeoff_planner::preview::preview;
use bakeoff_planner::rules;
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::table::{median, quantile};

const CANDIDATES: usize = 20;
const ROUNDS: usize = 200;
const TYPES: [&str; 10] = [
    "ml.p4d.24xlarge",
    "ml.p4de.24xlarge",
    "ml.p5.48xlarge",
    "ml.p5en.48xlarge",
    "ml.g5.12xlarge",
    "ml.g5.48xlarge",
    "ml.g6e.12xlarge",
    "ml.g6e.48xlarge",
    "ml.p3dn.24xlarge",
    "ml.g6.48xlarge",
];

/// CPU time of this thread, in milliseconds.
fn cpu_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split(' ')
        .next()
        .and_then(|first| first.parse::<f64>().ok());
    nanoseconds.unwrap_or(f64::NAN) / 1e6
}

fn spec() -> Option<ExperimentSpec> {
    let mut document = rules::example(Kind::Experiment);
    let candidates = (0..CANDIDATES).map(|index| {
        let micro = 1 + index % 2;
        json!({
            "name": format!("c{index}"), "instance_type": TYPES[index % TYPES.len()], "purchase_options": ["on_demand", "spot"],
            "profile": {"micro_batch_per_gpu": micro, "gradient_accumulation_steps": 8 / micro, "zero_stage": 3,
                "activation_checkpointing": true},
        })
    });
    document["candidates"] = candidates.collect();
    document["max_wait_seconds"] = json!(180_000);
    document["checkpoint"] = json!({"s3_uri": "s3://b/c"});
    serde_json::from_value(document).ok()
}

/// The figures of one run.
pub(crate) fn measure() -> Value {
    let Some(spec) = spec() else {
        return json!("the example experiment cannot be read");
    };
    let (prices, rates) = price::shipped();
    let now: DateTime<Utc> = DateTime::from_timestamp(1_795_000_000, 0).unwrap_or_default();
    let in_force = price::all_in_force(&prices, &spec.region, now);
    let mut taken = Vec::with_capacity(ROUNDS);
    let mut candidates = 0;
    for _ in 0..ROUNDS {
        let before = cpu_ms();
        let calibration = &forecast::calibrated(&spec);
        let known = lint::LintContext {
            prices: &in_force,
            calibration,
        };
        let findings = lint::lint_with(&spec, known);
        let context = PlanContext {
            tariff: Tariff {
                prices: &prices,
                rates: &rates,
            },
            calibration,
            metrics_interval: TimeDelta::minutes(5),
            now,
        };
        let mut plans = plan(&spec, &findings, context);
        choose_starts(&spec, &mut plans, now);
        let shown = preview(&spec, findings, plans, calibration, "00000000");
        candidates = shown.candidates.len();
        taken.push(cpu_ms() - before);
    }
    json!({
        "candidates": spec.candidates.len(),
        "rows": candidates,
        "rounds": ROUNDS,
        "cpu_ms_median": median(&taken),
        "cpu_ms_p99": quantile(&taken, 0.99),
    })
}
