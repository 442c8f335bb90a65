//! A thousand random trials against the region's own bill, to the cent: spot and interrupted, warm,
//! failed, stopped, without capacity, cancelled.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, number, spec, spot_spec};

const EXPERIMENTS: u64 = 50;
const REPEATS: u64 = 20;

/// Numbers of a fixed seed (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % most
    }
}

fn random_spec(draw: &mut Draw) -> Value {
    let kind = draw.below(5);
    let mut random = if kind == 0 { spot_spec() } else { spec() };
    let candidates = random["candidates"].as_array_mut().unwrap();
    let keep = usize::try_from(draw.below(2)).unwrap() % candidates.len();
    *candidates = vec![candidates[keep].clone()];
    candidates[0]["repeats"] = json!(REPEATS);
    if kind == 0 {
        candidates[0]["purchase_options"] = json!(["spot"]);
        random["workload"]["trial_tokens"] = json!(2_000_000 + draw.below(10_000_000));
    } else {
        random["workload"]["trial_tokens"] = json!(10_000_000 + draw.below(60_000_000));
    }
    if kind == 1 {
        random["keep_alive_seconds"] = json!(600 + draw.below(3000));
    }
    if kind == 2 {
        // Some run into their limit.
        random["max_runtime_seconds"] = json!(900 + draw.below(1800));
    }
    if kind == 4 {
        // Without local NVMe: its volume is billed, and its warm pool's.
        let mut lora = spot_spec();
        std::mem::swap(
            &mut random["workload"]["model"],
            &mut lora["workload"]["model"],
        );
        random["workload"]["trial_tokens"] = json!(2_000_000 + draw.below(10_000_000));
        random["workload"]["precision"] = json!("fp16");
        random["max_runtime_seconds"] = json!(72_000);
        random["keep_alive_seconds"] = json!(600 + draw.below(3000));
        let profile = json!({"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 16, "zero_stage": 3,
                             "activation_checkpointing": true, "volume_size_gb": 200 + draw.below(800)});
        random["candidates"] = json!([{"name": "p3", "instance_type": "ml.p3.8xlarge", "repeats": REPEATS, "profile": profile}]);
    }
    random["budget_usd"] = json!(1_000_000);
    random
}

#[sqlx::test(migrations = false)]
async fn a_thousand_random_trials_cost_what_the_region_bills(pool: PgPool) {
    let faults = [
        "--no-capacity",
        "0.04",
        "--internal-error",
        "0.04",
        "--algorithm-error",
        "0.04",
    ];
    let test = TestApp::with_faults(
        pool.clone(),
        &[&faults[..], &["--quota", "500", "--pool-quota", "500"]].concat(),
    )
    .await;
    let mut draw = Draw(20_261_121);
    let mut living = Vec::new();
    for _ in 0..EXPERIMENTS {
        living.push(test.start(&random_spec(&mut draw)).await);
    }
    let trials: i64 = sqlx::query_scalar("SELECT count(*) FROM trials")
        .fetch_one(&pool)
        .await
        .unwrap();
    assert_eq!(u64::try_from(trials).unwrap(), EXPERIMENTS * REPEATS);
    for round in 0..400 {
        test.tick().await;
        if round % 4 == 3 && round < 24 {
            let victim = usize::try_from(draw.below(u64::try_from(living.len()).unwrap())).unwrap();
            test.post(
                &format!("/v1/experiments/{}/cancel", living[victim]),
                &json!({}),
            )
            .await;
        }
        let open: i64 =
            sqlx::query_scalar("SELECT count(*) FROM experiments WHERE ended_at IS NULL")
                .fetch_one(&pool)
                .await
                .unwrap();
        if open == 0 {
            break;
        }
        test.advance(TimeDelta::minutes(10)).await;
    }
    let states: Vec<(String, i64)> =
        sqlx::query_as("SELECT state, count(*) FROM trials GROUP BY state ORDER BY state")
            .fetch_all(&pool)
            .await
            .unwrap();
    let count = |state: &str| {
        states
            .iter()
            .find(|(name, _)| name == state)
            .map_or(0, |(_, count)| *count)
    };
    // Those whose machine was defective run once more.
    let again = number(&pool, "SELECT count(*) FROM trials WHERE is_automatic").await;
    assert_eq!(
        count("completed") + count("failed") + count("stopped"),
        1000 + again,
        "{states:?}"
    );
    assert!(
        count("completed") > 500 && count("failed") > 10 && count("stopped") > 50,
        "{states:?}"
    );

    let booked: Vec<(String, Decimal)> = sqlx::query_as(
        "SELECT j.job_name, sum(l.usd) FROM ledger l JOIN jobs j ON j.id = l.job_id
         WHERE l.kind = 'settled' AND l.component <> 'cloudwatch' GROUP BY j.job_name",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    let booked: BTreeMap<String, f64> = booked
        .into_iter()
        .map(|(name, usd)| (name, usd.to_f64().unwrap()))
        .collect();
    let jobs = test.jobs().await;
    let (mut billed_total, mut booked_total, mut kinds) = (0.0, 0.0, [0; 5]);
    for job in &jobs {
        let billed = job.usd_of_all();
        let ours = booked.get(&job.name).copied().unwrap_or(0.0);
        assert!(
            (billed - ours).abs() < 0.005,
            "billed {billed}, booked {ours}: {job:?}"
        );
        billed_total += billed;
        booked_total += ours;
        kinds[0] += i32::from(job.spot);
        kinds[1] += i32::from(job.pool_micro_usd > 0);
        kinds[2] += i32::from(job.status == "Failed");
        kinds[3] += i32::from(job.status == "Stopped");
        kinds[4] += i32::from(job.storage_micro_usd > 0);
    }
    assert!(
        (billed_total - booked_total).abs() < 0.005,
        "billed {billed_total}, booked {booked_total}"
    );
    assert!(
        kinds.iter().all(|count| *count > 20),
        "spot, warm, failed, stopped, with volumes: {kinds:?}"
    );
    println!(
        "{} jobs, ${billed_total:.2}; spot, warm, failed, stopped, with volumes: {kinds:?}",
        jobs.len()
    );
}
