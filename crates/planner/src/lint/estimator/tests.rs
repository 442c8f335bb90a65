//! Findings for estimators with a single faulty argument.

use super::*;

/// Rules and pointers of what is found in the arguments of an estimator that is right but for these.
fn found_with(changes: &Value) -> Vec<(String, String)> {
    let mut arguments = json!({"entry_point": "train.py", "role": "arn:aws:iam::123456789012:role/r", "framework_version": "2.3",
        "py_version": "py311", "instance_type": "ml.g5.2xlarge", "instance_count": 1});
    let changes = changes.as_object().unwrap().clone();
    arguments.as_object_mut().unwrap().extend(changes);
    let mut findings = Vec::new();
    check(&arguments, &mut findings);
    let is_wrong = findings.into_iter().filter(|finding| {
        finding.severity >= Severity::Warning && finding.rule != "health-is-opt-in"
    });
    is_wrong
        .map(|finding| (finding.rule, finding.pointer))
        .collect()
}

fn only(rule: &str, pointer: &str) -> Vec<(String, String)> {
    vec![(rule.to_owned(), pointer.to_owned())]
}

#[test]
fn a_wrong_type_is_said_once_and_nothing_false_follows_from_it() {
    for (changes, pointer) in [
        (json!({"instance_count": "2"}), "/instance_count"),
        (json!({"instance_count": 1e30}), "/instance_count"),
        (json!({"max_run": "86400"}), "/max_run"),
        (json!({"volume_size": "100GB"}), "/volume_size"),
        (json!({"hyperparameters": "--lr 1"}), "/hyperparameters"),
        (json!({"distribution": "ddp"}), "/distribution"),
        (
            json!({"instance_type": ["ml.g5.2xlarge"]}),
            "/instance_type",
        ),
        (
            json!({"metric_definitions": {"Name": "l"}}),
            "/metric_definitions",
        ),
        (json!({"framework_version": 2.3}), "/framework_version"),
        (
            json!({"use_spot_instances": "true", "max_wait": 90_000, "checkpoint_s3_uri": "s3://b/c"}),
            "/use_spot_instances",
        ),
        (
            json!({"use_spot_instances": true, "max_wait": -5, "checkpoint_s3_uri": "s3://b/c"}),
            "/max_wait",
        ),
        (
            json!({"max_run": "2h", "use_spot_instances": true, "max_wait": 14_400, "checkpoint_s3_uri": "s3://b/c"}),
            "/max_run",
        ),
        (
            json!({"use_spot_instances": "yes", "max_wait": 90_000}),
            "/use_spot_instances",
        ),
    ] {
        assert_eq!(
            found_with(&changes),
            only("argument-type", pointer),
            "{changes}"
        );
    }
    assert!(found_with(&json!({"max_run": null, "tags": {"team": "ml"}})).is_empty());
}

#[test]
fn what_one_argument_sets_is_said_of_it_alone() {
    assert_eq!(
        found_with(&json!({"output_path": "b/out"})),
        only("output-path", "/output_path")
    );
    assert_eq!(
        found_with(&json!({"base_job_name": "模型"})),
        only("job-name", "/base_job_name")
    );
    let pattern = |regex: &str| json!({"metric_definitions": [{"Name": "loss", "Regex": regex}]});
    for broken in ["loss: ([0-9.]+", "eval_loss"] {
        assert_eq!(
            found_with(&pattern(broken)),
            only("metric-regex", "/metric_definitions")
        );
    }
    assert!(found_with(&pattern("(?<=loss: )([0-9.]+)")).is_empty());
}

#[test]
fn names_of_the_sdks_first_version_are_read() {
    let old = json!({"train_max_run": 3600, "train_volume_size": 50});
    let names = ["/train_max_run", "/train_volume_size"];
    let expected = names.map(|name| ("renamed-argument".to_owned(), name.to_owned()));
    assert_eq!(found_with(&old), expected);
    let wrong = ("argument-type".to_owned(), "/train_volume_size".to_owned());
    assert!(found_with(&json!({"train_volume_size": "much"})).contains(&wrong));
    let found = found_with(&json!({"instance_type": null, "train_max_wait": 90_000}));
    assert!(found.contains(&(
        "max-wait-without-spot".to_owned(),
        "/train_max_wait".to_owned()
    )));
}
