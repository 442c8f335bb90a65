//! What recurs between the steps of a script, such as evaluations: a trial that is measured for minutes
//! does it more often, so that it is seen. What it takes is projected back by the ranking.

use bakeoff_domain::finding::Finding;
use bakeoff_domain::measure::metric::Meaning;
use bakeoff_domain::number::{real, whole};
use bakeoff_domain::spec::{Candidate, WorkloadSpec};

use crate::rules::found;

/// Everything is to take place within this time, by the predicted speed: a figure needs a little more.
const WITHIN_SECONDS: f64 = 600.0;
/// The fewest steps between two of them: a trial that only evaluates says nothing of its steps.
const STEPS_MIN: u64 = 10;
/// The most hyperparameters that may be named.
const NAMES_MAX: usize = 20;

/// A workload whose recurring work takes place more often.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MoreOften {
    pub(crate) workload: WorkloadSpec,
    pub(crate) divided_by: f64,
}

/// `None` if there is nothing to shorten, if a profile has intervals of its own, or if what recurs could
/// not be told from the steps: the script must report a speed.
pub(crate) fn more_often(candidate: Candidate<'_>, steps_per_second: f64) -> Option<MoreOften> {
    let Candidate {
        workload, profile, ..
    } = candidate;
    let is_own = |name: &String| profile.hyperparameters.contains_key(name);
    if workload.recurring.iter().any(is_own) {
        return None;
    }
    let has_speed = workload.metrics.iter().any(|metric| {
        matches!(
            metric.meaning,
            Meaning::TokensPerSecond
                | Meaning::TokensPerSecondPerDevice
                | Meaning::SamplesPerSecond
                | Meaning::StepsPerSecond
        )
    });
    let intervals: Vec<u64> = (workload.recurring.iter())
        .filter_map(|name| interval(workload, name))
        .collect();
    let (longest, shortest) = (intervals.iter().max()?, intervals.iter().min()?);
    let within = whole(steps_per_second * WITHIN_SECONDS)?;
    let within = u64::try_from(within).ok()?.max(1);
    let divisor = longest.div_ceil(within).min(shortest / STEPS_MIN);
    if !has_speed || divisor < 2 {
        return None;
    }
    let mut changed = workload.clone();
    for name in &workload.recurring {
        if let Some(interval) = interval(workload, name) {
            let shorter = interval.div_ceil(divisor).to_string();
            changed.hyperparameters.insert(name.clone(), shorter);
        }
    }
    Some(MoreOften {
        workload: changed,
        divided_by: real(*longest) / real(longest.div_ceil(divisor)),
    })
}

/// Checks that what recurs has intervals.
pub(crate) fn check(workload: &WorkloadSpec, findings: &mut Vec<Finding>) {
    for (index, name) in workload.recurring.iter().enumerate().take(NAMES_MAX) {
        if interval(workload, name).is_none() {
            findings.push(
                found("recurring", format!("/workload/recurring/{index}")).says(format!(
                    "hyperparameters have no {name} that is a whole number of steps"
                )),
            );
        }
    }
    if workload.recurring.len() > NAMES_MAX {
        findings.push(found("recurring", "/workload/recurring").says(format!(
            "{} hyperparameters are named, at most {NAMES_MAX} may be",
            workload.recurring.len()
        )));
    }
}

/// Every how many steps something recurs, by a hyperparameter.
fn interval(workload: &WorkloadSpec, name: &str) -> Option<u64> {
    let text = workload.hyperparameters.get(name)?;
    text.parse().ok().filter(|steps| *steps > 0)
}

#[cfg(test)]
mod tests {
    use bakeoff_domain::spec::ProfileSpec;

    use super::*;

    fn more_often(workload: &WorkloadSpec, steps_per_second: f64) -> Option<MoreOften> {
        with_profile(workload, &ProfileSpec::of_batch(8, 8), steps_per_second)
    }

    fn with_profile(
        workload: &WorkloadSpec,
        profile: &ProfileSpec,
        steps_per_second: f64,
    ) -> Option<MoreOften> {
        let spec = serde_json::json!({"name": "c", "instance_type": "ml.p5.48xlarge"});
        let candidate = Candidate {
            workload,
            spec: &serde_json::from_value(spec).unwrap(),
            profile,
        };
        super::more_often(candidate, steps_per_second)
    }

    fn workload(recurring: &serde_json::Value, meaning: &str) -> WorkloadSpec {
        serde_json::from_value(serde_json::json!({
            "name": "w", "image": "i", "role_arn": "r", "channels": [], "output_s3_uri": "s3://b/o",
            "model": {"total_parameters": 1_000_000}, "precision": "bf16", "data_version": "1",
            "code_version": "1", "total_tokens": 1, "trial_tokens": 1, "recurring": recurring,
            "hyperparameters": {"eval_steps": "500", "save_steps": "2000"},
            "metrics": [{"name": "m", "regex": "x", "meaning": meaning}]
        }))
        .unwrap()
    }

    fn sent(workload: &WorkloadSpec) -> [&str; 2] {
        ["eval_steps", "save_steps"].map(|name| workload.hyperparameters[name].as_str())
    }

    /// At half a step per second, 300 steps take ten minutes.
    #[test]
    fn everything_takes_place_within_ten_minutes() {
        let both = workload(
            &serde_json::json!(["eval_steps", "save_steps"]),
            "tokens_per_second",
        );
        let often = more_often(&both, 0.5).unwrap();
        assert_eq!(sent(&often.workload), ["72", "286"]);
        assert!((often.divided_by - 2000.0 / 286.0).abs() < 1e-9);
        // Fast enough: it is seen anyway.
        assert_eq!(more_often(&both, 10.0), None);
        // So slow that it would only evaluate: as often as leaves ten steps between two.
        assert_eq!(
            sent(&more_often(&both, 0.001).unwrap().workload),
            ["10", "40"]
        );
    }

    #[test]
    fn what_is_not_named_or_cannot_be_told_apart_stays() {
        let one = workload(&serde_json::json!(["save_steps"]), "tokens_per_second");
        assert_eq!(
            sent(&more_often(&one, 0.5).unwrap().workload),
            ["500", "286"]
        );
        let none = workload(&serde_json::json!([]), "tokens_per_second");
        assert_eq!(more_often(&none, 0.5), None);
        let steps = workload(&serde_json::json!(["save_steps"]), "step");
        assert_eq!(more_often(&steps, 0.5), None);
        let mut own = ProfileSpec::of_batch(8, 8);
        own.hyperparameters
            .insert("save_steps".to_owned(), "100".to_owned());
        assert_eq!(with_profile(&one, &own, 0.5), None);
    }
}
