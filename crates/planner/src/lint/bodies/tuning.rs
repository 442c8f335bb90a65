//! The body of a tuning job: its limits and ranges, and the training jobs that it starts.

use bakeoff_domain::finding::Finding;
use serde_json::{Value, json};

use super::{file_systems, within};
use crate::lint::pointers::moved;
use crate::lint::{algorithms, job, libraries, training};
use crate::rules::found;

const CONFIG: &str = "/HyperParameterTuningJobConfig";

pub(super) fn check(body: &Value, findings: &mut Vec<Finding>) {
    limits(body, findings);
    ranges(body, &format!("{CONFIG}/ParameterRanges"), findings);
    let one = "/TrainingJobDefinition".to_owned();
    let several = body.get("TrainingJobDefinitions").and_then(Value::as_array);
    let several =
        (0..several.map_or(0, Vec::len)).map(|index| format!("/TrainingJobDefinitions/{index}"));
    for at in std::iter::once(one).chain(several) {
        if let Some(definition) = body.pointer(&at) {
            objective(body, definition, &at, findings);
            ranges(body, &format!("{at}/HyperParameterRanges"), findings);
            within(&at, findings, |own| training_job(definition, own));
        }
    }
}

/// No more jobs at once than in all.
fn limits(body: &Value, findings: &mut Vec<Finding>) {
    let limit = |name: &str| {
        body.pointer(&format!("{CONFIG}/ResourceLimits/{name}"))
            .and_then(Value::as_u64)
    };
    let (Some(all), Some(at_once)) = (
        limit("MaxNumberOfTrainingJobs"),
        limit("MaxParallelTrainingJobs"),
    ) else {
        return;
    };
    if at_once > all {
        let at = format!("{CONFIG}/ResourceLimits/MaxParallelTrainingJobs");
        findings.push(
            found("tuning-parallel", at).says(format!("{at_once} jobs at once, but {all} in all")),
        );
    }
}

/// The least value of a range is below its greatest.
fn ranges(body: &Value, at: &str, findings: &mut Vec<Finding>) {
    for kind in ["ContinuousParameterRanges", "IntegerParameterRanges"] {
        let place = format!("{at}/{kind}");
        let ranges = body.pointer(&place).and_then(Value::as_array);
        for (index, range) in ranges.into_iter().flatten().enumerate() {
            let bound = |name: &str| range.get(name)?.as_str()?.trim().parse::<f64>().ok();
            let (Some(least), Some(most)) = (bound("MinValue"), bound("MaxValue")) else {
                continue;
            };
            if least > most {
                let name = range.get("Name").and_then(Value::as_str).unwrap_or("it");
                findings.push(
                    found("tuning-range", format!("{place}/{index}"))
                        .says(format!("{name} ranges from {least} to {most}")),
                );
            }
        }
    }
}

/// The objective is a metric that is read from the log, unless the algorithm is SageMaker's own.
fn objective(body: &Value, definition: &Value, at: &str, findings: &mut Vec<Finding>) {
    let own = format!("{at}/TuningObjective/MetricName");
    let shared = format!("{CONFIG}/HyperParameterTuningJobObjective/MetricName");
    let Some((place, name)) = [own, shared].into_iter().find_map(|place| {
        let name = body.pointer(&place)?.as_str()?.to_owned();
        Some((place, name))
    }) else {
        return;
    };
    let algorithm = definition
        .get("AlgorithmSpecification")
        .unwrap_or(&Value::Null);
    let image = algorithm.get("TrainingImage").and_then(Value::as_str);
    if image.is_none_or(|image| algorithms::of_image(image).is_some()) {
        return;
    }
    let metrics = algorithm.get("MetricDefinitions").and_then(Value::as_array);
    let is_defined = metrics
        .into_iter()
        .flatten()
        .any(|metric| metric.get("Name").and_then(Value::as_str) == Some(&name));
    if !is_defined {
        findings.push(found("tuning-objective", place).says(format!(
            "`{name}` is no metric of {}/AlgorithmSpecification/MetricDefinitions",
            at.trim_start_matches('/')
        )));
    }
}

/// The rules on a training job, of which a definition is a part: its name is the tuning job's, and its
/// hyperparameters are called static.
fn training_job(definition: &Value, findings: &mut Vec<Finding>) {
    let mut body = definition.clone();
    if let (Some(whole), Some(fixed)) = (
        body.as_object_mut(),
        definition.get("StaticHyperParameters"),
    ) {
        whole.insert("HyperParameters".to_owned(), fixed.clone());
    }
    let mut job = job::of_body(&body);
    let keep_alive = job.keep_alive.take();
    // Each job of a tuning job has one retry strategy, and no health checks to ask for.
    job.checks_infrastructure = true;
    let mut own = Vec::new();
    file_systems(&body, &mut own);
    training::check(&job, &mut own);
    libraries::check(&job, &mut own);
    for mut finding in own {
        moved(&mut finding, "/HyperParameters", "/StaticHyperParameters");
        findings.push(finding);
    }
    if let Some(keep_alive) = keep_alive {
        let patch = vec![bakeoff_domain::finding::Operation::set(
            &keep_alive.pointer,
            json!(0),
        )];
        findings.push(found("tuning-keep-alive", &keep_alive.pointer).patch(patch));
    }
}
