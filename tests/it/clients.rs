//! Independent clients, unmodified: boto3 against the region, pandas and DuckDB against the
//! service. The programs are in `tests/clients`, and say what they check.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use sqlx::PgPool;

use crate::support::{Region, TestApp, spec};

/// Runs a program with the Python packages of `cargo xtask test`; `None` when there are none.
pub(crate) fn python(program: &str, arguments: &[&str]) -> Option<String> {
    let Ok(modules) = std::env::var("BAKEOFF_TEST_PYTHONPATH") else {
        println!(
            "skipped: BAKEOFF_TEST_PYTHONPATH names no packages (`cargo xtask test` installs them)"
        );
        return None;
    };
    let output = Command::new("python3")
        .arg(Path::new("tests/clients").join(program))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env("PYTHONPATH", modules)
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    Some(text)
}

#[test]
fn boto3_meets_the_real_services_rules() {
    let region = Region::start(&[], crate::support::usual());
    let Some(text) = python("region.py", &[&region.url, &region.s3_url]) else {
        return;
    };
    assert!(text.contains("boto3: 20 checks held"), "{text}");
}

#[sqlx::test(migrations = false)]
async fn pandas_and_duckdb_read_the_same_totals_from_every_format(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&spec()).await;
    test.run_to_end(&experiment, 12).await;
    let new = json!({"name": "elsewhere", "hardware": "8x H100", "accelerator_count": 8, "usd_per_hour": 7.92});
    let (_, run) = test.post("/v1/runs", &new).await;
    let run = run["id"].as_str().unwrap().to_owned();
    let line = |i: i32| {
        json!({"timestamp": 1_795_046_400 + i * 7, "step": i, "loss": 3.0 + f64::from(i).sin()})
            .to_string()
    };
    let lines = (0..1000).map(line).collect::<Vec<_>>().join("\n");
    let request = test
        .request(
            reqwest::Method::POST,
            &format!("/v1/runs/{run}/metrics"),
            &test.admin,
        )
        .body(lines);
    assert_eq!(test.send(request).await.1["stored"], 1000);
    let arguments = [test.url.clone(), test.admin.clone(), experiment, run];
    let checked = tokio::task::spawn_blocking(move || {
        python(
            "tables.py",
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    });
    let Some(text) = checked.await.unwrap() else {
        return;
    };
    assert!(text.contains("tables: 39 checks held"), "{text}");
}
