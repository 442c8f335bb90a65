//! The gate's rule: single comparisons, and how often it is wrong over thousands of commits.

use std::fmt::Write;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::*;
use crate::spec::ci::Inconclusive;

fn settings() -> GateSettings {
    GateSettings {
        limits: vec![limit(Measure::UsdPerMillionTokens)],
        baseline_branch: "main".to_owned(),
        baseline_trials: 10,
        rounds: 3,
        inconclusive: Inconclusive::Success,
    }
}

fn limit(measure: Measure) -> GateLimit {
    GateLimit {
        measure,
        worse_by_percent: 3.0,
        baseline: None,
    }
}

fn reading(hours: f64) -> Reading {
    Reading {
        candidate: "g5".to_owned(),
        comparable: "same".to_owned(),
        hours_per_million_tokens: Some(hours),
        tokens_per_second: Some(1.0 / hours),
        peak_gpu_memory_percent: Some(80.0),
        train_loss: None,
        validation_loss: None,
        billed_hours: Some(hours),
        is_spot: false,
        usd_per_hour: Some(Usd(rust_decimal::Decimal::from(2))),
    }
}

fn like(hours: &[f64]) -> Baseline {
    Baseline {
        level: hours.iter().map(|hours| reading(*hours)).collect(),
        ..Baseline::default()
    }
}

const STEADY: [f64; 6] = [1.0, 1.004, 0.997, 1.001, 0.999, 1.002];

fn verdict(settings: &GateSettings, hours: &[f64], baseline: &Baseline) -> Judgement {
    let readings: Vec<Reading> = hours.iter().map(|hours| reading(*hours)).collect();
    judge(Some(settings), &readings, Vec::new(), baseline)
}

#[test]
fn one_that_is_eight_percent_dearer_regresses_and_says_by_how_much() {
    let judged = verdict(&settings(), &[1.08, 1.08], &like(&STEADY));
    assert_eq!(judged.verdict, Verdict::Regressed);
    let one = &judged.limits[0];
    let change = one.change.unwrap();
    assert!((change.percent - 7.95).abs() < 0.1, "{change:?}");
    assert!(
        change.low_percent > 3.0 && change.high_percent < 13.0,
        "{change:?}"
    );
    // At two dollars an hour.
    assert!((one.measured.unwrap() - 2.16).abs() < 1e-9);
    assert!((one.baseline.unwrap() - 2.001).abs() < 0.001);
    assert_eq!((one.trials, one.baseline_trials), (2, Some(6)));
    assert!(!one.is_spread_assumed);
}

#[test]
fn equal_and_better_ones_pass_whatever_the_price_was() {
    for hours in [1.0, 1.01, 0.8] {
        let mut baseline = like(&STEADY);
        for one in &mut baseline.level {
            one.usd_per_hour = Some(Usd(rust_decimal::Decimal::from(7)));
        }
        let judged = verdict(&settings(), &[hours], &baseline);
        assert_eq!(judged.verdict, Verdict::Passed, "{hours}: {judged:?}");
    }
}

#[test]
fn fewer_tokens_a_second_are_worse() {
    let settings = GateSettings {
        limits: vec![limit(Measure::TokensPerSecond)],
        ..settings()
    };
    let slower = verdict(&settings, &[1.08, 1.08], &like(&STEADY));
    assert_eq!(slower.verdict, Verdict::Regressed);
    assert!(slower.limits[0].change.unwrap().percent > 7.0);
    let faster = verdict(&settings, &[0.9], &like(&STEADY));
    assert_eq!(faster.verdict, Verdict::Passed);
}

#[test]
fn too_few_to_know_the_spread_leave_open_what_hosts_explain() {
    let judged = verdict(&settings(), &[1.04], &like(&[1.0]));
    assert_eq!(judged.verdict, Verdict::Inconclusive);
    assert!(judged.limits[0].is_spread_assumed && judged.is_worth_another);
    let judged = verdict(&settings(), &[1.3, 1.3], &like(&[1.0]));
    assert_eq!(judged.verdict, Verdict::Regressed);
    // Nothing to compare with: another round would not help.
    let judged = verdict(&settings(), &[1.0], &Baseline::default());
    assert_eq!(judged.verdict, Verdict::Inconclusive);
    assert!(!judged.is_worth_another);
}

#[test]
fn a_number_stands_for_the_baseline() {
    let mut settings = settings();
    settings.limits[0].baseline = Some(2.0);
    assert_eq!(
        verdict(&settings, &[1.2, 1.2], &like(&STEADY)).verdict,
        Verdict::Regressed
    );
    let judged = verdict(&settings, &[1.0], &Baseline::default());
    assert_eq!(judged.verdict, Verdict::Inconclusive, "{judged:?}");
    let judged = verdict(&settings, &[0.9], &Baseline::default());
    assert_eq!(judged.verdict, Verdict::Passed, "{judged:?}");
    assert_eq!(judged.limits[0].baseline_trials, None);
}

#[test]
fn a_level_that_was_accepted_counts_at_once_and_the_spread_is_kept() {
    let baseline = Baseline {
        level: vec![reading(1.1)],
        before: vec![STEADY.iter().map(|hours| reading(*hours)).collect()],
        release: Vec::new(),
    };
    let judged = verdict(&settings(), &[1.1], &baseline);
    assert_eq!(judged.verdict, Verdict::Passed, "{judged:?}");
    assert_eq!(
        verdict(&settings(), &[1.18, 1.18], &baseline).verdict,
        Verdict::Regressed
    );
}

#[test]
fn the_newest_trials_of_a_level_are_the_baseline() {
    let run = |hours: &[f64], begins_level| Accepted {
        readings: hours.iter().map(|hours| reading(*hours)).collect(),
        begins_level,
    };
    let runs = vec![
        run(&[1.2, 1.21], false),
        run(&[1.19], true),
        run(&[1.0, 1.01], false),
    ];
    let baseline = Baseline::of(runs.clone(), 10, Vec::new());
    let hours = |of: &[Reading]| -> Vec<f64> {
        of.iter()
            .filter_map(|one| one.hours_per_million_tokens)
            .collect()
    };
    assert_eq!(hours(&baseline.level), [1.2, 1.21, 1.19]);
    assert_eq!(
        baseline
            .before
            .iter()
            .map(|one| hours(one))
            .collect::<Vec<_>>(),
        [[1.0, 1.01]]
    );
    assert_eq!(hours(&Baseline::of(runs, 2, Vec::new()).level), [1.2, 1.21]);
}

#[test]
fn readings_of_another_thing_are_no_baseline() {
    let mut baseline = like(&STEADY);
    for one in &mut baseline.level {
        "another".clone_into(&mut one.comparable);
    }
    let judged = verdict(&settings(), &[1.3], &baseline);
    assert_eq!(judged.verdict, Verdict::Inconclusive);
    assert_eq!(judged.limits[0].baseline_trials, Some(0));
}

#[test]
fn many_small_steps_show_against_the_release() {
    let baseline = Baseline {
        release: vec![reading(0.9), reading(0.9), reading(0.901)],
        ..like(&STEADY)
    };
    let judged = verdict(&settings(), &[1.0], &baseline);
    assert_eq!(judged.verdict, Verdict::Passed);
    let crept = judged.limits[0].release.unwrap();
    assert!(crept.low_percent > 9.0, "{crept:?}");
}

#[test]
fn what_was_not_measured_is_an_error_unless_the_race_has_stopped_it() {
    let failed = |has_failed| Unmeasured {
        candidate: "p5".to_owned(),
        why: "AlgorithmError".to_owned(),
        has_failed,
    };
    let of = |readings: &[Reading], has_failed| {
        let gate = settings();
        judge(
            Some(&gate),
            readings,
            vec![failed(has_failed)],
            &like(&STEADY),
        )
        .verdict
    };
    assert_eq!(of(&[], true), Verdict::Error);
    assert_eq!(of(&[], false), Verdict::Error);
    assert_eq!(of(&[reading(1.0)], true), Verdict::Error);
    assert_eq!(of(&[reading(1.0)], false), Verdict::Passed);
    assert_eq!(of(&[reading(1.3), reading(1.3)], true), Verdict::Regressed);
    // Cancelled or parked when one trial was worse: a person has stopped it, and nothing is begun.
    let cancelled = judge(
        Some(&settings()),
        &[reading(1.3)],
        vec![Unmeasured::cancelled()],
        &like(&STEADY),
    );
    assert_eq!(
        (cancelled.verdict, cancelled.is_worth_another),
        (Verdict::Error, false)
    );
    // Without a gate, what ran has passed.
    assert_eq!(
        judge(None, &[reading(1.0)], Vec::new(), &like(&[])).verdict,
        Verdict::Passed
    );
    assert_eq!(
        judge(None, &[], Vec::new(), &like(&[])).verdict,
        Verdict::Error
    );
}

#[test]
fn what_is_merged_and_not_worse_becomes_the_baseline() {
    let accepts = |verdict, branch, is_merged| settings().accepts(verdict, branch, is_merged);
    assert!(accepts(Verdict::Passed, Some("main"), true));
    assert!(accepts(Verdict::Inconclusive, Some("main"), true));
    assert!(!accepts(Verdict::Regressed, Some("main"), true));
    assert!(!accepts(Verdict::Error, Some("main"), true));
    assert!(!accepts(Verdict::Passed, Some("main"), false));
    assert!(!accepts(Verdict::Passed, Some("feature"), true));
    assert!(!accepts(Verdict::Passed, None, true));
}

/// What one trial shows, a second one confirms, or the machine was to blame; however many are known of the baseline.
#[test]
fn a_regression_is_confirmed() {
    let ten: Vec<f64> = STEADY
        .into_iter()
        .chain([1.001, 0.999, 1.0, 1.002])
        .collect();
    for baseline in [like(&STEADY), like(&ten)] {
        let said = |hours: &[f64]| {
            let judged = verdict(&settings(), hours, &baseline);
            (judged.verdict, judged.is_worth_another)
        };
        assert_eq!(said(&[1.12]), (Verdict::Inconclusive, true));
        assert_eq!(said(&[1.12, 1.11]), (Verdict::Regressed, false));
        for machine in [&[1.12, 1.0][..], &[1.3, 1.01, 1.0]] {
            assert_eq!(said(machine).0, Verdict::Inconclusive, "{machine:?}");
        }
    }
    let alone = verdict(&settings(), &[1.12], &like(&ten));
    assert!(
        alone
            .summary()
            .ends_with("against 10 earlier, limit 3 %: cannot tell yet, since one trial alone is worse; another trial of the commit settles it"),
        "{}",
        alone.summary()
    );
}

#[test]
fn settings_that_cannot_work_are_named() {
    let mut settings = settings();
    settings.limits.push(limit(Measure::UsdPerMillionTokens));
    settings.limits[0].worse_by_percent = -1.0;
    settings.limits[1].baseline = Some(0.0);
    settings.rounds = 4;
    settings.baseline_trials = 4;
    settings.baseline_branch = String::new();
    let pointers: Vec<String> = settings
        .flaws()
        .into_iter()
        .map(|flaw| flaw.pointer)
        .collect();
    assert_eq!(
        pointers,
        [
            "/gate/limits/0/worse_by_percent",
            "/gate/limits/1/measure",
            "/gate/limits/1/baseline",
            "/gate/baseline_trials",
            "/gate/rounds",
            "/gate/baseline_branch",
        ]
    );
    settings.limits.clear();
    assert_eq!(settings.flaws()[0].pointer, "/gate/limits");
}

/// Draws from a normal distribution.
struct Luck(ChaCha8Rng);

impl Luck {
    fn normal(&mut self) -> f64 {
        let uniform = (f64::from(self.0.next_u32()) + 0.5) / 4_294_967_296.0;
        Normal::standard().inverse_cdf(uniform)
    }
}

/// Shares of commits that are called regressed and inconclusive.
struct Shares {
    regressed: f64,
    inconclusive: f64,
}

/// The verdict on a commit that is so much dearer, after up to three rounds, and its trials.
fn rounds(sd: f64, luck: &mut Luck, level: &[Reading], by: f64) -> (Verdict, Vec<Reading>) {
    let baseline = Baseline {
        level: level.to_vec(),
        ..Baseline::default()
    };
    let mut trials: Vec<Reading> = Vec::new();
    loop {
        trials.push(reading((by.ln_1p() + sd * luck.normal()).exp()));
        let said = judge(Some(&settings()), &trials, Vec::new(), &baseline);
        if !said.is_worth_another || trials.len() == 3 {
            return (said.verdict, trials);
        }
    }
}

/// A branch of equal commits, each `dearer` than the baseline that passed and inconclusive equal ones make; up to three
/// rounds each.
fn branch(sd: f64, dearer: f64, commits: usize, seed: u64) -> Shares {
    let mut luck = Luck(ChaCha8Rng::seed_from_u64(seed));
    let mut level: Vec<Reading> = Vec::new();
    let (mut regressed, mut inconclusive, mut counted) = (0_usize, 0_usize, 0_usize);
    while counted < commits {
        let (verdict, trials) = rounds(sd, &mut luck, &level, 0.0);
        if verdict != Verdict::Regressed {
            level.splice(0..0, trials);
            level.truncate(10);
        }
        let said = if dearer > 0.0 {
            rounds(sd, &mut luck, &level, dearer).0
        } else {
            verdict
        };
        counted += 1;
        regressed += usize::from(said == Verdict::Regressed);
        inconclusive += usize::from(said == Verdict::Inconclusive);
    }
    let share = |count| of_items(count) / of_items(counted);
    Shares {
        regressed: share(regressed),
        inconclusive: share(inconclusive),
    }
}

/// Host spreads of 0.5, 1, 2 and 3 %: what equal commits are called, and those 5 % worse. Of equal ones at most one in
/// twenty may be called worse.
#[test]
fn equal_commits_are_called_worse_in_less_than_one_of_twenty() {
    let mut table = String::new();
    for (sd, power) in [(0.005, 0.99), (0.01, 0.98), (0.02, 0.8), (0.03, 0.5)] {
        let equal = branch(sd, 0.0, 2000, 11);
        let worse = branch(sd, 0.05, 2000, 12);
        let shares =
            [equal.regressed, equal.inconclusive, worse.regressed].map(|share| share * 100.0);
        let [alarms, open, caught] = shares;
        let _ = writeln!(
            table,
            "sd {:.1} %: equal called regressed {alarms:.1} %, inconclusive {open:.0} %; 5 % worse: regressed {caught:.1} %",
            sd * 100.0
        );
        assert!(equal.regressed <= 0.05, "{table}");
        assert!(worse.regressed >= power, "{table}");
    }
    println!("{table}");
}

/// A limit on what nobody reports is no pass, and does not stop the others from being measured again.
#[test]
fn what_is_never_reported_is_an_error() {
    let mut gate = settings();
    gate.limits.push(limit(Measure::ValidationLoss));
    let judged = verdict(&gate, &[1.0], &like(&STEADY));
    assert_eq!(judged.verdict, Verdict::Error);
    let said = judged.summary();
    assert!(
        said.contains("no trial has reported validation_loss"),
        "{said}"
    );
    let dearer = verdict(&gate, &[1.2, 1.2], &like(&STEADY));
    assert_eq!(dearer.verdict, Verdict::Regressed);
}

/// With few trials an observed spread counts with the uncertainty that it has.
#[test]
fn few_trials_that_differ_much_prove_little() {
    let judged = verdict(&settings(), &[1.3], &like(&[1.0, 1.1]));
    assert_eq!(judged.verdict, Verdict::Inconclusive, "{judged:?}");
    let gate = GateSettings {
        limits: vec![limit(Measure::TrainingUsd)],
        ..settings()
    };
    let judged = verdict(&gate, &[1.2], &like(&[1.0]));
    assert_eq!(judged.verdict, Verdict::Inconclusive, "{judged:?}");
}

#[test]
fn a_verdict_is_said_in_one_line() {
    let mut gate = settings();
    gate.limits.push(limit(Measure::TokensPerSecond));
    let said = |hours: &[f64], baseline: &Baseline| verdict(&gate, hours, baseline).summary();
    assert_eq!(
        said(&[1.08, 1.08], &like(&STEADY)),
        "regressed: g5: $2.1600 per million tokens, 7.9 % dearer [+7.3, +8.6] than 6 earlier"
    );
    assert_eq!(
        said(&[1.0], &like(&STEADY)),
        "passed: g5: $2.0000 per million tokens, no dearer [-1.0, +0.9] than 6 earlier"
    );
    assert_eq!(
        said(&[1.0], &like(&[])),
        "inconclusive: g5: $2.0000 per million tokens, with nothing to compare it with yet"
    );
    let open = said(&[1.04], &like(&[1.0]));
    assert!(
        open.starts_with("inconclusive: g5: $2.0800 per million tokens, change +4.0 % (")
            && open.ends_with("since trials are taken to differ by 3.0 % until more are known; 4 more trials would show how much they do"),
        "{open}"
    );
    // No direction is claimed while the interval holds both.
    let equal = said(&[1.0], &like(&[0.95, 1.05, 0.97, 1.03, 1.0, 1.0]));
    assert!(
        equal.contains("change +0.1 % (-") && !equal.contains("dearer"),
        "{equal}"
    );
    assert!(
        equal.contains("cannot tell yet, since trials differ by 3."),
        "{equal}"
    );
    assert!(
        equal.contains("more trials of the commit and as many of the baseline"),
        "{equal}"
    );
    let failed = Unmeasured {
        candidate: "p5".into(),
        why: "x".repeat(300),
        has_failed: true,
    };
    let line = judge(Some(&gate), &[], vec![failed], &like(&[])).summary();
    assert!(line.starts_with("error: p5 was not measured: xxx") && line.chars().count() > 300);
    let ended = Judgement::ended("superseded by b00b1e5d7e55").summary();
    assert_eq!(ended, "superseded by b00b1e5d7e55");
}

/// A loss that explodes, between two trials of which little is known: JSON has no infinity, and what is written must be
/// read again.
#[test]
fn a_difference_beyond_all_bounds_is_written_and_read_again() {
    let judged = verdict(&settings(), &[1.0, 1e300], &like(&[1.0]));
    let text = serde_json::to_string(&judged).unwrap();
    assert!(!text.contains("high_percent\":null"), "{text}");
    assert_eq!(serde_json::from_str::<Judgement>(&text).unwrap(), judged);
    // As earlier versions wrote it.
    let old = r#"{"percent": 1.0, "low_percent": -2.0, "high_percent": null}"#;
    let old: Change = serde_json::from_str(old).unwrap();
    assert!(old.high_percent > 1e8);
}
