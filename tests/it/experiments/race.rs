//! The race: what does not start, what is stopped early, what that costs, and what a parked trial
//! does not hold up.

use bakeoff_api::calibration::Calibration;
use bakeoff_api::comparison::{ComparisonRow, Convergence};
use bakeoff_api::decisions::DecisionView;
use bakeoff_api::experiments::ExperimentView;
use bakeoff_api::full_runs::FullRunPreview;
use bakeoff_api::plans::PlanView;
use bakeoff_domain::lifecycle::state::{ExperimentState, TrialState};
use bakeoff_domain::measure::calibration::Figure;
use bakeoff_domain::money::Usd;
use bakeoff_domain::number::real;
use bakeoff_domain::ranking::recommendation::Conclusion;
use bakeoff_planner::preview::CandidatePreview;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::jobs::fleet::events;
use crate::support::{TestApp, number, spec};

/// Trials of about three hours, by a policy, for a full run of weeks: a figure is worth its price.
pub(crate) fn raced(policy: &str) -> Value {
    let mut spec = spec();
    spec["stopping_policy"] = json!(policy);
    spec["workload"]["trial_tokens"] = json!(300_000_000);
    spec["workload"]["total_tokens"] = json!(300_000_000_000_u64);
    spec["max_runtime_seconds"] = json!(36_000);
    spec["budget_usd"] = json!(5000);
    spec
}

/// By time, P5 is predicted to be twice as fast as P4de.
fn by_time(policy: &str) -> Value {
    let mut spec = raced(policy);
    spec["objective"] = json!({"minimize": "time"});
    spec
}

async fn states(test: &TestApp, id: &str) -> Vec<(String, TrialState)> {
    let rows = test.comparison(id).await.rows;
    let state = |row: ComparisonRow| (row.candidate, row.state);
    rows.into_iter().map(state).collect()
}

async fn answer(test: &TestApp, id: &str) -> DecisionView {
    test.read(&format!("/v1/experiments/{id}/recommendation"))
        .await
}

async fn row(test: &TestApp, id: &str, candidate: &str) -> ComparisonRow {
    let rows = test.comparison(id).await.rows;
    rows.into_iter()
        .find(|row| row.candidate == candidate)
        .unwrap()
}

/// The likeliest winner runs alone until its speed is known; the other then runs until its own is.
#[sqlx::test(migrations = false)]
async fn one_after_the_other_and_the_answer_stays_the_same(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let full = test.start(&raced("full")).await;
    test.run_to_end(&full, 24).await;

    let asked = raced("race");
    let plan = test.plan(&asked).await;
    let held: Vec<bool> = (plan.candidates.iter())
        .map(|one| one.plan.held.is_some())
        .collect();
    assert_eq!(held.iter().filter(|held| **held).count(), 1, "{held:?}");
    let id = test.start(&asked).await;
    test.tick().await;
    let first = test.jobs().await.len();
    test.tick().await;
    assert_eq!(test.jobs().await.len(), first, "the other waits");
    test.run_to_end(&id, 24).await;

    let released = events(&test, &id, "trial.released").await;
    assert!(
        released.len() == 1 && released[0].contains("measuring it costs about $"),
        "{released:?}"
    );
    let rows = test.comparison(&id).await.rows;
    let first = answer(&test, &id).await.ranked[0].candidate.clone();
    let (winner, loser) = if rows[0].candidate == first {
        (&rows[0], &rows[1])
    } else {
        (&rows[1], &rows[0])
    };
    // The one that was measured first has said what it can while the other is measured.
    assert_eq!(
        (winner.state, loser.state),
        (TrialState::Stopped, TrialState::Stopped)
    );
    assert!(winner.reason.as_ref().unwrap().starts_with("measured: "));
    let reason = loser.reason.clone().unwrap();
    let is_told = |prefix: &str| reason.starts_with(prefix);
    assert!(
        is_told("measured: ") || is_told("its full run is the best with P < 0.005"),
        "{reason}"
    );
    assert_eq!(events(&test, &id, "trial.stopping").await.len(), 2);
    let stopped = events(&test, &id, "trial.stopped").await;
    assert!(stopped.iter().any(|sentence| sentence.ends_with(&reason)));
    let whole = row(&test, &full, &loser.candidate).await;
    assert!(
        loser.training_seconds * 2 < whole.training_seconds,
        "{} of {} s",
        loser.training_seconds,
        whole.training_seconds
    );

    let (long, short) = (answer(&test, &full).await, answer(&test, &id).await);
    let said = |answer: &DecisionView| (answer.conclusion, answer.ranked[0].candidate.clone());
    assert_eq!(said(&long), said(&short));
    assert_eq!(short.ranked.len(), 2, "a stopped trial was measured, too");
    let spend = short.spend.unwrap();
    let (won, lost) = (winner.total_usd.unwrap(), loser.total_usd.unwrap());
    assert_eq!((spend.usd, spend.losers_usd), (won + lost, lost));
    // What it says of running everything is what that cost.
    let really = long.spend.unwrap().usd.as_f64();
    let said = spend.full_usd.unwrap().as_f64();
    assert!(
        (said / really - 1.0).abs() < 0.03,
        "{said} against {really}"
    );
    let told = short
        .reasons
        .iter()
        .any(|reason| reason.contains("running every trial to its end would have cost about"));
    assert!(told, "{:?}", short.reasons);
}

/// Of a full run of two trials' length, a figure saves less than it costs.
#[sqlx::test(migrations = false)]
async fn what_is_not_worth_its_figure_never_starts(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = raced("race");
    asked["workload"]["total_tokens"] = json!(600_000_000_u64);
    let id = test.start(&asked).await;
    test.run_to_end(&id, 24).await;
    let rows = test.comparison(&id).await.rows;
    let lost = rows.iter().find(|row| row.state == TrialState::Stopped);
    let lost = lost.unwrap();
    assert_eq!((lost.attempts, rows.len()), (0, 2));
    let reason = lost.reason.as_ref().unwrap();
    assert!(
        reason.starts_with("not started: measuring it costs about $")
            && reason.contains("is expected to save $")
            && reason.ends_with("runs it all the same)"),
        "{reason}"
    );
    let answer = answer(&test, &id).await;
    assert_eq!(answer.spend.unwrap().losers_usd, Usd::ZERO);
}

/// P4de would have to be twice as fast as predicted: the answer is "Buy" without its figure.
#[sqlx::test(migrations = false)]
async fn what_cannot_win_any_more_never_starts(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&by_time("race")).await;
    test.run_to_end(&id, 24).await;
    let lost = row(&test, &id, "p4de").await;
    assert_eq!((lost.state, lost.attempts), (TrialState::Stopped, 0));
    let reason = lost.reason.unwrap();
    assert!(
        reason.starts_with("its full run is the best with P < 0.005"),
        "{reason}"
    );
    let answer = answer(&test, &id).await;
    assert_eq!(answer.conclusion, Conclusion::Clear, "{:?}", answer.reasons);
    assert_eq!(answer.spend.unwrap().losers_usd, Usd::ZERO);
}

/// The leader's quota is 0: the other does not wait for it.
#[sqlx::test(migrations = false)]
async fn a_leader_that_is_parked_holds_up_nobody(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota-of", "ml.p5.48xlarge=0"]).await;
    test.tick().await;
    let id = test.start(&by_time("race")).await;
    test.run_until_ended(&id, 24).await;
    let expected = [
        ("p4de".to_owned(), TrialState::Completed),
        ("p5".to_owned(), TrialState::Parked),
    ];
    assert_eq!(states(&test, &id).await, expected);
}

/// A clock that is stepped back wakes what waits for a time; what waits for a figure waits on. A
/// cancel ends both.
#[sqlx::test(migrations = false)]
async fn what_is_held_back_is_not_woken_by_the_clock_and_can_be_cancelled(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&by_time("race")).await;
    test.tick().await;
    let now = test.app.clock.now();
    let quarantine = test.app.settings.policy.quarantine;
    let store = &test.app.store;
    store.clock_stepped_back(now, quarantine).await.unwrap();
    test.tick().await;
    assert_eq!(test.jobs().await.len(), 1);
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 24).await;
    let expected = [
        ("p4de".to_owned(), TrialState::Stopped),
        ("p5".to_owned(), TrialState::Stopped),
    ];
    assert_eq!(states(&test, &id).await, expected);
    assert_eq!(row(&test, &id, "p4de").await.attempts, 0);
}

/// What was predicted is scored by what was measured, also of a trial that was stopped.
#[sqlx::test(migrations = false)]
async fn predictions_are_scored_by_what_was_measured_since(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let record = async || test.read::<Calibration>("/v1/calibration").await;
    assert_eq!(record().await.rows, []);
    let asked = raced("race");
    let id = test.start(&asked).await;
    test.run_to_end(&id, 24).await;
    let found = record().await;
    assert_eq!(found.experiments, 1);
    let of = |figure: Figure| found.rows.iter().filter(move |row| row.figure == figure);
    let types: Vec<&str> = of(Figure::TokensPerSecond)
        .map(|row| row.instance_type.as_str())
        .collect();
    assert_eq!(types, ["ml.p4de.24xlarge", "ml.p5.48xlarge"]);
    for row in of(Figure::TokensPerSecond) {
        let plan = test.plan(&asked).await;
        let of_type = |one: &&CandidatePreview| one.plan.instance_type == row.instance_type;
        let again = plan.candidates.iter().find(of_type).unwrap();
        let moved = again.plan.forecast.as_ref().unwrap();
        assert!(moved.is_rescaled, "a stopped trial teaches, too");
        // The plan that knows of the trial is nearer to what was measured.
        let measured = test.comparison(&id).await.rows;
        let measured = measured
            .iter()
            .find(|one| one.instance_type == row.instance_type)
            .and_then(|one| one.tokens_per_second)
            .unwrap();
        let now = 100.0 * (moved.tokens_per_second.expected / measured - 1.0).abs();
        assert!(
            now < row.median_error_percent && row.trials == 1 && !row.is_adjusted,
            "{now} against {row:?}"
        );
    }
    assert_eq!(of(Figure::RemainingHours).count(), 0, "none has finished");
    let full = test.start(&spec()).await;
    test.run_to_end(&full, 24).await;
    let found = record().await;
    let left = found
        .rows
        .iter()
        .filter(|row| row.figure == Figure::RemainingHours);
    let left: Vec<_> = left.collect();
    assert_eq!(left.len(), 2, "{:?}", found.rows);
    for row in left {
        assert!(
            row.held_percent > 99.0 && row.median_error_percent < 3.0 && row.stated_percent == 95,
            "{row:?}"
        );
    }
}

/// 48 sequences a step instead of 64: it would run, but not be ranked.
#[sqlx::test(migrations = false)]
async fn what_would_not_be_ranked_does_not_start_unless_asked_for(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut odd = raced("race");
    let mut other = odd["candidates"][1].clone();
    other["name"] = json!("p5-48");
    other["profile"]["micro_batch_per_gpu"] = json!(6);
    odd["candidates"].as_array_mut().unwrap().push(other);
    let plan = test.plan(&odd).await;
    let skipped: Vec<bool> = plan
        .candidates
        .iter()
        .map(|one| one.plan.skipped.is_some())
        .collect();
    assert_eq!(skipped, [false, false, true]);
    // Its worst case is not part of the sum.
    let worst = plan.candidates.iter().zip(&skipped);
    let worst: Usd = worst
        .filter(|(_, skipped)| !**skipped)
        .map(|(one, _)| one.plan.worst_case.unwrap().total_usd)
        .sum();
    assert_eq!(plan.worst_case_usd, worst);
    // Nothing said about a policy is a race.
    odd.as_object_mut().unwrap().remove("stopping_policy");
    let id = test.start(&odd).await;
    let created = events(&test, &id, "experiment.created").await;
    assert!(created[0].ends_with("1 not started"), "{created:?}");
    test.run_to_end(&id, 24).await;
    let odd_row = row(&test, &id, "p5-48").await;
    assert_eq!((odd_row.state, odd_row.attempts), (TrialState::Stopped, 0));
    let reason = odd_row.reason.unwrap();
    assert!(
        reason.starts_with("not started: it would not be ranked: p5-48 trains 48 sequences"),
        "{reason}"
    );
    odd["stopping_policy"] = json!("full");
    let plan = test.plan(&odd).await;
    assert!(plan.candidates.iter().all(|one| one.plan.skipped.is_none()));
}

#[sqlx::test(migrations = false)]
async fn a_probe_stops_everything_once_it_is_measured(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&raced("probe")).await;
    test.run_to_end(&id, 24).await;
    assert_eq!(test.experiment(&id).await.state, ExperimentState::Completed);
    for row in test.comparison(&id).await.rows {
        assert_eq!(row.state, TrialState::Stopped);
        assert!(row.tokens_per_second.is_some(), "{row:?}");
        assert!(row.training_seconds < 3600, "{} s", row.training_seconds);
    }
    assert_eq!(answer(&test, &id).await.ranked.len(), 2);
}

/// With a quota of 0, P4de never runs: the answer does not wait for it, says what is missing, and
/// is made anew once it has run.
#[sqlx::test(migrations = false)]
async fn a_parked_trial_holds_up_nothing_and_may_run_later(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--quota-of", "ml.p4de.24xlarge=0"]).await;
    test.tick().await;
    let mut asked = raced("full");
    asked["workload"]["trial_tokens"] = json!(100_000_000);
    let id = test.start(&asked).await;
    test.run_until_ended(&id, 24).await;
    let parked = row(&test, &id, "p4de").await;
    assert_eq!(parked.state, TrialState::Parked);
    let first = answer(&test, &id).await;
    assert!(first.provisional);
    let missing = &first.not_ranked[0];
    assert!(
        missing.candidate == "p4de" && missing.reason.starts_with("it has not run:"),
        "{missing:?}"
    );
    assert!(missing.odds.is_some(), "it counts by its prediction");
    assert_eq!(events(&test, &id, "experiment.concluded").await.len(), 1);

    // Somebody raises the quota, and says so.
    sqlx::query("UPDATE quotas SET instances = 2 WHERE instance_type = 'ml.p4de.24xlarge'")
        .execute(&pool)
        .await
        .unwrap();
    let resume = format!("/v1/experiments/{id}/resume");
    let (status, resumed) = test.post(&resume, &json!({})).await;
    assert_eq!(status, StatusCode::OK, "{resumed:#}");
    let resumed: ExperimentView = serde_json::from_value(resumed).unwrap();
    assert_eq!(resumed.state, ExperimentState::Running);
    test.advance(TimeDelta::minutes(1)).await;
    test.post(&format!("/v1/experiments/{id}/cancel"), &json!({}))
        .await;
    test.run_to_end(&id, 24).await;
    let ended = test.experiment(&id).await;
    assert_eq!(ended.state, ExperimentState::Cancelled);
    assert!(
        !answer(&test, &id).await.provisional,
        "nothing is left to run"
    );
    // Over is over.
    let (_, again) = test.post(&resume, &json!({})).await;
    let again: ExperimentView = serde_json::from_value(again).unwrap();
    assert_eq!(again.state, ExperimentState::Cancelled);
}

/// In a region that lives, scripts evaluate, save and stall. What that takes is in the projection, and
/// still is once the series are settled and only their figures are read.
#[sqlx::test(migrations = false)]
async fn evaluations_and_checkpoints_count_in_the_full_run(pool: PgPool) {
    let test = TestApp::with_faults(pool.clone(), &["--lively"]).await;
    let id = test.start(&raced("full")).await;
    test.run_to_end(&id, 48).await;
    let before = answer(&test, &id).await;
    let shares: Vec<f64> = (before.ranked.iter())
        .map(|row| row.stepping_share.unwrap())
        .collect();
    assert!(
        shares.len() == 2 && shares.iter().all(|share| (0.80..0.995).contains(share)),
        "{shares:?}"
    );
    let first = &before.ranked[0];
    let steps_alone = 300e9 / first.tokens_per_second / 3600.0;
    assert!(first.projected_hours > 1.005 * steps_alone, "{first:?}");
    // The trial trained a thousandth of it: its own hours, but for those of its start, say the same.
    let ran = row(&test, &id, &first.candidate).await;
    let by_trial = f64::from(u32::try_from(ran.training_seconds).unwrap()) / 3.6;
    assert!(
        (0.93..1.02).contains(&(first.projected_hours / by_trial)),
        "{} {by_trial}",
        first.projected_hours
    );
    assert!(
        before
            .basis
            .iter()
            .any(|line| line.contains("of the time is spent stepping; evaluations")),
        "{:?}",
        before.basis
    );

    test.advance(TimeDelta::hours(2)).await;
    while bakeoff_service::tasks::compactor::tick(&test.app)
        .await
        .unwrap()
        > 0
    {}
    let settled =
        "SELECT count(*) FROM series WHERE is_settled AND metric = 'step' AND pace IS NOT NULL";
    assert_eq!(number(&pool, settled).await, 2);
    let price = json!({"region": "us-east-1", "usd_per_hour": 20, "source": "contract",
                       "effective_from": "2026-11-01T00:00:00Z", "reason": "the contract was signed in October"});
    for kind in ["ml.p5.48xlarge", "ml.p4de.24xlarge"] {
        let path = format!("/v1/prices/{kind}");
        let put = test.request(Method::PUT, &path, &test.admin);
        assert!(test.send(put.json(&price)).await.0.is_success());
    }
    test.tick().await;
    let after = answer(&test, &id).await;
    assert_ne!(
        before.ranked[0].projected_cost_usd,
        after.ranked[0].projected_cost_usd
    );
    for row in &after.ranked {
        let was = before
            .ranked
            .iter()
            .find(|one| one.candidate == row.candidate);
        assert_eq!(was.unwrap().stepping_share, row.stepping_share);
    }
}

/// A vision model: nothing is predicted, both start at once, and their images per second decide.
#[sqlx::test(migrations = false)]
async fn a_model_without_layers_is_measured_and_compared(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = raced("race");
    asked["workload"]["model"] = json!({"total_parameters": 86_567_656});
    asked["workload"]["trial_tokens"] = json!(50_000_000);
    asked["workload"]["total_tokens"] = json!(5_000_000_000_u64);
    let plan = test.plan(&asked).await;
    let rules: Vec<&str> = (plan.findings.iter())
        .map(|finding| finding.rule.as_str())
        .collect();
    assert!(rules.contains(&"model-measured-only"), "{rules:?}");
    assert!(plan.would_start, "{rules:?}");
    for one in &plan.candidates {
        let plan = &one.plan;
        assert!(plan.forecast.is_none() && plan.fit.is_none() && one.advice.is_none());
        assert!(plan.held.is_none() && plan.skipped.is_none(), "{plan:?}");
        assert!(plan.worst_case.is_some() && plan.steps > 0);
    }
    let id = test.start(&asked).await;
    test.run_to_end(&id, 24).await;

    let found = answer(&test, &id).await;
    assert_eq!(found.ranked.len(), 2, "{}", found.headline);
    for row in test.comparison(&id).await.rows {
        let (images, tokens) = (
            row.samples_per_second.unwrap(),
            row.tokens_per_second.unwrap(),
        );
        assert!((images / tokens - 1.0).abs() < 1e-9, "{images} {tokens}");
        assert!(row.mfu_percent.is_none(), "{:?}", row.mfu_percent);
    }
    let plan = test.plan_view(&asked).await;
    let request = plan.candidates[0].plan.request.as_ref();
    let sent = &request.unwrap().hyperparameters;
    assert!(sent.contains_key("max_steps") && !sent.contains_key("num_hidden_layers"));
}

/// The region's loss falls below 3 after 52 million tokens, give or take its noise: the full run to it
/// is measured, and the other's is said to be of all tokens.
#[sqlx::test(migrations = false)]
async fn a_full_run_to_a_loss_is_as_long_as_it_took(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut asked = spec();
    asked["objective"] = json!({"minimize": "time", "target_loss": 3.0});
    let refused = test.plan(&asked).await;
    assert!(
        refused.findings.iter().any(|one| one.rule == "target-loss"),
        "{:?}",
        refused.findings
    );
    let metrics = asked["workload"]["metrics"].as_array_mut().unwrap();
    metrics.push(
        json!({"name": "eval", "regex": "eval_loss=([0-9.]+)", "meaning": "validation_loss"}),
    );
    let reachable = test.start(&asked).await;
    test.run_to_end(&reachable, 24).await;
    let found = answer(&test, &reachable).await;
    let first = &found.ranked[0];
    let tokens = first.projected_tokens.unwrap();
    assert!((45_000_000..70_000_000).contains(&tokens), "{tokens}");
    assert!(
        found.headline.contains("to reach validation loss 3"),
        "{}",
        found.headline
    );
    let spent = real(tokens) / first.tokens_per_second / 3600.0;
    assert!(
        (spent..spent + 1.0).contains(&first.projected_hours),
        "{spent} {}",
        first.projected_hours
    );
    let shown: Convergence = test
        .read(&format!(
            "/v1/convergence?experiment_id={reachable}&metric=validation_loss&target=3.0"
        ))
        .await;
    assert!(
        shown.reached.iter().all(|one| one.tokens.is_some()),
        "{:?}",
        shown.reached
    );

    asked["objective"]["target_loss"] = json!(1.5);
    let unreachable = test.start(&asked).await;
    test.run_to_end(&unreachable, 48).await;
    let found = answer(&test, &unreachable).await;
    assert_eq!(found.ranked[0].projected_tokens, Some(3_000_000_000));
    assert!(
        found
            .basis
            .iter()
            .any(|line| line.contains("validation loss 1.5 was not reached")),
        "{:?}",
        found.basis
    );
}

/// Every 600 steps are more than a probe sees: it evaluates and saves more often, its full run does not,
/// and what it says of the pauses of a full run is what a long trial measures.
#[sqlx::test(migrations = false)]
async fn what_recurs_is_brought_forward_in_a_probe(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--lively"]).await;
    let asked = |policy: &str| {
        let mut spec = raced(policy);
        let workload = &mut spec["workload"];
        workload["total_tokens"] = json!(20_000_000_000_u64);
        workload["hyperparameters"] =
            json!({"eval_steps": "600", "eval_seconds": "240", "save_steps": "600"});
        workload["recurring"] = json!(["eval_steps", "save_steps"]);
        spec
    };
    let every = |plan: &PlanView| {
        let sent = &plan.request.as_ref().unwrap().hyperparameters;
        ["eval_steps", "save_steps"].map(|name| sent[name].parse::<u32>().unwrap())
    };
    for one in test.plan_view(&asked("full")).await.candidates {
        assert_eq!(one.plan.intervals_divided_by, None);
        assert_eq!(every(&one.plan), [600, 600]);
    }
    for one in test.plan_view(&asked("probe")).await.candidates {
        let divided_by = one.plan.intervals_divided_by.unwrap();
        let [evaluates, saves] = every(&one.plan);
        assert!(evaluates < 400 && saves == evaluates, "{evaluates} {saves}");
        assert!(
            (divided_by * f64::from(evaluates) - 600.0).abs() < 1e-9,
            "{divided_by}"
        );
    }
    // All hours of a spot trial are projected as they were.
    let mut on_spot = asked("probe");
    on_spot["candidates"][0]["purchase_options"] = json!(["spot"]);
    on_spot["max_wait_seconds"] = json!(72_000);
    let spot = &test.plan_view(&on_spot).await.candidates[0].plan;
    assert_eq!((spot.intervals_divided_by, every(spot)), (None, [600, 600]));
    let share = async |policy: &str| {
        let id = test.start(&asked(policy)).await;
        test.run_to_end(&id, 48).await;
        let first = answer(&test, &id).await.ranked[0].clone();
        (id, first.candidate.clone(), first.stepping_share.unwrap())
    };
    let (_, of_full, measured) = share("full").await;
    let (probe, of_probe, projected) = share("probe").await;
    assert_eq!(of_full, of_probe);
    assert!(
        (projected - measured).abs() < 0.025,
        "{projected} {measured}"
    );
    assert!(measured < 0.97, "{measured}");
    let place = format!("/v1/experiments/{probe}/full-run?candidate={of_probe}");
    let shown: FullRunPreview = test.read(&place).await;
    let body = shown.plan.candidates[0].create_training_job.clone();
    let sent = &body.unwrap()["HyperParameters"];
    assert_eq!(
        (&sent["eval_steps"], &sent["save_steps"]),
        (&json!("600"), &json!("600")),
        "{shown:?}"
    );
}
