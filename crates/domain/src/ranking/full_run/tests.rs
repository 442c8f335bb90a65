//! Which row is meant, what its full run is, and what is said of it.

use std::collections::BTreeMap;

use super::*;
use crate::ranking::outcome::{Target, Tokens, Wait};
use crate::ranking::recommend::recommend;
use crate::ranking::samples::{cheapest, steady, waiting};
use crate::spec::full_run::Choice;

/// At 1,000 tokens/s: one hour, and 100 hours.
const TOKENS: Tokens = Tokens {
    trial: 3_600_000,
    total: 360_000_000,
    target: None,
};

/// A trial that trained for an hour.
fn finished(candidate: &str, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Completed,
        training_seconds: 3600,
        billable_seconds: 3600,
        wall_seconds: 3900,
        cost_usd: Usd(10.into()),
        tokens_per_second: Some(steady(tokens_per_second)),
        ..waiting(candidate, 10, tokens_per_second)
    }
}

fn answer(outcomes: &[Outcome]) -> Recommendation {
    recommend(outcomes, &cheapest(), TOKENS)
}

/// Two trials at one price, one of them twice as fast.
fn clear() -> Recommendation {
    let answer = answer(&[finished("fast", 2_000.0), finished("slow", 1_000.0)]);
    assert_eq!(answer.conclusion, Conclusion::Clear);
    answer
}

fn of(row: &Ranked, from_checkpoint: bool) -> FullRunOf {
    let trial = finished(&row.candidate, row.tokens_per_second);
    let experiment = ExperimentId(uuid::Uuid::nil());
    FullRunOf::of(experiment, row, &trial, from_checkpoint)
}

#[test]
fn a_clear_answer_needs_no_name_and_any_ranked_row_can_be_named() {
    let answer = clear();
    assert_eq!(choose(&answer, None, None).unwrap().candidate, "fast");
    assert_eq!(
        choose(&answer, Some("slow"), None).unwrap().candidate,
        "slow"
    );
    let unknown = choose(&answer, Some("other"), None).unwrap_err();
    assert!(
        unknown.contains("fast (on_demand), slow (on_demand)"),
        "{unknown}"
    );
    assert!(choose(&answer, Some("fast"), Some(PurchaseOption::Spot)).is_err());
}

#[test]
fn what_is_not_clear_is_never_bought_unasked() {
    let alike = answer(&[finished("a", 1_000.0), finished("b", 1_001.0)]);
    let lean = Recommendation {
        conclusion: Conclusion::Leading,
        ..alike
    };
    let why = choose(&lean, None, None).unwrap_err();
    assert!(
        why.contains("name the candidate to run") && why.contains("a (on_demand)"),
        "{why}"
    );
    assert_eq!(choose(&lean, Some("b"), None).unwrap().candidate, "b");
    let nothing = choose(&answer(&[waiting("a", 10, 1_000.0)]), None, None).unwrap_err();
    assert!(nothing.contains("no trial has been measured"), "{nothing}");
}

#[test]
fn one_candidate_under_two_options_is_not_guessed() {
    let spot = Outcome {
        purchase_option: PurchaseOption::Spot,
        ..finished("a", 1_000.0)
    };
    let both = answer(&[finished("a", 1_000.0), spot]);
    assert_eq!(both.ranked.len(), 2);
    assert!(
        choose(&both, Some("a"), None)
            .unwrap_err()
            .contains("name the purchase_option")
    );
    let row = choose(&both, Some("a"), Some(PurchaseOption::Spot)).unwrap();
    assert_eq!(row.purchase_option, PurchaseOption::Spot);
}

fn experiment() -> ExperimentSpec {
    let candidate = |name: &str| {
        serde_json::json!({"name": name, "instance_type": format!("ml.{name}"), "repeats": 2,
            "purchase_options": ["on_demand", "spot"],
            "profile": {"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 1}})
    };
    serde_json::from_value(serde_json::json!({
        "name": "which one", "region": "us-east-1", "budget_usd": 500, "max_runtime_seconds": 7200,
        "keep_alive_seconds": 600, "objective": {"minimize": "cost"}, "stopping_policy": "race",
        "expectations": [{"column": "cost_usd", "at_most": 10}],
        "workload": {"name": "w", "image": "i", "role_arn": "r", "channels": [], "output_s3_uri": "s3://o",
            "model": {"layers": 1, "hidden": 1, "heads": 1, "vocabulary": 1, "sequence_length": 1},
            "precision": "bf16", "data_version": "1", "code_version": "1", "total_tokens": 360_000_000,
            "trial_tokens": 3_600_000, "hyperparameters": {"seed": "1"}, "metrics": []},
        "candidates": [candidate("fast"), candidate("slow")],
    }))
    .unwrap()
}

#[test]
fn its_spec_is_the_winner_alone_with_all_tokens_and_limits_of_its_own() {
    let (experiment, answer) = (experiment(), clear());
    let row = choose(&answer, None, None).unwrap();
    let asked = FullRunSpec {
        hyperparameters: BTreeMap::from([("epochs".to_owned(), "3".to_owned())]),
        ..FullRunSpec::of(Choice::default(), Usd(900.into()))
    };
    let full = spec(&experiment, row, &asked, TOKENS);
    let names: Vec<&str> = full
        .candidates
        .iter()
        .map(|one| one.name.as_str())
        .collect();
    assert_eq!(names, ["fast"]);
    let only = &full.candidates[0];
    assert_eq!(
        (only.repeats, only.purchase_options.as_slice()),
        (1, &[PurchaseOption::OnDemand][..])
    );
    assert_eq!(only.profile, experiment.candidates[0].profile);
    let workload = full.workload.as_ref().unwrap();
    assert_eq!(
        (workload.trial_tokens, workload.total_tokens),
        (360_000_000, 360_000_000)
    );
    assert_eq!(workload.hyperparameters.len(), 2);
    // 50 hours, with a quarter more than the upper end of 90 %.
    let hours = full.max_runtime_seconds / 3600;
    assert!((63..=68).contains(&hours), "{hours}");
    assert_eq!(full.max_runtime_seconds % 3600, 0);
    assert_eq!(
        (
            full.budget_usd,
            full.keep_alive_seconds,
            full.max_wait_seconds
        ),
        (Usd(900.into()), None, None)
    );
    assert_eq!(
        full.deadline_hours,
        Some(72 + full.max_runtime_seconds / 3600)
    );
    assert_eq!(full.stopping_policy, Some(StoppingPolicy::Full));
    assert_eq!(full.name, "which one: full run");
    let least = full.expectations[0].at_least.unwrap();
    assert!(
        (1_800.0..2_000.0).contains(&least) && full.expectations.len() == 1,
        "{least}"
    );
}

#[test]
fn a_script_that_sets_its_own_length_must_be_told() {
    let mut workload = experiment().workload.unwrap();
    let mut run = FullRunSpec::of(Choice::default(), Usd(900.into()));
    let sent = BTreeMap::from([("seed".to_owned(), "1".to_owned())]);
    assert_eq!(is_told_its_length(&workload, &run, &sent), Ok(()));
    workload.omit_plan_hyperparameters = true;
    assert!(
        is_told_its_length(&workload, &run, &sent)
            .unwrap_err()
            .contains("sets its own length")
    );
    run.hyperparameters
        .insert("iterations".to_owned(), "50000".to_owned());
    assert_eq!(is_told_its_length(&workload, &run, &sent), Ok(()));
}

#[test]
fn on_spot_it_may_wait_as_long_as_it_runs_and_never_beyond_28_days() {
    let spot = Outcome {
        purchase_option: PurchaseOption::Spot,
        ..finished("fast", 2_000.0)
    };
    let answer = answer(&[spot]);
    let row = choose(&answer, Some("fast"), None).unwrap();
    let asked = FullRunSpec {
        max_runtime_seconds: Some(2_000_000),
        ..FullRunSpec::of(Choice::default(), Usd(900.into()))
    };
    let full = spec(&experiment(), row, &asked, TOKENS);
    assert_eq!(
        (full.max_runtime_seconds, full.max_wait_seconds),
        (2_000_000, Some(2_419_200))
    );
}

#[test]
fn afterwards_it_says_whether_it_came_out_as_projected() {
    let answer = clear();
    let row = choose(&answer, None, None).unwrap();
    let ran = |hours: u64| Outcome {
        training_seconds: hours * 3600,
        billable_seconds: hours * 3600,
        cost_usd: Usd((10 * i64::try_from(hours).unwrap()).into()),
        ..finished("fast", 2_000.0)
    };
    let said = |of: &FullRunOf, run: &Outcome| report(of, run, clear()).headline;
    let scratch = of(row, false);
    assert!(
        said(&scratch, &ran(50)).contains("took 50.0 h and $500.00: as projected"),
        "{}",
        said(&scratch, &ran(50))
    );
    assert!(said(&scratch, &ran(70)).ends_with(": slower than projected."));
    assert!(said(&scratch, &ran(40)).ends_with(": faster than projected."));
    // What its trial had trained is missing from it.
    let low = scratch.hours.unwrap()[0].floor();
    let just_less = Outcome {
        billable_seconds: 3600 * 46,
        ..ran(50)
    };
    assert!(low >= 46.0, "{low}");
    assert!(said(&scratch, &just_less).ends_with(": faster than projected."));
    let head = FullRunOf {
        trial_hours: 5.0,
        ..of(row, true)
    };
    assert!(said(&head, &just_less).ends_with(": as projected."));
    let running = Outcome {
        state: TrialState::Running,
        ..ran(9)
    };
    let answer = report(&head, &running, clear());
    assert_eq!(
        (answer.conclusion, answer.winner()),
        (Conclusion::FullRun, None)
    );
    assert!(
        answer.headline.contains("goes on: $90.00 so far"),
        "{}",
        answer.headline
    );
    assert!(
        answer
            .reasons
            .iter()
            .any(|reason| reason.contains("+0.0 % against its trial")),
        "{:?}",
        answer.reasons
    );
}

#[test]
fn what_does_not_run_is_not_said_to_go_on() {
    let answer = clear();
    let full = of(choose(&answer, None, None).unwrap(), true);
    let said = |state: TrialState, usd: i64| {
        let run = Outcome {
            state,
            reason: Some("the quota is 0".to_owned()),
            cost_usd: Usd(usd.into()),
            ..finished("fast", 2_000.0)
        };
        report(&full, &run, clear()).headline
    };
    let parked = said(TrialState::Parked, 0);
    assert!(
        parked.contains("waits for a person: the quota is 0"),
        "{parked}"
    );
    assert!(said(TrialState::Queued, 0).ends_with("has not started yet."));
    assert!(said(TrialState::Queued, 9).contains("goes on: $9.00"));
}

#[test]
fn a_run_that_ends_far_too_soon_is_not_praised() {
    let answer = clear();
    let scratch = of(choose(&answer, None, None).unwrap(), false);
    let short = Outcome {
        training_seconds: 600,
        ..finished("fast", 2_000.0)
    };
    let said = report(&scratch, &short, clear()).headline;
    assert!(
        said.contains("check that it trained all of its tokens"),
        "{said}"
    );
}

/// SageMaker ends a job at its limit, and keeps the money.
#[test]
fn a_limit_below_the_projection_is_refused() {
    let answer = clear();
    let row = choose(&answer, None, None).unwrap();
    let (scratch, head) = (of(row, false), of(row, true));
    assert!(is_long_enough(&scratch, 51 * 3600).is_ok());
    let why = is_long_enough(&scratch, 50 * 3600 - 900).unwrap_err();
    assert!(why.contains("SageMaker would end it unfinished"), "{why}");
    // What its trial has trained need not be trained again.
    assert!(is_long_enough(&head, 50 * 3600 - 900).is_ok());
}

/// The clock of spot runs with the time that they wait.
#[test]
fn on_spot_hours_are_those_of_the_clock() {
    let run = Outcome {
        wall_seconds: 7200,
        ..finished("a", 1_000.0)
    };
    assert!((hours(&run) - 1.0).abs() < 1e-9);
    let spot = Outcome {
        purchase_option: PurchaseOption::Spot,
        ..run
    };
    assert!((hours(&spot) - 2.0).abs() < 1e-9);
}

/// Neither SageMaker's limit nor what is compared with the run's own hours counts what it waits.
#[test]
fn a_run_is_planned_without_its_wait() {
    let mut trial = finished("a", 40_000.0);
    trial.expected_wait = Some(Wait {
        hours: 20.0,
        starts: 5,
    });
    let row = answer(&[trial]).ranked[0].clone();
    assert!((row.waiting_hours.unwrap() - 20.0).abs() < 1e-6, "{row:?}");
    let ready = while_training(&answer(&[finished("a", 40_000.0)]).ranked[0]);
    let training = while_training(&row);
    assert!((training.projected_hours - ready.projected_hours).abs() < 0.01);
    let high = |row: &Ranked| row.odds.as_ref().unwrap().hours_high;
    assert!((high(&training) - high(&ready)).abs() < 0.01);
    assert!((high(&row) - high(&training) - 20.0).abs() < 1e-6);
}

/// The most that it may need to the loss, and never more than there is; it is stopped there.
#[test]
fn a_run_to_a_loss_is_planned_for_the_upper_end_of_its_tokens() {
    let (experiment, answer) = (experiment(), clear());
    let row = choose(&answer, None, None).unwrap();
    let asked = FullRunSpec::of(Choice::default(), Usd(900.into()));
    let of = |reached: &[f64]| {
        let target = Target {
            loss: 2.7,
            is_validation: true,
            trials: 2,
            reached_by: 0,
            least: Some(2.69),
        };
        let full = spec(&experiment, row, &asked, TOKENS.towards(target, reached));
        let trial_tokens = full.workload.as_ref().unwrap().trial_tokens;
        (trial_tokens, full.stopping_policy)
    };
    let race = Some(StoppingPolicy::Race);
    let (tokens, policy) = of(&[100e6]);
    assert!((114_000_000..120_000_000).contains(&tokens), "{tokens}");
    assert_eq!(policy, race);
    assert_eq!(of(&[350e6]), (360_000_000, race));
    assert_eq!(of(&[]), (360_000_000, Some(StoppingPolicy::Full)));
}
