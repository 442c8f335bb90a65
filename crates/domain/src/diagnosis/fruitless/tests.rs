//! Troubles found in hand-made trials that teach nothing, and none in healthy ones.

use proptest::prelude::*;
use rust_decimal::Decimal;

use super::*;

fn at(minutes: i64) -> DateTime<Utc> {
    DateTime::UNIX_EPOCH + TimeDelta::minutes(minutes)
}

fn definition(regex: &str, meaning: Meaning) -> MetricDefinition {
    MetricDefinition {
        name: "train:speed".to_owned(),
        regex: regex.to_owned(),
        meaning,
    }
}

/// What the script prints each minute.
fn log(minutes: i64) -> Vec<String> {
    (0..minutes)
        .map(|minute| {
            format!(
                "step={} loss=3.{minute} samples_per_second=0.92",
                10 * minute
            )
        })
        .collect()
}

fn trial<'a>(definitions: &'a [MetricDefinition], lines: &'a [String]) -> RunningTrial<'a> {
    RunningTrial {
        training_since: at(0),
        now: at(12),
        definitions,
        has_speed: false,
        has_speed_elsewhere: false,
        loss: None,
        lines: Some(lines),
        tokens_per_second: None,
        predicted: None,
        sequence_length: 2048,
        utilization: &[],
        usd_per_hour: Usd(Decimal::from(63)),
    }
}

fn kinds(trial: &RunningTrial<'_>) -> Vec<TroubleKind> {
    troubles(trial).iter().map(Trouble::kind).collect()
}

#[test]
fn patterns_that_meet_no_line_are_told_with_those_that_would() {
    let own = [definition(
        "'train_samples_per_second': ([0-9.]+)",
        Meaning::SamplesPerSecond,
    )];
    let lines = log(12);
    let found = troubles(&trial(&own, &lines));
    let [Trouble::NoReadings(found)] = found.as_slice() else {
        panic!("{found:?}");
    };
    assert_eq!(found.patterns[0].regex, own[0].regex);
    assert_eq!((found.lines, found.last_lines.len()), (12, SHOWN));
    assert_eq!(found.last_lines[2], lines[11]);
    let operation = &found.patch[0];
    assert_eq!(operation.path, "/workload/metrics/0/regex");
    let proposed = operation.value.as_ref().and_then(|value| value.as_str());
    let mended = definition(proposed.unwrap(), Meaning::SamplesPerSecond);
    assert_eq!(Pattern::of(&mended).unwrap().value(&lines[11]), Some(0.92));
}

#[test]
fn patterns_that_read_something_are_given_longer_and_the_trial_goes_on() {
    let loss = definition("loss=([0-9.]+)", Meaning::TrainLoss);
    let speed = definition("tokens_per_second=([0-9.]+)", Meaning::TokensPerSecond);
    let (both, lines) = ([loss, speed.clone()], log(12));
    let only_speed = [speed];
    let elsewhere = RunningTrial {
        has_speed_elsewhere: true,
        ..trial(&only_speed, &lines)
    };
    for slow in [trial(&both, &lines), elsewhere] {
        assert_eq!(
            kinds(&slow),
            [],
            "a speed each 200 steps may take a quarter of an hour"
        );
        let later = RunningTrial {
            now: at(31),
            ..slow
        };
        let found = troubles(&later);
        let [Trouble::NoReadings(found)] = found.as_slice() else {
            panic!("{found:?}");
        };
        assert!(found.is_read_otherwise);
    }
    let wrong = [definition("speed=([0-9.]+)", Meaning::TokensPerSecond)];
    let found = troubles(&trial(&wrong, &lines));
    assert!(matches!(&found[..], [Trouble::NoReadings(none)] if !none.is_read_otherwise));
}

#[test]
fn a_log_that_a_pattern_meets_or_that_says_nothing_yet_is_no_trouble() {
    let own = [definition(
        "samples_per_second=([0-9.]+)",
        Meaning::SamplesPerSecond,
    )];
    let lines = log(12);
    assert_eq!(kinds(&trial(&own, &lines)), []);
    let wrong = [definition("speed=([0-9.]+)", Meaning::TokensPerSecond)];
    let quiet = vec!["Loading checkpoint shards".to_owned(); 50];
    assert_eq!(kinds(&trial(&wrong, &quiet)), []);
    let early = RunningTrial {
        now: at(9),
        ..trial(&wrong, &lines)
    };
    assert_eq!(kinds(&early), []);
    let pushed = RunningTrial {
        has_speed: true,
        ..trial(&wrong, &lines)
    };
    assert_eq!(kinds(&pushed), []);
    assert!(needs_log(&trial(&wrong, &lines)) && !needs_log(&early) && !needs_log(&pushed));
}

#[test]
fn a_loss_is_lost_after_some_lines_and_not_after_one() {
    let own = [definition("step=([0-9]+)", Meaning::Step)];
    let mut lines = log(12);
    lines[10] = "step=100 loss=nan".to_owned();
    assert_eq!(kinds(&trial(&own, &lines)), []);
    lines[11] = "step=110 loss=nan".to_owned();
    lines.push("step=120 loss=inf".to_owned());
    assert_eq!(kinds(&trial(&own, &lines)), [TroubleKind::LossNotFinite]);
    let pushed = RunningTrial {
        loss: Some(ReportedLoss {
            is_finite: false,
            last_at: at(11),
        }),
        lines: None,
        ..trial(&own, &[])
    };
    assert_eq!(kinds(&pushed), [TroubleKind::LossNotFinite]);
}

#[test]
fn a_unit_is_doubted_only_where_another_fits() {
    let predicted = PredictedSpeed {
        low: 50_000.0,
        expected: 65_000.0,
        high: 85_000.0,
    };
    let of = |tokens_per_second: f64| {
        let one = RunningTrial {
            has_speed: true,
            tokens_per_second: Some(tokens_per_second),
            predicted: Some(predicted),
            ..trial(&[], &[])
        };
        match troubles(&one).as_slice() {
            [Trouble::UnitDoubtful(unit)] => unit.likely.clone(),
            [] => String::new(),
            other => panic!("{other:?}"),
        }
    };
    assert!(of(31.7).starts_with("samples per second"), "{}", of(31.7));
    assert!(of(65.0).starts_with("tokens per millisecond"));
    assert!(of(65_000_000.0).contains("milliseconds"));
    // Slow is not another unit.
    for honest in [65_000.0, 6_000.0, 700.0, 5.0] {
        assert_eq!(of(honest), "", "{honest}");
    }
}

fn minutes(from: i64, until: i64, percent: f64) -> Vec<Bucket> {
    (from..until)
        .map(|minute| Bucket {
            start_at: at(minute),
            points: 1,
            mean: percent,
            min: percent,
            max: percent,
            last_at: at(minute),
            last_step: None,
            last: percent,
        })
        .collect()
}

#[test]
fn accelerators_idle_after_a_quarter_of_an_hour_of_nothing() {
    let of = |utilization: &[Bucket], now: i64| {
        kinds(&RunningTrial {
            has_speed: true,
            now: at(now),
            utilization,
            lines: None,
            ..trial(&[], &[])
        })
    };
    let idle = [TroubleKind::AcceleratorsIdle];
    assert_eq!(of(&minutes(5, 30, 1.0), 31), idle);
    assert_eq!(of(&minutes(5, 30, 60.0), 31), []);
    assert_eq!(of(&minutes(20, 30, 1.0), 31), []);
    assert_eq!(of(&minutes(5, 30, 1.0), 90), []);
    let busy_before = [minutes(0, 10, 90.0), minutes(10, 40, 1.0)].concat();
    assert_eq!(of(&busy_before, 41), idle);
    let an_evaluation = [minutes(0, 30, 90.0), minutes(30, 40, 1.0)].concat();
    assert_eq!(of(&an_evaluation, 41), []);
}

proptest! {
    /// A healthy trial has no trouble: its patterns meet its lines, its loss is finite, its speed is near its
    /// prediction, and its accelerators work.
    #[test]
    fn a_healthy_trial_has_no_trouble(
        now in 0_i64..300,
        speed in 0.1_f64..10.0,
        percent in 5.0_f64..100.0,
        has_speed in any::<bool>(),
    ) {
        let own = [definition("samples_per_second=([0-9.]+)", Meaning::SamplesPerSecond)];
        let lines = log(now);
        let utilization = minutes(0, now, percent);
        let one = RunningTrial {
            now: at(now),
            has_speed,
            loss: Some(ReportedLoss { is_finite: true, last_at: at(now) }),
            tokens_per_second: Some(65_000.0 * speed),
            predicted: Some(PredictedSpeed { low: 50_000.0, expected: 65_000.0, high: 85_000.0 }),
            utilization: &utilization,
            ..trial(&own, &lines)
        };
        prop_assert_eq!(kinds(&one), []);
    }
}
