//! Logs of trials, and why jobs failed: the service over HTTP, CloudWatch Logs of the region over the
//! wire.

use std::collections::BTreeMap;
use std::process::Command;

use bakeoff_api::comparison::Comparison;
use bakeoff_api::diagnosis::TrialDiagnosisView;
use bakeoff_api::logs::{LogLineView, LogPartView};
use bakeoff_api::trials::TrialView;
use bakeoff_domain::diagnosis::SeenIn;
use bakeoff_domain::ports::LogRequest;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_service::tasks;
use chrono::TimeDelta;
use futures::StreamExt;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::clients::foreign::python;
use crate::support::{TestApp, on_p5, problem, spec, spot_spec};

/// Line by line as the region has them, stream by stream, with no reader of ours in between.
async fn raw(test: &TestApp, job: &str) -> Vec<(i64, String, String)> {
    let logs = &test.ports.logs;
    let mut all = Vec::new();
    for stream in logs
        .streams(JobKind::Training, &format!("{job}/"), None)
        .await
        .unwrap()
        .items
    {
        let mut token = None;
        loop {
            let request = LogRequest {
                kind: JobKind::Training,
                stream: stream.clone(),
                since: None,
                until: None,
                from_start: true,
                limit: 7,
                token: token.clone(),
            };
            let page = logs.lines(&request).await.unwrap();
            let lines = page.lines.into_iter();
            all.extend(lines.map(|line| (line.at.timestamp_millis(), line.stream, line.message)));
            if page.forward == token {
                break;
            }
            token = page.forward;
        }
    }
    all.sort_by(|a, b| (a.0, &a.1).cmp(&(b.0, &b.1)));
    all
}

fn plain(lines: &[LogLineView]) -> Vec<(i64, String, String)> {
    let plain = |line: &LogLineView| {
        (
            line.at.timestamp_millis(),
            line.stream.clone(),
            line.message.clone(),
        )
    };
    lines.iter().map(plain).collect()
}

/// Every part from a path on.
async fn whole(test: &TestApp, path: &str) -> Vec<LogLineView> {
    let (mut lines, mut token): (Vec<LogLineView>, String) = (Vec::new(), String::new());
    loop {
        let part: LogPartView = test.read(&format!("{path}{token}")).await;
        lines.extend(part.lines);
        match part.next_page_token {
            Some(next) if !part.is_at_end => token = format!("&page_token={next}"),
            _ => return lines,
        }
    }
}

async fn first_trial(test: &TestApp, experiment: &str) -> TrialView {
    let trials: Vec<TrialView> = test
        .page(&format!("/v1/experiments/{experiment}/trials?"))
        .await;
    test.read(&format!("/v1/trials/{}", trials[0].id)).await
}

fn of_two_hosts() -> Value {
    let mut spec = on_p5(1);
    spec["candidates"][0]["instance_count"] = json!(2);
    spec["workload"]["trial_tokens"] = json!(400_000_000);
    spec
}

/// Half of all pages are empty and have a successor; two hosts; parts of three lines.
#[sqlx::test(migrations = false)]
async fn a_log_is_read_line_by_line_over_empty_pages_and_hosts(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--empty-log-page", "0.5"]).await;
    let experiment = test.start(&of_two_hosts()).await;
    test.tick().await;
    let trial = first_trial(&test, &experiment).await;
    let path = format!("/v1/trials/{}/logs", trial.id);
    let early: LogPartView = test.read(&path).await;
    assert!(
        early.lines.is_empty() && early.next_page_token.is_some(),
        "{early:?}"
    );
    test.advance(TimeDelta::minutes(30)).await;
    test.tick().await;
    let job = &trial.attempts[0].job_name;
    let expected = raw(&test, job).await;
    assert!(expected.len() > 30, "{}", expected.len());
    let seen = whole(&test, &format!("{path}?page_size=3")).await;
    assert_eq!(plain(&seen), expected);
    let hosts: BTreeMap<&str, usize> = seen.iter().fold(BTreeMap::new(), |mut hosts, line| {
        *hosts.entry(line.host.as_str()).or_default() += 1;
        hosts
    });
    assert_eq!(
        hosts.keys().copied().collect::<Vec<_>>(),
        ["algo-1", "algo-2"]
    );

    // The end, and what comes after it.
    let tail: LogPartView = test.read(&format!("{path}?tail=5")).await;
    assert_eq!(plain(&tail.lines), expected[expected.len() - 5..]);
    test.advance(TimeDelta::minutes(10)).await;
    test.tick().await;
    let later = raw(&test, job).await;
    let next = tail.next_page_token.unwrap();
    let rest: LogPartView = test
        .read(&format!("{path}?page_size=400&page_token={next}"))
        .await;
    assert_eq!(plain(&rest.lines), later[expected.len()..]);

    // Searches, and one host.
    let found = whole(&test, &format!("{path}?host=algo-2&grep=Invoking")).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].host, "algo-2");
    let since = expected[10].0;
    let since = chrono::DateTime::from_timestamp_millis(since)
        .unwrap()
        .to_rfc3339();
    let since = since.replace('+', "%2B");
    let after = whole(&test, &format!("{path}?since={since}&page_size=500")).await;
    assert_eq!(plain(&after)[0].0, expected[10].0);
    for (query, name) in [
        ("grep=%5B", "grep"),
        ("tail=0", "tail"),
        ("page_size=9999", "page_size"),
        ("page_token=x", "page_token"),
        ("tail=3&page_token=1;", "tail"),
    ] {
        let request = test.request(Method::GET, &format!("{path}?{query}"), &test.admin);
        let (status, answer) = test.send(request).await;
        assert_eq!(
            (status, problem(answer).errors[0].pointer.as_str()),
            (StatusCode::BAD_REQUEST, name),
            "{query}"
        );
    }
    let nobody = test
        .key(
            test.other_project().await,
            bakeoff_service::auth::keys::Role::Admin,
        )
        .await;
    let (status, _) = test.send(test.request(Method::GET, &path, &nobody)).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// Spot is interrupted, and each start begins new streams; an unmodified boto3 reads the same lines.
#[sqlx::test(migrations = false)]
async fn restarts_are_read_to_the_end_and_boto3_reads_the_same(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut spec = spot_spec();
    spec["candidates"][0]["purchase_options"] = json!(["spot"]);
    spec["workload"]["trial_tokens"] = json!(400_000_000);
    spec["max_runtime_seconds"] = json!(259_200);
    spec["max_wait_seconds"] = json!(518_400);
    spec["budget_usd"] = json!(10_000);
    let experiment = test.start(&spec).await;
    test.run_to_end(&experiment, 200).await;
    let trial = first_trial(&test, &experiment).await;
    let attempt = &trial.attempts[0];
    assert!(!attempt.interruptions.is_empty(), "{attempt:?}");
    let expected = raw(&test, &attempt.job_name).await;
    let path = format!("/v1/trials/{}/logs?page_size=2000", trial.id);
    let seen = whole(&test, &path).await;
    assert_eq!(plain(&seen), expected);
    let mut streams: Vec<&str> = seen.iter().map(|line| line.stream.as_str()).collect();
    streams.dedup();
    assert_eq!(streams.len(), 1 + attempt.interruptions.len());
    // Once everything was read of a job that is over, nothing more is promised.
    test.advance(TimeDelta::minutes(5)).await;
    let part: LogPartView = test
        .read(&format!("/v1/trials/{}/logs?tail=1", trial.id))
        .await;
    assert_eq!(part.next_page_token, None);
    assert!(part.lines[0].message.contains("SUCCESS"), "{part:?}");

    let arguments = [test.region.url.clone(), attempt.job_name.clone()];
    let read = tokio::task::spawn_blocking(move || {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        python("logs.py", &arguments)
    });
    let Some(text) = read.await.unwrap() else {
        return;
    };
    let ours: Vec<String> = seen.into_iter().map(|line| line.message).collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), ours);
}

/// The stream ends with the trial; one that is taken up again goes on where it was.
#[sqlx::test(migrations = false)]
async fn a_stream_follows_a_job_to_its_end(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&on_p5(1)).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(20)).await;
    test.tick().await;
    let trial = first_trial(&test, &experiment).await;
    let follow = |after: Option<String>| {
        let path = format!("/v1/trials/{}/logs", trial.id);
        let request = test
            .request(Method::GET, &path, &test.admin)
            .header("accept", "text/event-stream");
        match after {
            Some(id) => request.header("last-event-id", id),
            None => request,
        }
    };
    let mut chunks = follow(None).send().await.unwrap().bytes_stream();
    let mut text = String::new();
    while text.matches("\ndata:").count() < 1 || !text.ends_with("\n\n") {
        text.push_str(std::str::from_utf8(&chunks.next().await.unwrap().unwrap()).unwrap());
    }
    drop(chunks);
    let ids: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("id: ").map(str::to_owned))
        .collect();
    test.run_to_end(&experiment, 12).await;
    test.advance(TimeDelta::minutes(5)).await;
    let rest = follow(ids.last().cloned()).send().await.unwrap();
    let rest = rest.text().await.unwrap();
    assert!(rest.contains("event: end"), "{rest}");
    let lines = |text: &str| -> Vec<LogLineView> {
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let parts = data.filter_map(|data| serde_json::from_str::<LogPartView>(data).ok());
        parts.flat_map(|part| part.lines).collect()
    };
    let mut seen = lines(&text);
    seen.extend(lines(&rest));
    assert_eq!(plain(&seen), raw(&test, &trial.attempts[0].job_name).await);
    // A place that the trial never had is said, not waited for.
    let nowhere = follow(Some("7;".to_owned())).send().await.unwrap();
    let nowhere = nowhere.text().await.unwrap();
    assert!(nowhere.contains("event: error"), "{nowhere}");
}

/// The command line prints the same lines, and ends with the trial.
#[sqlx::test(migrations = false)]
async fn the_command_prints_a_log_and_follows_it_to_its_end(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let experiment = test.start(&on_p5(1)).await;
    test.run_to_end(&experiment, 12).await;
    test.advance(TimeDelta::minutes(5)).await;
    let trial = first_trial(&test, &experiment).await;
    let expected = raw(&test, &trial.attempts[0].job_name).await;
    let (url, key, id) = (test.url.clone(), test.admin.clone(), trial.id.to_string());
    let printed = move |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_bakeoff"))
            .args(["logs", &id, "--json", "--url", &url, "--api-key", &key])
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<LogLineView>>()
    };
    let (followed, last) = tokio::task::spawn_blocking(move || {
        (
            printed(&["--follow", "--tail", "0"]),
            printed(&["--tail", "2", "--grep", "step="]),
        )
    })
    .await
    .unwrap();
    assert_eq!(plain(&followed), expected);
    assert_eq!(last.len(), 2);
    assert!(
        last.iter().all(|line| line.message.contains("step=")),
        "{last:?}"
    );
}

/// What the region can do wrong ends in one sentence with its fix.
#[sqlx::test(migrations = false)]
async fn each_way_to_fail_is_named_with_what_to_do(pool: PgPool) {
    let ways = [
        ("cuda-out-of-memory", "accelerator-memory-exhausted"),
        ("host-out-of-memory", "host-memory-killed"),
        ("collective-timeout", "collective-timeout"),
        ("loader-shared-memory", "loader-shared-memory"),
        ("module-missing", "module-missing"),
        ("disk-full", "disk-full"),
        ("accelerator-hardware", "accelerator-hardware"),
        ("weights-gated", "weights-gated"),
        ("loss-not-a-number", "loss-not-a-number"),
        ("bug", "exception-raised"),
    ];
    let types = [
        "ml.p4d.24xlarge",
        "ml.p4de.24xlarge",
        "ml.p5.48xlarge",
        "ml.g5.24xlarge",
        "ml.g5.48xlarge",
        "ml.g5.12xlarge",
        "ml.g6.48xlarge",
        "ml.g6e.48xlarge",
        "ml.g6.12xlarge",
        "ml.g6e.12xlarge",
    ];
    let faults: Vec<String> = ways
        .iter()
        .zip(types)
        .flat_map(|((way, _), kind)| ["--fails".to_owned(), format!("{kind}={way}")])
        .collect();
    let faults: Vec<&str> = faults.iter().map(String::as_str).collect();
    let test = TestApp::with_faults(pool, &faults).await;
    let mut spec = spec();
    spec["budget_usd"] = json!(100_000);
    spec["workload"]["model"]["lora_rank"] = json!(16);
    let profile = json!({"micro_batch_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_stage": 3,
        "activation_checkpointing": true, "cpu_offload": "none"});
    spec["candidates"] = types
        .iter()
        .zip(ways)
        .map(|(kind, (way, _))| json!({"name": way, "instance_type": kind, "profile": profile}))
        .collect();
    let experiment = test.start(&spec).await;
    test.run_to_end(&experiment, 48).await;
    let comparison: Comparison = test
        .read(&format!("/v1/experiments/{experiment}/comparison"))
        .await;
    for (row, (way, signature)) in comparison.rows.iter().zip(ways) {
        let path = format!("/v1/trials/{}/diagnosis", row.trial_id.unwrap());
        let found: TrialDiagnosisView = test.read(&path).await;
        let attempt = found.attempts.last().unwrap_or_else(|| panic!("{row:#?}"));
        let diagnosis = attempt
            .diagnosis
            .as_ref()
            .unwrap_or_else(|| panic!("{way}: {attempt:?}"));
        assert_eq!(diagnosis.causes[0].signature, signature, "{diagnosis:?}");
        assert_eq!(row.diagnosis.as_ref(), Some(&diagnosis.summary));
        assert!(
            diagnosis.is_log_read && !attempt.last_lines.is_empty(),
            "{attempt:?}"
        );
        let bytes: usize = attempt
            .last_lines
            .iter()
            .map(|line| line.message.len())
            .sum();
        assert!(bytes <= 8 * 1024);
    }
    let events = test.events(&experiment).await;
    let told = |kind: &str| events.iter().filter(|event| event.kind == kind).count();
    // After a defective machine, another one is tried.
    assert_eq!(
        (told("trial.diagnosed"), told("trial.failed")),
        (ways.len() + 1, ways.len())
    );
    let messages = || events.iter().map(|event| event.message.as_str());
    let memory = messages().find(|text| text.contains("why it failed: An accelerator"));
    let memory = memory.unwrap_or_else(|| panic!("{events:#?}"));
    assert!(
        memory.contains("Lower the micro-batch from 2 to 1 and raise the accumulation from 4 to 8"),
        "{memory}"
    );
}

/// The log comes late, and AWS is away for a while: the conclusion waits, but not for ever.
#[sqlx::test(migrations = false)]
async fn a_post_mortem_is_tried_again_and_then_does_without_the_log(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--fails", "ml.p5.48xlarge=module-missing"]).await;
    let experiment = test.start(&on_p5(1)).await;
    let trial = loop {
        test.tick_without_post_mortems().await;
        let trial = first_trial(&test, &experiment).await;
        if trial.state.is_terminal() {
            break trial;
        }
        test.advance(TimeDelta::minutes(1)).await;
    };
    test.region_post("/_sim/faults", &json!({"server_error": 1.0}))
        .await;
    let path = format!("/v1/trials/{}/diagnosis", trial.id);
    for tried in 0..4 {
        test.advance(TimeDelta::minutes(4)).await;
        let before: TrialDiagnosisView = test.read(&path).await;
        assert!(
            before.attempts[0].diagnosis.is_none(),
            "after {tried} tries"
        );
        let concluded = tasks::finalizer::tick(&test.app).await.unwrap();
        assert_eq!(concluded, 0, "its post-mortem is due");
        assert_eq!(tasks::post_mortem::tick(&test.app).await.unwrap(), 1);
    }
    let after: TrialDiagnosisView = test.read(&path).await;
    let diagnosis = after.attempts[0].diagnosis.as_ref().unwrap();
    assert!(!diagnosis.is_log_read && after.attempts[0].last_lines.is_empty());
    let first = &diagnosis.causes[0];
    assert_eq!(
        (first.signature.as_str(), first.clue.seen_in),
        ("module-missing", SeenIn::FailureReason)
    );
    // A second replica that comes late changes nothing.
    assert_eq!(tasks::post_mortem::tick(&test.app).await.unwrap(), 0);
    test.region_post("/_sim/faults", &json!({})).await;
    test.run_to_end(&experiment, 1).await;
}

/// Other ranks write sixty thousand lines after the one that says why: the last twenty thousand do not have it.
#[sqlx::test(migrations = false)]
async fn a_cause_is_found_before_more_lines_than_are_read(pool: PgPool) {
    let fails = "ml.p5.48xlarge=loader-shared-memory";
    let test = TestApp::with_faults(pool, &["--fails", fails, "--empty-log-page", "0.5"]).await;
    let mut spec = on_p5(1);
    spec["workload"]["hyperparameters"] = json!({"log_lines_after_failure": "60000"});
    for denied in [json!([]), json!(["logs:FilterLogEvents"])] {
        test.region_post("/_sim/setup", &json!({"deny": denied}))
            .await;
        let experiment = test.start(&spec).await;
        test.run_to_end(&experiment, 12).await;
        let trial = first_trial(&test, &experiment).await;
        let found: TrialDiagnosisView = test
            .read(&format!("/v1/trials/{}/diagnosis", trial.id))
            .await;
        let attempt = &found.attempts[0];
        let diagnosis = attempt.diagnosis.as_ref().unwrap();
        let is_found = diagnosis.causes[0].signature == "loader-shared-memory";
        let said = |line: &LogLineView| line.message.contains("insufficient shared memory");
        let is_shown = attempt.last_lines.iter().any(said);
        let may_search = denied == json!([]);
        assert_eq!(
            (is_found, is_shown, diagnosis.is_log_read),
            (may_search, may_search, true),
            "{diagnosis:#?} {:#?}",
            attempt.last_lines
        );
    }
}

/// Six hundred thousand lines: each part ends after a bounded number of pages, and the next goes on.
#[sqlx::test(migrations = false)]
async fn a_search_through_a_large_log_ends_in_parts(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut spec = on_p5(1);
    spec["workload"]["hyperparameters"] = json!({"log_lines_per_minute": "20000"});
    let experiment = test.start(&spec).await;
    test.tick().await;
    test.advance(TimeDelta::minutes(30)).await;
    test.tick().await;
    let trial = first_trial(&test, &experiment).await;
    let path = format!("/v1/trials/{}/logs", trial.id);
    let part: LogPartView = test.read(&format!("{path}?grep=nowhere")).await;
    assert!(part.lines.is_empty() && !part.is_at_end, "{part:?}");
    let next = part.next_page_token.unwrap();
    let further: LogPartView = test
        .read(&format!("{path}?grep=nowhere&page_token={next}"))
        .await;
    assert_ne!(further.next_page_token, Some(next), "it goes on");
    let tail: LogPartView = test.read(&format!("{path}?tail=3")).await;
    assert_eq!(tail.lines.len(), 3);
    let found: LogPartView = test.read(&format!("{path}?tail=2&grep=part=19999")).await;
    assert_eq!(found.lines.len(), 2, "{found:?}");
}
