//! Tests of [`super`].

use proptest::prelude::*;

use super::*;

fn reading() -> ReadOptions<'static> {
    ReadOptions {
        latest: "2026-11-21T00:00:00Z".parse().unwrap(),
        skip_bad_lines: false,
        started_at: Some("2026-11-20T00:00:00Z".parse().unwrap()),
        metric: None,
    }
}

fn values(batch: &Batch, name: &str) -> Vec<(Option<i32>, i64, f64)> {
    let index = batch.names.iter().position(|known| known == name).unwrap();
    let of = batch.points.iter().filter(|point| point.name == index);
    of.map(|point| (point.step, point.at.timestamp_millis(), point.value))
        .collect()
}

#[test]
fn json_lines_in_every_way_of_writing_time() {
    let body = br#"{"timestamp": 1763596800, "step": 1, "loss": 10.0}
{"time": 1763596801000, "step": 2, "loss": 9}

{"_timestamp": 1763596802.5, "step": 3, "loss": 8.5, "note": "warm", "ok": true, "gone": null}
{"at": "2025-11-20T00:00:03+00:00", "global_step": 4, "loss": 8.0}
{"timestamp": "2025-11-20 00:00:04.250", "loss": 7.5}"#;
    let batch = read(body, reading()).unwrap();
    assert_eq!(batch.names, ["loss"]);
    let expected = [
        (Some(1), 1_763_596_800_000, 10.0),
        (Some(2), 1_763_596_801_000, 9.0),
        (Some(3), 1_763_596_802_500, 8.5),
        (Some(4), 1_763_596_803_000, 8.0),
        (None, 1_763_596_804_250, 7.5),
    ];
    assert_eq!(values(&batch, "loss"), expected);
}

#[test]
fn one_metric_a_line_and_a_list_are_the_same() {
    let lines = br#"{"metric": "loss", "value": 2.5, "timestamp": 1763596800, "step": 7}"#;
    let list = br#"[{"timestamp": 1763596800, "step": 7, "loss": 2.5}]"#;
    let points = |body: &[u8]| {
        let batch = read(body, reading()).unwrap();
        (batch.names, batch.points)
    };
    assert_eq!(points(lines), points(list));
}

#[test]
fn pythons_nan_and_infinity_are_kept() {
    let body =
        br#"{"timestamp": 1763596800, "a": NaN, "b": -Infinity, "c": "Infinity", "NaN \" NaN": 1}"#;
    let batch = read(body, reading()).unwrap();
    assert!(values(&batch, "a")[0].2.is_nan());
    assert_eq!(
        (values(&batch, "b")[0].2, values(&batch, "c")[0].2),
        (f64::NEG_INFINITY, f64::INFINITY)
    );
    assert_eq!(values(&batch, "NaN \" NaN").len(), 1, "not inside a string");
}

#[test]
fn devices_of_a_host_are_one_series_of_means() {
    let body = br#"{"timestamp": 1763596800, "gpus": [{"utilization": 90, "temperature": 60}, {"utilization": 70, "temperature": 64}]}
{"timestamp": 1763596801, "system.gpu.0.gpu": 80, "system.gpu.1.gpu": 100}
{"timestamp": 1763596802, "gpu_id": 0, "power": 300}
{"timestamp": 1763596802, "gpu_id": 1, "power": 500}"#;
    let batch = read(body, reading()).unwrap();
    let mean = |name: &str| {
        values(&batch, name)
            .iter()
            .map(|(.., value)| *value)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (mean("gpu.utilization"), mean("gpu.temperature")),
        (vec![80.0], vec![62.0])
    );
    assert_eq!(
        (mean("system.gpu.gpu"), mean("power")),
        (vec![90.0], vec![400.0])
    );
}

#[test]
fn a_bad_line_is_named_and_nothing_is_taken_unless_asked() {
    let body = b"{\"timestamp\": 1763596800, \"loss\": 1}\n{\"loss\": 2}\n{\"timestamp\": 17635968000000, \"loss\": 3}\n{\"timest";
    let errors = read(body, reading()).unwrap_err();
    assert_eq!(
        errors.iter().map(|error| error.line).collect::<Vec<_>>(),
        [2, 3, 4]
    );
    assert!(
        errors[0].detail.contains("Give `timestamp`") && errors[1].detail.contains("future"),
        "{errors:?}"
    );
    let batch = read(
        body,
        ReadOptions {
            skip_bad_lines: true,
            ..reading()
        },
    )
    .unwrap();
    assert_eq!((batch.points.len(), batch.skipped.len()), (1, 3));
    assert_eq!(batch.skipped_in_all, 3);
    let more = b"\n{\"loss\": 1}".repeat(30);
    let many = [&body[..], &more[..]].concat();
    let batch = read(
        &many,
        ReadOptions {
            skip_bad_lines: true,
            ..reading()
        },
    )
    .unwrap();
    assert_eq!((batch.skipped.len(), batch.skipped_in_all), (20, 33));
}

#[test]
fn a_table_is_read_like_lines() {
    let body = b"Step,_timestamp,train/loss,name\n1,1763596800,2.5,a\n2,1763596810,,b\n3,1763596820,NaN,c\n";
    let batch = read(body, reading()).unwrap();
    assert_eq!(
        values(&batch, "train/loss")[0],
        (Some(1), 1_763_596_800_000, 2.5)
    );
    assert_eq!(
        values(&batch, "train/loss").len(),
        2,
        "an empty cell is no point"
    );
    assert_eq!(batch.names, ["train/loss"]);
}

#[test]
fn a_trainer_state_is_spread_over_its_runtime() {
    let body = br#"{
  "best_metric": null, "global_step": 100,
  "log_history": [
    {"epoch": 0.5, "loss": 3.0, "learning_rate": 1e-4, "grad_norm": NaN, "step": 50},
    {"epoch": 1.0, "eval_loss": 2.5, "step": 100},
    {"train_runtime": 200.0, "train_loss": 2.9, "step": 100}
  ]}"#;
    let batch = read(body, reading()).unwrap();
    let start = 1_763_596_800_000 + 365 * 86_400_000;
    assert_eq!(values(&batch, "loss"), [(Some(50), start + 100_000, 3.0)]);
    assert_eq!(
        values(&batch, "eval_loss"),
        [(Some(100), start + 200_000, 2.5)]
    );
    assert!(!batch.names.contains(&"train_runtime".to_owned()));
    let errors = read(
        body,
        ReadOptions {
            started_at: None,
            ..reading()
        },
    )
    .unwrap_err();
    assert!(errors[0].detail.contains("started_at"));
}

proptest! {
    #[test]
    fn nothing_that_is_sent_panics(body in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read(&body, reading());
        let _ = read(&body, reading());
    }

    #[test]
    fn lines_that_are_almost_right_do_not_panic(
        time in any::<f64>(), step in any::<f64>(), value in any::<f64>(), name in "[a-z/._0-9]{0,20}",
    ) {
        let body = format!("{{\"timestamp\": {time:?}, \"step\": {step:?}, \"{name}\": {value:?}}}");
        let _ = read(body.as_bytes(), reading());
    }
}

#[test]
fn a_time_beyond_the_calendar_is_no_time() {
    let body = br#"{"log_history": [{"step": 1, "loss": 1}, {"step": 2, "train_runtime": 1}], "global_step": 2}"#;
    for started_at in [DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC] {
        let reading = ReadOptions {
            started_at: Some(started_at),
            ..reading()
        };
        assert!(read(body, reading).is_err(), "{started_at}");
    }
    let endless =
        String::from_utf8_lossy(body).replace("\"train_runtime\": 1", "\"train_runtime\": 1e300");
    assert!(read(endless.as_bytes(), reading()).is_err());
}

/// A long name is not copied for each of the values below it, and none of it is read.
#[test]
fn a_name_without_end_over_many_values_is_refused() {
    let inner = vec!["\"a\":1"; 20_000].join(",");
    let body = format!(
        "{{\"timestamp\":1763596800,\"{}\":{{{inner}}}}}",
        "k".repeat(200_000)
    );
    let errors = read(body.as_bytes(), reading()).unwrap_err();
    assert!(
        errors[0].detail.contains("1 to 255 bytes"),
        "{}",
        errors[0].detail
    );
}

/// Nor are the values of one record without end.
#[test]
fn values_without_end_in_one_record_are_refused() {
    let inner = vec!["\"a\":1"; 150_000].join(",");
    let body = format!("{{\"timestamp\":1763596800,\"k\":{{{inner}}}}}");
    let errors = read(body.as_bytes(), reading()).unwrap_err();
    assert!(
        errors[0].detail.contains("more than 100000 values"),
        "{}",
        errors[0].detail
    );
}

/// Thousands of columns that all look like counters are looked at once each.
#[test]
fn many_columns_are_read_in_one_pass() {
    let names: Vec<String> = (0..5000).map(|column| format!("step [{column}]")).collect();
    let row = vec!["1"; 5000].join(",");
    let body = format!(
        "timestamp,{}\n1763596800,{row}\n1763596860,{row}\n",
        names.join(",")
    );
    drop(read(body.as_bytes(), reading()));
    for name in ["step", "time"] {
        let names: Vec<String> = (0..5000)
            .map(|column| format!("{name} [{column}]"))
            .collect();
        let rows: Vec<String> = (0..200)
            .map(|row| vec![row.to_string(); 5000].join(","))
            .collect();
        let body = format!("{}\n{}\n", names.join(","), rows.join("\n"));
        drop(read(body.as_bytes(), reading()));
    }
    let wide = vec!["a"; 30_000].join(",");
    let errors = read(format!("{wide}\n{wide}\n").as_bytes(), reading()).unwrap_err();
    assert!(
        errors[0].detail.contains("more than 20000 columns"),
        "{}",
        errors[0].detail
    );
}

/// One program writes all its numbers alike: where some can only be decimals, so are the others.
#[test]
fn a_decimal_comma_is_that_of_the_whole_file() {
    let body = b"timestamp;step;train_loss;learning_rate\n1763596860;1;2,995;0,0003\n1763596920;2;2,871;0,0003\n";
    let batch = read(body, reading()).unwrap();
    let losses: Vec<f64> = values(&batch, "train_loss")
        .iter()
        .map(|one| one.2)
        .collect();
    assert_eq!(losses, [2.995, 2.871]);
}

/// Where metrics are told beside each other, a resume is one of all: none of them falls behind its own earlier records.
#[test]
fn a_resume_between_metrics_is_a_resume_of_all() {
    let body = b"metric,step,elapsed_seconds,value\nloss,1,600,3.0\nloss,2,1200,2.9\neval_loss,2,1200,3.1\nloss,3,1800,2.8\n\
                 loss,3,100,2.8\nloss,4,700,2.7\neval_loss,4,700,3.0\n";
    let batch = read(body, reading()).unwrap();
    let last = |name: &str| values(&batch, name).last().unwrap().1;
    assert_eq!(last("loss"), last("eval_loss"));
    assert!(last("eval_loss") > values(&batch, "eval_loss")[0].1);
    assert!(
        batch
            .report
            .notes
            .iter()
            .any(|note| note.rule == "time-again")
    );
}

/// Blocks of several metrics count their time from the same start.
#[test]
fn each_metrics_own_block_begins_at_the_start() {
    let body = b"metric,step,elapsed_seconds,value\nloss,1,600,3.0\nloss,2,1200,2.9\nloss,3,1800,2.8\nlr,1,600,0.1\nlr,2,1200,0.1\n";
    let batch = read(body, reading()).unwrap();
    let at = |name: &str| values(&batch, name)[0].1;
    assert_eq!(at("loss"), at("lr"));
    assert!(
        batch
            .report
            .notes
            .iter()
            .all(|note| note.rule != "time-again")
    );
}
