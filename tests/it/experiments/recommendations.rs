//! Thirty recommendations as people read them: the headline and the reasons of hand-made experiments. Read the
//! snapshot aloud after a change of words.

use std::fmt::Write;

use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::ids::{PriceId, TrialId};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_domain::measure::overhead::Overhead;
use bakeoff_domain::measure::speed::SteppingShare;
use bakeoff_domain::measure::steady::Steady;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::price::{Price, PriceStatus};
use bakeoff_domain::ranking::outcome::{Outcome, Pauses, Predicted, Reached, Target, Tokens, Wait};
use bakeoff_domain::ranking::recommend::recommend;
use bakeoff_domain::spec::{Minimize, ObjectiveSpec, PurchaseOption};
use chrono::{DateTime, TimeDelta};

const TOKENS: Tokens = Tokens {
    trial: 300_000_000,
    total: 20_000_000_000,
    target: None,
};

fn price(usd: f64, max: Option<f64>, status: PriceStatus) -> Price {
    Price {
        id: PriceId(uuid::Uuid::nil()),
        instance_type: "ml.x".to_owned(),
        region: "us-east-1".to_owned(),
        usd_per_hour: Usd::from_f64(usd).unwrap(),
        usd_per_hour_max: max.and_then(Usd::from_f64),
        effective_from: DateTime::UNIX_EPOCH,
        source: "AWS Price List API".to_owned(),
        status,
        note: String::new(),
        confirmed_at: None,
    }
}

/// Held back, and predicted to train at this speed.
fn waiting(candidate: &str, usd: f64, tokens_per_second: f64) -> Outcome {
    Outcome {
        trial_id: TrialId(uuid::Uuid::nil()),
        candidate: candidate.to_owned(),
        instance_type: format!("ml.{candidate}.48xlarge"),
        instance_count: 1,
        purchase_option: PurchaseOption::OnDemand,
        state: TrialState::Stopped,
        reason: Some(
            "not started: measuring it costs about $20.00 and is expected to save $4.00 of the full run"
                .to_owned(),
        ),
        released_at: None,
        refusals: Vec::new(),
        incomparable: None,
        price: Some(price(usd, None, PriceStatus::Listed)),
        tokens_per_second: None,
        pauses: Pauses::Unknown,
        intervals_divided_by: None,
        predicted: Some(Predicted {
            tokens_per_second,
            log_sd: 0.35,
            own_log_sd: 0.11,
        }),
        expected_wait: None,
        overhead: Some(Overhead::assumed(0.0)),
        tokens_done: None,
        training_seconds: 0,
        billable_seconds: 0,
        wall_seconds: 0,
        checkpoint_at: None,
        reached: None,
        cost_usd: Usd::ZERO,
        predicted_usd: None,
    }
}

/// Stopped after half an hour, when its speed was known; it was predicted a tenth faster.
fn measured(candidate: &str, usd: f64, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Stopped,
        reason: Some("measured: running on would hardly narrow it".to_owned()),
        released_at: Some(DateTime::UNIX_EPOCH),
        tokens_per_second: Some(Steady {
            mean: tokens_per_second,
            half_width: tokens_per_second / 50.0,
            points: 100,
            buckets: 20,
            buckets_dropped: 1,
            from_at: DateTime::UNIX_EPOCH,
            until_at: DateTime::UNIX_EPOCH + TimeDelta::minutes(25),
        }),
        pauses: Pauses::Apart(SteppingShare {
            mean: 0.96,
            sd: 0.02,
        }),
        tokens_done: Some(tokens_per_second * 0.96 * 1500.0),
        training_seconds: 1800,
        billable_seconds: 1800,
        wall_seconds: 2000,
        cost_usd: Usd::from_f64(usd / 2.0).unwrap(),
        ..waiting(candidate, usd, 1.1 * tokens_per_second)
    }
}

fn spot(outcome: Outcome) -> Outcome {
    Outcome {
        purchase_option: PurchaseOption::Spot,
        state: TrialState::Completed,
        billable_seconds: 2_400,
        training_seconds: 7_200,
        wall_seconds: 9_000,
        ..outcome
    }
}

fn refused(outcome: Outcome, rule: &str, message: &str, fix: &str) -> Outcome {
    Outcome {
        state: TrialState::Refused,
        reason: None,
        refusals: vec![Finding {
            rule: rule.to_owned(),
            severity: Severity::Refused,
            pointer: "/candidates/2".to_owned(),
            message: message.to_owned(),
            fix: fix.to_owned(),
            source: "Bakeoff".to_owned(),
            patch: Vec::new(),
            candidates: std::collections::BTreeSet::new(),
        }],
        ..outcome
    }
}

fn ended(outcome: Outcome, state: TrialState, reason: &str) -> Outcome {
    Outcome {
        state,
        reason: Some(reason.to_owned()),
        tokens_per_second: None,
        pauses: Pauses::Unknown,
        tokens_done: None,
        ..outcome
    }
}

fn priced(outcome: Outcome, price: Option<Price>) -> Outcome {
    Outcome { price, ..outcome }
}

/// What is asked for.
struct Asked {
    objective: ObjectiveSpec,
    tokens: Tokens,
}

fn cheapest() -> Asked {
    Asked {
        objective: ObjectiveSpec {
            minimize: Minimize::Cost,
            full_run_budget_usd: None,
            full_run_deadline_hours: None,
            target_loss: None,
        },
        tokens: TOKENS,
    }
}

fn by(minimize: Minimize) -> Asked {
    let mut asked = cheapest();
    asked.objective.minimize = minimize;
    asked
}

fn within(budget: Option<f64>, deadline: Option<f64>) -> Asked {
    let mut asked = cheapest();
    asked.objective.full_run_budget_usd = budget.and_then(Usd::from_f64);
    asked.objective.full_run_deadline_hours = deadline;
    asked
}

fn towards(reached_by: usize, least: Option<f64>) -> Asked {
    let mut asked = cheapest();
    asked.objective.target_loss = Some(2.1);
    asked.tokens.target = Some(Target {
        loss: 2.1,
        is_validation: true,
        trials: 2,
        reached_by,
        least,
    });
    asked
}

/// What was asked, of which trials, and what it is called.
type Told = (&'static str, Vec<Outcome>, Asked);

fn clear_ones() -> Vec<Told> {
    let p5 = || measured("p5", 63.3, 70_000.0);
    let p4d = || measured("p4d", 25.3, 20_000.0);
    vec![
        ("one clearly first", vec![p5(), p4d()], cheapest()),
        (
            "the dearer is faster",
            vec![measured("p4d", 25.3, 33_000.0), p5()],
            cheapest(),
        ),
        ("by time", vec![p5(), p4d()], by(Minimize::Time)),
        (
            "per token",
            vec![p5(), p4d()],
            by(Minimize::UsdPerMillionTokens),
        ),
        (
            "within a budget",
            vec![p5(), p4d()],
            within(Some(6_500.0), None),
        ),
        (
            "within a deadline",
            vec![p5(), p4d()],
            within(None, Some(120.0)),
        ),
        (
            "others never started",
            vec![
                p5(),
                waiting("g5", 20.4, 4_000.0),
                waiting("g6", 16.7, 5_000.0),
            ],
            cheapest(),
        ),
        (
            "six choices",
            vec![
                p5(),
                p4d(),
                waiting("g5", 20.4, 4_000.0),
                waiting("g6", 16.7, 5_000.0),
                waiting("p4de", 31.6, 21_000.0),
                waiting("p5en", 72.8, 60_000.0),
            ],
            cheapest(),
        ),
        (
            "a failed one",
            vec![
                p5(),
                p4d(),
                ended(
                    measured("p5e", 68.0, 1.0),
                    TrialState::Failed,
                    "An accelerator ran out of memory: 1.50 GiB more did not fit",
                ),
            ],
            cheapest(),
        ),
        (
            "capacity never came",
            vec![
                p5(),
                p4d(),
                ended(
                    waiting("p5en", 72.8, 70_000.0),
                    TrialState::Failed,
                    "no capacity within 72 hours",
                ),
            ],
            cheapest(),
        ),
    ]
}

fn open_ones() -> Vec<Told> {
    let p5 = || measured("p5", 63.3, 70_000.0);
    vec![
        (
            "two alike",
            vec![p5(), measured("p5e", 68.0, 75_000.0)],
            cheapest(),
        ),
        ("alone", vec![p5()], cheapest()),
        (
            "one that is likelier has not run",
            vec![
                measured("p4d", 25.3, 20_000.0),
                ended(
                    waiting("p5", 63.3, 90_000.0),
                    TrialState::Parked,
                    "its quota is 0: ask for more in Service Quotas",
                ),
            ],
            cheapest(),
        ),
        (
            "an estimated price leaves it open",
            vec![
                measured("p4d", 25.3, 27_000.0),
                priced(p5(), Some(price(60.0, Some(90.0), PriceStatus::Estimated))),
            ],
            cheapest(),
        ),
    ]
}

fn left_out_ones() -> Vec<Told> {
    let p5 = || measured("p5", 63.3, 70_000.0);
    vec![
        (
            "a price is missing",
            vec![
                p5(),
                measured("p4d", 25.3, 20_000.0),
                priced(waiting("p5e", 68.0, 90_000.0), None),
            ],
            cheapest(),
        ),
        (
            "refused for a price",
            vec![
                p5(),
                measured("p4d", 25.3, 20_000.0),
                refused(
                    priced(waiting("p5e", 68.0, 90_000.0), None),
                    "price-unknown",
                    "no known price for ml.p5e.48xlarge in us-east-1: its cost cannot be bounded",
                    "PUT /v1/prices/ml.p5e.48xlarge with your own rate",
                ),
            ],
            cheapest(),
        ),
        (
            "refused for the budget",
            vec![
                p5(),
                measured("p4d", 25.3, 20_000.0),
                refused(
                    waiting("p5en", 72.8, 70_000.0),
                    "budget-below-trial",
                    "one trial of p5en may cost $420.00, which is reserved before it starts",
                    "raise budget_usd",
                ),
            ],
            cheapest(),
        ),
        (
            "refused as it does not fit",
            vec![
                p5(),
                refused(
                    waiting("g5", 20.4, 4_000.0),
                    "does-not-fit",
                    "needs 31 GiB of 22 GiB",
                    "set zero_stage 3",
                ),
            ],
            cheapest(),
        ),
        (
            "another batch",
            vec![p5(), measured("p4d", 25.3, 20_000.0), {
                let mut odd = measured("p4de", 31.6, 23_000.0);
                odd.incomparable = Some(
                    refused(
                        odd.clone(),
                        "global-batch-differs",
                        "p4de trains 48 sequences per step, the others 64",
                        "set gradient_accumulation_steps 2",
                    )
                    .refusals
                    .remove(0),
                );
                odd
            }],
            cheapest(),
        ),
    ]
}

fn special_ones() -> Vec<Told> {
    let p5 = || measured("p5", 63.3, 70_000.0);
    vec![
        ("spot first", vec![spot(p5()), p5()], cheapest()),
        (
            "waits for instances",
            vec![
                {
                    let mut slow = p5();
                    slow.expected_wait = Some(Wait {
                        hours: 6.5,
                        starts: 4,
                    });
                    slow
                },
                measured("p4d", 25.3, 20_000.0),
            ],
            by(Minimize::Time),
        ),
    ]
}

fn hard_ones() -> Vec<Told> {
    let p5 = || measured("p5", 63.3, 70_000.0);
    let p4d = || measured("p4d", 25.3, 20_000.0);
    vec![
        (
            "no budget is enough",
            vec![p5(), p4d()],
            within(Some(500.0), None),
        ),
        (
            "no deadline is kept",
            vec![p5(), p4d()],
            within(None, Some(10.0)),
        ),
        (
            "the deadline is close",
            vec![p5(), p4d()],
            within(None, Some(84.0)),
        ),
        (
            "the cheap one is late",
            vec![measured("p4d", 25.3, 30_000.0), p5()],
            within(None, Some(100.0)),
        ),
        (
            "nothing measured yet",
            vec![
                waiting("p5", 63.3, 70_000.0),
                waiting("p4d", 25.3, 20_000.0),
            ],
            cheapest(),
        ),
        (
            "all failed",
            vec![
                ended(
                    p5(),
                    TrialState::Failed,
                    "ModuleNotFoundError: No module named 'flash_attn'",
                ),
                ended(
                    p4d(),
                    TrialState::Failed,
                    "ModuleNotFoundError: No module named 'flash_attn'",
                ),
            ],
            cheapest(),
        ),
        (
            "the target was not reached",
            vec![p5(), p4d()],
            towards(0, Some(2.4)),
        ),
        (
            "the target was reached",
            vec![p5(), p4d()],
            towards(2, Some(2.0)),
        ),
        (
            "a trial has the model",
            vec![
                {
                    let mut done = p5();
                    done.reached = Some(Reached {
                        at: DateTime::UNIX_EPOCH,
                        tokens: 280e6,
                        usd: Usd::from_f64(41.04),
                    });
                    done.checkpoint_at = Some(DateTime::UNIX_EPOCH + TimeDelta::minutes(5));
                    done
                },
                p4d(),
            ],
            towards(1, Some(2.1)),
        ),
    ]
}

#[test]
fn thirty_recommendations_read_well() {
    let all = [
        clear_ones(),
        open_ones(),
        left_out_ones(),
        special_ones(),
        hard_ones(),
    ];
    let all: Vec<Told> = all.into_iter().flatten().collect();
    assert_eq!(all.len(), 30);
    let mut text = String::new();
    for (title, outcomes, asked) in all {
        let answer = recommend(&outcomes, &asked.objective, asked.tokens);
        writeln!(text, "## {title}\n{}", answer.headline).unwrap();
        for reason in &answer.reasons {
            writeln!(text, "- {reason}").unwrap();
        }
        text.push('\n');
    }
    insta::assert_snapshot!(text);
}
