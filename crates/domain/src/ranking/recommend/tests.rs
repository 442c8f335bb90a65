//! The recommendation on small hand-made experiments.

use rust_decimal::Decimal;

use super::*;
use crate::finding::{BUDGET_BELOW_TRIAL, Finding, Severity};
use crate::ids::{PriceId, TrialId};
use crate::measure::speed::SteppingShare;
use crate::money::price::PriceStatus;
use crate::ranking::outcome::{Pauses, Predicted, evidence_sha256};

mod odds;
mod until;

fn price(usd: i64, max: Option<i64>, status: PriceStatus) -> Price {
    Price {
        id: PriceId(uuid::Uuid::nil()),
        instance_type: "ml.x".into(),
        region: "us-east-1".into(),
        usd_per_hour: Usd(Decimal::from(usd)),
        usd_per_hour_max: max.map(|usd| Usd(Decimal::from(usd))),
        effective_from: chrono::DateTime::UNIX_EPOCH,
        source: "test".into(),
        status,
        note: String::new(),
        confirmed_at: None,
    }
}

fn outcome(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    let trial = 36_000_000.0 / tokens_per_second;
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a test's small numbers"
    )]
    let seconds = trial as u64;
    Outcome {
        trial_id: TrialId(uuid::Uuid::from_u128(
            u128::from(candidate.len() as u64 * 1000) + u128::from(seconds),
        )),
        candidate: candidate.into(),
        instance_type: format!("ml.{candidate}"),
        instance_count: 1,
        purchase_option: PurchaseOption::OnDemand,
        state: TrialState::Completed,
        reason: None,
        released_at: None,
        refusals: vec![],
        incomparable: None,
        price: Some(price(usd, None, PriceStatus::Listed)),
        tokens_per_second: Some(Steady {
            mean: tokens_per_second,
            half_width: tokens_per_second / 100.0,
            points: 100,
            buckets: 20,
            buckets_dropped: 1,
            from_at: chrono::DateTime::UNIX_EPOCH,
            until_at: chrono::DateTime::UNIX_EPOCH,
        }),
        pauses: Pauses::Unknown,
        predicted: None,
        training_seconds: seconds,
        billable_seconds: seconds,
        wall_seconds: seconds,
        checkpoint_at: None,
        reached: None,
        cost_usd: Usd::ZERO,
        predicted_usd: None,
        expected_wait: None,
        overhead: None,
        tokens_done: None,
        intervals_divided_by: None,
    }
}

const TOKENS: Tokens = Tokens {
    trial: 36_000_000,
    total: 3_600_000_000,
    target: None,
};

fn cheapest() -> ObjectiveSpec {
    ObjectiveSpec {
        minimize: Minimize::Cost,
        full_run_budget_usd: None,
        full_run_deadline_hours: None,
        target_loss: None,
    }
}

#[test]
fn the_dearer_hour_can_be_the_cheaper_run() {
    let got = recommend(
        &[outcome("slow", 30, 10_000.0), outcome("fast", 60, 30_000.0)],
        &cheapest(),
        TOKENS,
    );
    assert_eq!(got.conclusion, Conclusion::Clear);
    assert_eq!(got.ranked[0].candidate, "fast");
    // 3.6e9 tokens at 30,000/s is 33.3 hours at $60.
    assert_eq!(got.ranked[0].projected_cost_usd.to_string(), "$2000.00");
    assert!(got.ranked[0].pareto && !got.ranked[1].pareto);
}

#[test]
fn a_repeat_of_the_winner_is_not_its_runner_up() {
    let got = recommend(
        &[
            outcome("fast", 60, 30_000.0),
            outcome("fast", 60, 30_001.0),
            outcome("slow", 60, 10_000.0),
        ],
        &cheapest(),
        TOKENS,
    );
    assert_eq!(got.conclusion, Conclusion::Clear);
    assert!(
        got.reasons[2].contains("runner-up ml.slow"),
        "{:?}",
        got.reasons
    );
}

#[test]
fn a_deadline_excludes_the_cheap_and_slow() {
    let outcomes = [outcome("slow", 10, 10_000.0), outcome("fast", 60, 30_000.0)];
    let within = |hours| ObjectiveSpec {
        full_run_deadline_hours: Some(hours),
        ..cheapest()
    };
    assert_eq!(
        recommend(&outcomes, &cheapest(), TOKENS).ranked[0].candidate,
        "slow"
    );
    assert_eq!(
        recommend(&outcomes, &within(50.0), TOKENS).ranked[0].candidate,
        "fast"
    );
    assert_eq!(
        recommend(&outcomes, &within(1.0), TOKENS).conclusion,
        Conclusion::Infeasible
    );
}

#[test]
fn what_is_incomparable_is_in_the_table_and_never_in_the_rank() {
    let mut odd = outcome("odd", 1, 90_000.0);
    odd.incomparable = Some(
        Finding::new("global-batch-differs", Severity::Warning, "/candidates/1")
            .says("48 against 64")
            .fix("use 64"),
    );
    let got = recommend(&[outcome("fine", 30, 10_000.0), odd], &cheapest(), TOKENS);
    assert_eq!(got.ranked.len(), 1);
    assert_eq!(got.not_ranked[0].reason, "48 against 64");
    assert_eq!(got.not_ranked[0].fix.as_deref(), Some("use 64"));
}

#[test]
fn an_estimated_price_that_could_turn_the_order_is_not_called_clear() {
    let mut guess = outcome("guess", 50, 30_000.0);
    guess.price = Some(price(50, Some(90), PriceStatus::Estimated));
    let got = recommend(
        &[outcome("known", 60, 30_000.0), guess],
        &cheapest(),
        TOKENS,
    );
    assert_eq!(got.ranked[0].candidate, "guess");
    assert_eq!(got.conclusion, Conclusion::Leading);
}

#[test]
fn spot_is_priced_by_what_was_billed() {
    let mut spot = outcome("spot", 36, 10_000.0);
    spot.purchase_option = PurchaseOption::Spot;
    spot.billable_seconds /= 4;
    let got = recommend(&[spot.clone()], &cheapest(), TOKENS);
    // 100 hours at $36, a quarter billed.
    assert_eq!(got.ranked[0].projected_cost_usd.to_string(), "$900.00");
    spot.state = TrialState::Running;
    assert_eq!(
        recommend(&[spot], &cheapest(), TOKENS).conclusion,
        Conclusion::NotEnoughEvidence
    );
}

#[test]
fn silence_is_not_ranked() {
    let mut quiet = outcome("quiet", 36, 10_000.0);
    quiet.tokens_per_second = None;
    let mut unpriced = outcome("unpriced", 36, 10_000.0);
    unpriced.price = None;
    let got = recommend(&[quiet, unpriced], &cheapest(), TOKENS);
    assert_eq!(got.conclusion, Conclusion::NotEnoughEvidence);
    assert!(
        got.not_ranked[1]
            .fix
            .as_deref()
            .unwrap()
            .contains("PUT /v1/prices")
    );
}

fn predicted(candidate: &str, usd: i64, tokens_per_second: f64) -> Outcome {
    Outcome {
        state: TrialState::Parked,
        reason: Some("the quota is 0".into()),
        tokens_per_second: None,
        predicted: Some(Predicted {
            tokens_per_second,
            log_sd: 0.1,
            own_log_sd: 0.1,
        }),
        training_seconds: 0,
        billable_seconds: 0,
        wall_seconds: 0,
        ..outcome(candidate, usd, tokens_per_second)
    }
}

/// The cheaper one by its forecast was parked for a quota of 0: the answer may not be "Buy" the
/// dearer one, and names what has not run.
#[test]
fn nothing_is_bought_while_a_better_forecast_has_not_run() {
    let parked = predicted("new", 60, 60_000.0);
    let ran = outcome("known", 40, 20_000.0);
    let other = outcome("slow", 40, 10_000.0);
    let got = recommend(&[ran.clone(), other.clone(), parked], &cheapest(), TOKENS);
    assert_eq!(got.conclusion, Conclusion::Leading);
    assert_eq!(got.not_ranked[0].reason, "it has not run: the quota is 0");
    let odds = got.not_ranked[0].odds.as_ref().unwrap();
    assert!(odds.p_best > 0.9, "{odds:?}");
    assert!(
        got.reasons
            .iter()
            .any(|why| why.contains("(new) has not been measured")),
        "{:?}",
        got.reasons
    );
    // One that is three times as dear by its forecast keeps nobody from buying.
    let hopeless = predicted("dear", 180, 20_000.0);
    let got = recommend(&[ran, other, hopeless], &cheapest(), TOKENS);
    assert_eq!(got.conclusion, Conclusion::Clear, "{:?}", got.reasons);
}

fn refused_by(rule: &str) -> Finding {
    Finding::new(rule, Severity::Refused, "")
}

/// What the experiment's budget could not measure may still be the one to buy; what does not fit may
/// not.
#[test]
fn what_the_budget_kept_from_running_still_counts() {
    let ran = outcome("known", 40, 20_000.0);
    let other = outcome("slow", 40, 10_000.0);
    let conclusion = |refusals: Vec<Finding>| {
        let mut refused = predicted("new", 60, 60_000.0);
        refused.state = TrialState::Refused;
        refused.refusals = refusals;
        let all = [ran.clone(), other.clone(), refused];
        recommend(&all, &cheapest(), TOKENS).conclusion
    };
    assert_eq!(conclusion(vec![]), Conclusion::Leading);
    assert_eq!(
        conclusion(vec![refused_by(BUDGET_BELOW_TRIAL)]),
        Conclusion::Leading
    );
    assert_eq!(
        conclusion(vec![refused_by("does-not-fit")]),
        Conclusion::Clear
    );
}

/// One waits for two hours before its first step: a short run costs more on it, and each token less.
#[test]
fn the_cost_of_a_token_leaves_out_what_is_paid_once() {
    let mut slow_start = outcome("slow-start", 40, 20_000.0);
    slow_start.training_seconds += 7200;
    slow_start.billable_seconds += 7200;
    // Waiting for capacity is not billed: it makes no token cheaper.
    slow_start.wall_seconds += 36_000;
    let all = [slow_start, outcome("steady", 40, 18_000.0)];
    let short = Tokens {
        total: 10 * TOKENS.trial,
        ..TOKENS
    };
    let first = |minimize: Minimize| {
        let objective = ObjectiveSpec {
            minimize,
            ..cheapest()
        };
        let got = recommend(&all, &objective, short);
        assert!(got.ranked[0].odds.as_ref().unwrap().p_best > 0.5);
        got.ranked[0].candidate.clone()
    };
    assert_eq!(first(Minimize::Cost), "steady");
    assert_eq!(first(Minimize::UsdPerMillionTokens), "slow-start");
}

/// What takes place between steps recurs: a run of a hundred times the length loses a hundred times as
/// much, and does not pay it once.
#[test]
fn pauses_recur() {
    // A tenth of 2,000 seconds is lost, and 100 seconds once.
    let mut ran = outcome("ran", 36, 20_000.0);
    ran.training_seconds = 2_100;
    ran.billable_seconds = 2_100;
    ran.wall_seconds = 2_100;
    let with = |pauses: Pauses| {
        let own = Outcome {
            pauses,
            ..ran.clone()
        };
        let got = recommend(&[own, predicted("new", 36, 20_000.0)], &cheapest(), TOKENS);
        let new = got.not_ranked[0].odds.clone().unwrap();
        (got.ranked[0].projected_hours, new.hours_low)
    };
    let share = SteppingShare {
        mean: 0.9,
        sd: 0.001,
    };
    let full = f64::from(u32::try_from(TOKENS.total / 20_000).unwrap()) / 3600.0;
    let (known, new) = with(Pauses::Apart(share));
    assert!(
        (known - full / 0.9 - 100.0 / 3600.0).abs() < 0.01,
        "{known}"
    );
    let (unknown, new_unknown) = with(Pauses::Unknown);
    assert!((unknown - full - 300.0 / 3600.0).abs() < 0.01, "{unknown}");
    // What has not run is expected to lose as much.
    assert!(
        (new / new_unknown * 0.9 - 1.0).abs() < 0.035,
        "{new} {new_unknown}"
    );
}

#[test]
fn the_same_evidence_has_the_same_hash() {
    let all = [outcome("a", 40, 20_000.0), outcome("b", 30, 18_000.0)];
    let hash = |all: &[Outcome]| evidence_sha256(all, &cheapest(), TOKENS);
    assert_eq!(hash(&all), hash(&all.clone()));
    assert_eq!(hash(&all).len(), 64);
    let mut other = all.clone();
    other[1].billable_seconds += 1;
    assert_ne!(hash(&all), hash(&other));
}

/// Cancelled before it ran is as unknown as parked.
#[test]
fn a_cancelled_trial_that_never_ran_still_counts() {
    let mut cancelled = predicted("new", 60, 60_000.0);
    cancelled.state = TrialState::Stopped;
    let got = recommend(
        &[outcome("known", 40, 20_000.0), cancelled],
        &cheapest(),
        TOKENS,
    );
    assert_eq!(got.conclusion, Conclusion::Leading);
    assert!(!got.provisional);
}

/// A prediction is corrected by how far the same code was off on what ran.
#[test]
fn a_prediction_learns_from_the_same_code() {
    let mut ran = outcome("known", 40, 10_000.0);
    ran.predicted = Some(Predicted {
        tokens_per_second: 20_000.0,
        log_sd: 0.36,
        own_log_sd: 0.1,
    });
    let new = predicted("new", 40, 20_000.0);
    let got = recommend(&[ran, new], &cheapest(), TOKENS);
    let odds = got.not_ranked[0].odds.as_ref().unwrap();
    // Uncorrected, it would be twice as fast, and certainly the best.
    assert!((0.5..0.95).contains(&odds.p_best), "{odds:?}");
}

/// A type whose setting the law hardly knows says little of one that it knows, and its own generation
/// says more than another.
#[test]
fn what_is_known_badly_teaches_little() {
    let of = |instance_type: &str, speed: f64, own_log_sd: f64| {
        let mut ran = outcome(instance_type, 40, speed);
        ran.instance_type = instance_type.to_owned();
        ran.predicted = Some(Predicted {
            tokens_per_second: 20_000.0,
            log_sd: 0.35_f64.hypot(own_log_sd),
            own_log_sd,
        });
        ran
    };
    let hours = |ran: &[Outcome]| {
        let mut new = predicted("ml.p5e.48xlarge", 40, 20_000.0);
        new.instance_type = "ml.p5e.48xlarge".to_owned();
        let got = recommend(&[ran, &[new]].concat(), &cheapest(), TOKENS);
        let odds = got.not_ranked[0].odds.clone().unwrap();
        (odds.hours_low * odds.hours_high).sqrt()
    };
    // The same code came out as predicted on its own generation, and at half of it elsewhere.
    let (kin, odd) = (
        of("ml.p5.48xlarge", 20_000.0, 0.1),
        of("ml.p4d.24xlarge", 10_000.0, 0.3),
    );
    let (of_kin, of_both) = (
        hours(std::slice::from_ref(&kin)),
        hours(&[kin.clone(), odd]),
    );
    assert!((of_both / of_kin - 1.0).abs() < 0.06, "{of_kin} {of_both}");
    // Where another generation is far off, it is that generation: the nearer kin still tells.
    let known = of("ml.p4d.24xlarge", 10_000.0, 0.1);
    let other = hours(&[kin, known.clone()]);
    assert!(
        of_kin < other && other < 0.75 * hours(&[known]),
        "{of_kin} {other}"
    );
}

/// What measurements teach does not depend on the order of the candidates.
#[test]
fn the_order_of_candidates_teaches_nothing() {
    let of = |instance_type: &str, speed: f64| {
        let mut ran = outcome(instance_type, 40, speed);
        ran.instance_type = instance_type.to_owned();
        ran.predicted = Some(Predicted {
            tokens_per_second: 20_000.0,
            log_sd: 0.36,
            own_log_sd: 0.1,
        });
        ran
    };
    let mut new = predicted("ml.p5e.48xlarge", 40, 20_000.0);
    new.instance_type = "ml.p5e.48xlarge".to_owned();
    let (a, b) = (
        of("ml.p5.48xlarge", 24_000.0),
        of("ml.p4d.24xlarge", 12_000.0),
    );
    let hours = |ran: &[Outcome]| {
        let got = recommend(
            &[ran, std::slice::from_ref(&new)].concat(),
            &cheapest(),
            TOKENS,
        );
        let odds = got.not_ranked[0].odds.clone().unwrap();
        (odds.hours_low, odds.hours_high)
    };
    let (there, back) = (hours(&[a.clone(), b.clone()]), hours(&[b, a]));
    assert!((there.0 / back.0 - 1.0).abs() < 1e-9, "{there:?} {back:?}");
    assert!((there.1 / back.1 - 1.0).abs() < 1e-9, "{there:?} {back:?}");
    // And its own generation counts: two thirds of the other's hours, not the mean of both.
    assert!(there.1 < 62.0, "{there:?}");
}

/// What the answer saves is counted against what would have been bought by prediction.
#[test]
fn an_answer_says_what_it_saves_against_the_prediction() {
    let said = |fast: f64, slow: f64| {
        let of = |name: &str, speed: f64, expected: f64| {
            let mut ran = outcome(name, 60, speed);
            ran.cost_usd = Usd(30.into());
            ran.predicted = Some(Predicted {
                tokens_per_second: expected,
                log_sd: 0.36,
                own_log_sd: 0.1,
            });
            ran
        };
        let got = recommend(
            &[of("fast", 30_000.0, fast), of("slow", 15_000.0, slow)],
            &cheapest(),
            TOKENS,
        );
        assert_eq!(got.conclusion, Conclusion::Clear);
        got.reasons.last().unwrap().clone()
    };
    let wrong = said(20_000.0, 25_000.0);
    assert!(
        wrong.starts_with("the predictions alone would have bought slow: measuring saves $"),
        "{wrong}"
    );
    assert!(wrong.ends_with("million tokens on"), "{wrong}");
    let right = said(30_000.0, 15_000.0);
    assert!(
        right.ends_with("measuring confirmed it and did not change the choice"),
        "{right}"
    );
}

#[test]
fn repeats_are_one_choice_with_their_mean() {
    let got = recommend(
        &[
            outcome("a", 60, 30_000.0),
            outcome("a", 60, 31_000.0),
            outcome("a", 60, 32_000.0),
            outcome("b", 60, 10_000.0),
        ],
        &cheapest(),
        TOKENS,
    );
    assert_eq!(got.ranked.len(), 2);
    assert!((got.ranked[0].tokens_per_second - 30_989.0).abs() < 1.0);
    assert_eq!(got.conclusion, Conclusion::Clear);
}

/// Two equal arms: machines differ, so a lead of 3 % is no purchase.
#[test]
fn a_lead_within_the_luck_of_the_machines_is_no_purchase() {
    let got = recommend(
        &[outcome("a", 60, 30_900.0), outcome("b", 60, 30_000.0)],
        &cheapest(),
        TOKENS,
    );
    let odds = got.ranked[0].odds.as_ref().unwrap();
    assert!((0.6..0.95).contains(&odds.p_best), "{odds:?}");
}

#[test]
fn one_choice_alone_is_compared_with_nothing() {
    let got = recommend(&[outcome("a", 60, 30_000.0)], &cheapest(), TOKENS);
    assert_eq!(got.conclusion, Conclusion::Leading);
    assert!(
        got.reasons
            .iter()
            .any(|why| why.contains("no other choice"))
    );
}

/// Budget $2,500: A at $2,499 in 72 h and B at $2,501 in 20 h. Each keeps to it in every second
/// run, so neither is bought.
#[test]
fn a_budget_at_the_projection_is_a_coin_flip() {
    let of = |candidate, usd, hours: f64| outcome(candidate, usd, 3.6e9 / hours / 3600.0);
    let objective = ObjectiveSpec {
        full_run_budget_usd: Some(Usd(Decimal::from(2500))),
        ..cheapest()
    };
    let got = recommend(
        &[of("a", 34, 73.5), of("b", 125, 20.008)],
        &objective,
        TOKENS,
    );
    assert_eq!(got.conclusion, Conclusion::Leading);
    for row in &got.ranked {
        let p = row.odds.as_ref().unwrap().p_within_budget.unwrap();
        assert!((0.3..0.7).contains(&p), "{row:?}");
    }
}

/// One calm hour of spot is no evidence of the next sixty.
#[test]
fn spot_is_leaned_towards_at_most() {
    let mut spot = outcome("spot", 36, 10_000.0);
    spot.purchase_option = PurchaseOption::Spot;
    spot.billable_seconds /= 4;
    let got = recommend(&[spot, outcome("slow", 60, 10_000.0)], &cheapest(), TOKENS);
    assert_eq!(got.ranked[0].candidate, "spot");
    assert_eq!(got.conclusion, Conclusion::Leading);
}
