//! What SageMaker would refuse of a tuning; the requests that are sent are made in [`request`]. Limits: SageMaker
//! API, CreateHyperParameterTuningJob; developer guide, automatic model tuning, resource limits.

mod request;

pub use self::request::request;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::catalog;
use crate::finding::flaws::{Flaw, Flaws, is_address, is_open};
use crate::finding::{escaped, nearest};
use crate::sagemaker::tuning::{Scaling, Strategy};
use crate::spec::pipeline::tuning::{RangeSpec, TuningSpec};

const CANDIDATES_MAX: usize = 10;
const RANGES_MAX: usize = 30;
const VALUES_MAX: usize = 30;
const TEXT_MAX: usize = 256;
const PARALLEL_MAX: u32 = 100;
const TRIALS_MAX: u32 = 750;
const RANDOM_TRIALS_MAX: u32 = 10_000;
const METRICS_MAX: usize = 20;
const PARENTS_MAX: usize = 5;
/// Of the 48 variables; the service adds its own.
const VARIABLES_MAX: usize = 40;
const HYPERPARAMETERS_MAX: usize = 100;
/// 28 days.
const RUNTIME_MAX: u32 = 2_419_200;
const RESOURCE_MAX: u32 = 20_000;
/// Hyperparameters that tell Hyperband how long a trial may be.
const EPOCHS: [&str; 5] = ["epochs", "num_epochs", "n_epochs", "n-epochs", "numepochs"];

/// Everything that is wrong with a tuning, with pointers below `pointer`. Texts may still hold references.
pub fn flaws(spec: &TuningSpec, pointer: &str) -> Vec<Flaw> {
    let mut flaws = Flaws::below(pointer);
    objective(spec, &mut flaws);
    limits(spec, &mut flaws);
    strategy(spec, &mut flaws);
    capacity(spec, &mut flaws);
    texts(spec, &mut flaws);
    candidates(spec, &mut flaws);
    flaws.found()
}

fn objective(spec: &TuningSpec, flaws: &mut Flaws<'_>) {
    let names: Vec<&str> = spec.metrics.iter().map(|one| one.name.as_str()).collect();
    let wanted = &spec.objective.metric;
    let near = nearest(wanted, names.iter().copied(), 1).join(", ");
    flaws.add_unless(
        names.contains(&wanted.as_str()) || is_open(wanted),
        "objective/metric",
        &format!("no metric is named {wanted}: a metric is required for the objective"),
        &format!("add it to metrics, or use one of them ({near})"),
    );
    flaws.add_unless(
        (1..=METRICS_MAX).contains(&names.len()),
        "metrics",
        "must be 1 to 20 metrics",
        "define the objective, and few others",
    );
    let is_regex = |text: &str| {
        regex::Regex::new(text).is_ok_and(|found| found.captures_len() > 1) || is_open(text)
    };
    for (place, metric) in spec.metrics.iter().enumerate() {
        flaws.add_unless(
            is_regex(&metric.regex),
            &format!("metrics/{place}/regex"),
            "must be a regular expression with a group around the number",
            "write it like `'eval_loss': ([0-9.]+)`",
        );
    }
}

fn limits(spec: &TuningSpec, flaws: &mut Flaws<'_>) {
    let most = if spec.strategy == Strategy::Random {
        RANDOM_TRIALS_MAX
    } else {
        TRIALS_MAX
    };
    flaws.number("trials", Some(spec.trials), 1, most);
    flaws.number("parallel", Some(spec.parallel), 1, PARALLEL_MAX);
    flaws.number(
        "max_runtime_seconds",
        Some(spec.max_runtime_seconds),
        1,
        RUNTIME_MAX,
    );
    flaws.number(
        "max_tuning_seconds",
        spec.max_tuning_seconds,
        120,
        15_768_000,
    );
    flaws.number(
        "stop_after_not_improving",
        spec.stop_after_not_improving,
        3,
        u32::MAX,
    );
    flaws.number("retry_attempts", spec.retry_attempts, 1, 30);
    flaws.number("volume_size_gb", Some(spec.volume_size_gb), 1, 16_384);
    if let Some(warm) = &spec.warm_start {
        let is_name = |name: &String| {
            (1..=32).contains(&name.len())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
                || is_open(name)
        };
        let is_fine = (1..=PARENTS_MAX).contains(&warm.tuning_jobs.len())
            && warm.tuning_jobs.iter().all(is_name);
        flaws.add_unless(
            is_fine,
            "warm_start/tuning_jobs",
            "must be the names of 1 to 5 tuning jobs",
            "name tuning jobs that are over",
        );
    }
}

fn strategy(spec: &TuningSpec, flaws: &mut Flaws<'_>) {
    let is_hyperband = spec.strategy == Strategy::Hyperband;
    flaws.add_unless(
        !(is_hyperband && spec.early_stopping),
        "early_stopping",
        "Hyperband stops trials by itself, and SageMaker refuses both",
        "leave it out",
    );
    let has_resources = spec.min_resource.is_some() || spec.max_resource.is_some();
    flaws.add_unless(
        is_hyperband || !has_resources,
        "max_resource",
        "belongs to hyperband",
        "leave it out, or use hyperband",
    );
    flaws.number("max_resource", spec.max_resource, 1, RESOURCE_MAX);
    let least = spec.min_resource.unwrap_or(1);
    let most = spec.max_resource.unwrap_or(RESOURCE_MAX);
    flaws.add_unless(
        (1..=most).contains(&least),
        "min_resource",
        "must be at least 1, and at most max_resource",
        "choose a smaller one",
    );
    let tells_epochs = || {
        let names = spec.ranges.keys().chain(spec.hyperparameters.keys());
        names
            .into_iter()
            .any(|name| EPOCHS.contains(&name.as_str()))
    };
    flaws.add_unless(
        !is_hyperband || spec.max_resource.is_some() || tells_epochs(),
        "max_resource",
        "Hyperband must know how long a trial may be, and no hyperparameter is named epochs",
        "say how many epochs a trial has at most",
    );
}

fn capacity(spec: &TuningSpec, flaws: &mut Flaws<'_>) {
    flaws.add_unless(
        !spec.spot || spec.max_wait_seconds.is_some(),
        "max_wait_seconds",
        "spot needs a longest wait: SageMaker refuses it without MaxWaitTimeInSeconds",
        "say how long a trial may wait and run together",
    );
    flaws.add_unless(
        spec.spot || spec.max_wait_seconds.is_none(),
        "max_wait_seconds",
        "belongs to spot",
        "leave it out",
    );
    let wait = spec.max_wait_seconds.unwrap_or(u32::MAX);
    flaws.add_unless(
        wait >= spec.max_runtime_seconds,
        "max_wait_seconds",
        "must be at least max_runtime_seconds: it contains it",
        "raise it",
    );
    flaws.address("output_s3_uri", spec.output_s3_uri.as_ref());
    flaws.address("checkpoint_s3_uri", spec.checkpoint_s3_uri.as_ref());
}

fn texts(spec: &TuningSpec, flaws: &mut Flaws<'_>) {
    let is_image = (1..=255).contains(&spec.image.len());
    let detail = "must have 1 to 255 characters";
    flaws.add_unless(is_image, "image", detail, "give the image's ECR URI");
    let fits = |all: &BTreeMap<String, String>, most: usize, length: usize| {
        all.len() <= most
            && all.iter().all(|(name, value)| {
                !name.is_empty() && name.len() <= TEXT_MAX && value.len() <= length
            })
    };
    flaws.add_unless(
        fits(&spec.hyperparameters, HYPERPARAMETERS_MAX, 2500),
        "hyperparameters",
        "SageMaker takes at most 100, with values of 2500 characters",
        "shorten or drop some",
    );
    flaws.add_unless(
        fits(&spec.environment, VARIABLES_MAX, 512),
        "environment",
        "SageMaker takes at most 48 variables (the service adds some), with values of 512 characters",
        "shorten or drop some",
    );
    flaws.role(spec.role_arn.as_deref());
    for (place, channel) in spec.channels.iter().enumerate() {
        flaws.add_unless(
            is_address(&channel.s3_uri) && !channel.name.is_empty(),
            &format!("channels/{place}"),
            "must have a name, and s3://bucket/prefix",
            "give its address",
        );
    }
}

fn candidates(spec: &TuningSpec, flaws: &mut Flaws<'_>) {
    flaws.add_unless(
        (1..=CANDIDATES_MAX).contains(&spec.candidates.len()),
        "candidates",
        "must be 1 to 10 instance types",
        "name the types to tune on",
    );
    let mut seen = BTreeSet::new();
    for (place, one) in spec.candidates.iter().enumerate().take(CANDIDATES_MAX) {
        let kind = &one.instance_type;
        let is_new = seen.insert((kind, one.instance_count));
        let is_known = catalog::find(kind).is_some() || is_open(kind);
        let known = catalog::all()
            .iter()
            .map(|found| found.instance_type.as_str());
        flaws.add_unless(
            is_known && is_new,
            &format!("candidates/{place}/instance_type"),
            if is_known {
                "stands here twice"
            } else {
                "there is no such instance type"
            },
            &format!(
                "use another, such as {}",
                nearest(kind, known, 2).join(", ")
            ),
        );
        flaws.number(
            &format!("candidates/{place}/instance_count"),
            Some(one.instance_count),
            1,
            100,
        );
        if !one.ranges.is_empty() {
            ranges(
                spec,
                &one.ranges,
                &format!("candidates/{place}/ranges"),
                flaws,
            );
        }
    }
    if spec.candidates.iter().any(|one| one.ranges.is_empty()) {
        ranges(spec, &spec.ranges, "ranges", flaws);
    }
}

fn ranges(
    spec: &TuningSpec,
    all: &BTreeMap<String, RangeSpec>,
    member: &str,
    flaws: &mut Flaws<'_>,
) {
    flaws.add_unless(
        (1..=RANGES_MAX).contains(&all.len()),
        member,
        "must be 1 to 30 hyperparameters",
        "say what is searched",
    );
    for (name, range) in all.iter().take(RANGES_MAX) {
        if let Some((detail, fix)) = wrong(spec, name, range) {
            let name = escaped(name);
            flaws.add_unless(false, &format!("{member}/{name}"), detail, fix);
        }
    }
    if spec.strategy == Strategy::Grid {
        let combinations = request::searched(all).combinations();
        flaws.add_unless(
            combinations == u64::from(spec.trials),
            "trials",
            &format!("a grid tries each combination once, and there are {combinations}"),
            &format!("set it to {combinations}"),
        );
    }
}

/// A number that is written, unless it is a reference.
fn number(value: Option<&Value>) -> Option<f64> {
    match value? {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// What is wrong with one range.
fn wrong(spec: &TuningSpec, name: &str, range: &RangeSpec) -> Option<(&'static str, &'static str)> {
    if name.is_empty() || name.len() > TEXT_MAX {
        return Some(("a name has 1 to 256 characters", "rename it"));
    }
    if spec.hyperparameters.contains_key(name) {
        return Some((
            "is fixed by hyperparameters, and searched as well",
            "drop one of the two",
        ));
    }
    if !range.values.is_empty() {
        let is_fine = range.min.is_none() && range.max.is_none() && !range.integer;
        if !is_fine || range.scaling.is_some() {
            return Some(("has values, so it has no min, max or scaling", "drop them"));
        }
        let is_short = |text: &String| text.len() <= TEXT_MAX;
        let fits = range.values.len() <= VALUES_MAX && range.values.iter().all(is_short);
        return (!fits).then_some((
            "SageMaker takes at most 30 values of 256 characters",
            "drop some",
        ));
    }
    if spec.strategy == Strategy::Grid {
        return Some(("a grid searches values only", "list the values to try"));
    }
    let is_reference =
        |value: &Option<Value>| value.as_ref().and_then(Value::as_str).is_some_and(is_open);
    if is_reference(&range.min) || is_reference(&range.max) {
        return None;
    }
    let (Some(min), Some(max)) = (number(range.min.as_ref()), number(range.max.as_ref())) else {
        return Some(("must have min and max, or values", "say what is searched"));
    };
    if min >= max || !min.is_finite() || !max.is_finite() {
        return Some(("min must be less than max", "exchange them"));
    }
    if range.integer && (min.fract() != 0.0 || max.fract() != 0.0) {
        return Some(("whole numbers lie between whole numbers", "round them"));
    }
    match range.scaling {
        Some(Scaling::Logarithmic) if min <= 0.0 => Some((
            "a logarithmic scale begins above 0",
            "raise min, or use another scaling",
        )),
        Some(Scaling::ReverseLogarithmic) if range.integer || min < 0.0 || max >= 1.0 => Some((
            "a reverse logarithmic scale lies between 0 and 1, and has no whole numbers",
            "use another scaling",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sagemaker::tuning::TuningJobRequest;

    fn with(changes: &Value) -> TuningSpec {
        let mut all = json!({
            "objective": {"metric": "eval:loss"}, "trials": 4, "image": "i", "max_runtime_seconds": 3600,
            "channels": [{"name": "train", "s3_uri": "s3://b/train"}],
            "metrics": [{"name": "eval:loss", "regex": "eval_loss=([0-9.]+)", "meaning": "validation_loss"}],
            "ranges": {"lr": {"min": "1e-5", "max": 1e-3, "scaling": "logarithmic"}},
            "candidates": [{"instance_type": "ml.g5.2xlarge"}]});
        for (name, value) in changes.as_object().unwrap() {
            all[name] = value.clone();
        }
        serde_json::from_value(all).unwrap()
    }

    fn pointers(changes: &Value) -> Vec<String> {
        let flaws = flaws(&with(changes), "").into_iter();
        flaws.map(|flaw| flaw.pointer).collect()
    }

    #[test]
    fn what_the_sdk_lets_through_is_refused() {
        assert!(pointers(&json!({})).is_empty());
        assert_eq!(pointers(&json!({"spot": true})), ["/max_wait_seconds"]);
        let hyperband = json!({"strategy": "hyperband", "max_resource": 9, "early_stopping": true});
        assert_eq!(pointers(&hyperband), ["/early_stopping"]);
    }

    #[test]
    fn ranges_strategies_and_objectives_are_held_against_the_limits() {
        assert_eq!(
            pointers(&json!({"objective": {"metric": "loss"}})),
            ["/objective/metric"]
        );
        assert_eq!(
            pointers(&json!({"ranges": {"lr": {"min": 2, "max": 1}}})),
            ["/ranges/lr"]
        );
        assert_eq!(
            pointers(&json!({"ranges": {"a/b": {"min": 0, "max": 1, "scaling": "logarithmic"}}})),
            ["/ranges/a~1b"]
        );
        assert_eq!(
            pointers(&json!({"strategy": "hyperband"})),
            ["/max_resource"]
        );
        let grid = json!({"strategy": "grid", "ranges": {"a": {"values": ["1", "2", "3"]}}});
        assert_eq!(pointers(&grid), ["/trials"], "three, and not four");
        assert_eq!(
            pointers(&json!({"candidates": [{"instance_type": "ml.p9.huge"}]})),
            ["/candidates/0/instance_type"]
        );
        assert_eq!(
            pointers(&json!({"hyperparameters": {"lr": "1"}})),
            ["/ranges/lr"]
        );
    }

    #[test]
    fn a_candidate_searches_its_own_ranges_with_the_same_trials_and_seed() {
        let spec = with(
            &json!({"random_seed": 7, "strategy": "random", "parallel": 9,
            "candidates": [{"instance_type": "ml.g5.2xlarge"},
                {"instance_type": "ml.g6.2xlarge", "ranges": {"batch": {"min": 2, "max": 8, "integer": true}}}]}),
        );
        let requests: Vec<TuningJobRequest> = spec
            .candidates
            .iter()
            .map(|one| request(&spec, one, "arn:aws:iam::1:role/x", "s3://b/out"))
            .collect();
        let names: Vec<Vec<&str>> = requests
            .iter()
            .map(|one| one.ranges.names().collect())
            .collect();
        assert_eq!(names, [["lr"], ["batch"]]);
        for one in &requests {
            assert_eq!(
                (one.random_seed, one.trials_max, one.parallel_max),
                (Some(7), 4, 4)
            );
        }
        let range = &requests[0].ranges.continuous[0];
        assert_eq!((range.min.as_str(), range.max.as_str()), ("1e-5", "0.001"));
    }
}
