//! The shape and limits of a request's body, member by member, following the API's model ([`super::api`]).
//! [`super::training`] and [`super::libraries`] check members in combination.

mod limits;

use std::collections::BTreeSet;

use bakeoff_domain::finding::{Finding, Operation, nearest};
use serde_json::{Map, Value};

use self::limits::{REQUIRED, RULES, STRICTER};
use super::api::{self, Breach, Broken, Call};
use super::patterns;
use crate::rules::found;

/// Checks a body whose values are all there.
pub(super) fn check(call: Call, body: &Value, findings: &mut Vec<Finding>) {
    check_loosely(call, body, false, findings);
}

/// The same; where `is_loose`, numbers and booleans may be written as text.
pub(super) fn check_loosely(call: Call, body: &Value, is_loose: bool, findings: &mut Vec<Finding>) {
    let broken = api::broken(call, body, is_loose);
    // As people read: what does not belong there, what is missing, what is wrong.
    let of = |wanted: fn(&Breach) -> bool| broken.iter().filter(move |one| wanted(&one.breach));
    let unknown = of(|breach| *breach == Breach::Unknown);
    findings.extend(unknown.map(|one| unknown_member(call, body, one)));
    let absent = of(|breach| *breach == Breach::Missing);
    findings.extend(absent.map(|one| missing(call, body, &one.pointer, &one.path)));
    findings.extend(broken.iter().filter_map(wrong));
    metric_patterns(body, findings);
    if call != Call::TrainingJob {
        return;
    }
    required(body, findings);
    stricter(body, findings);
    instances(body, findings);
    image(body, findings);
    channels(body, findings);
    pending(body, findings);
    unique_rules(body, findings);
    set_once(findings);
}

/// The rule that a breach at a path is of.
fn rule_of(path: &str) -> &'static str {
    let own = path
        .strip_prefix("/TrainingJobDefinitions/*")
        .or_else(|| path.strip_prefix("/TrainingJobDefinition"))
        .unwrap_or(path);
    let is_below = |(above, _): &&(&str, &str)| {
        own.strip_prefix(*above)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    RULES
        .iter()
        .filter(is_below)
        .max_by_key(|(above, _)| above.len())
        .map_or("api-limits", |(_, rule)| rule)
}

fn wrong(broken: &Broken) -> Option<Finding> {
    let Breach::Wrong(why) = &broken.breach else {
        return None;
    };
    let rule = if why.ends_with("is not true or false") {
        "truth-value"
    } else {
        rule_of(&broken.path)
    };
    Some(found(rule, &broken.pointer).says(why.clone()))
}

/// Keeps only the first of the patches that set the same place: whoever applies all patches of an answer
/// must not overwrite what one has just put there.
fn set_once(findings: &mut [Finding]) {
    let mut taken = BTreeSet::new();
    for finding in findings {
        let sets = finding.patch.iter().filter(|one| one.value.is_some());
        if sets.clone().any(|one| taken.contains(&one.path)) {
            finding.patch = Vec::new();
        } else {
            taken.extend(sets.map(|one| one.path.clone()));
        }
    }
}

/// Every value that a path matches, with its pointer.
fn places<'a>(body: &'a Value, path: &str) -> Vec<(String, &'a Value)> {
    let mut all = vec![(String::new(), body)];
    for segment in path.split('/').skip(1) {
        let mut next = Vec::new();
        for (pointer, value) in all {
            match (segment, value) {
                ("*", Value::Array(items)) => {
                    next.extend(
                        items
                            .iter()
                            .enumerate()
                            .map(|(index, item)| (format!("{pointer}/{index}"), item)),
                    );
                }
                (name, Value::Object(entries)) => {
                    next.extend(
                        entries
                            .get(name)
                            .map(|inner| (format!("{pointer}/{name}"), inner)),
                    );
                }
                _ => {}
            }
        }
        all = next;
    }
    all
}

fn unknown_member(call: Call, body: &Value, broken: &Broken) -> Finding {
    let pointer = &broken.pointer;
    let (place, key) = pointer.rsplit_once('/').unwrap_or_default();
    let (path, _) = broken.path.rsplit_once('/').unwrap_or_default();
    let finding =
        found("not-api-shape", pointer).says(format!("{} has no member `{key}` here", call.name()));
    let Some((target, name)) = renamed(call, place, path, key) else {
        return finding.fix(if api::is_known_anywhere(key) {
            format!("`{key}` is a member of another object: see where SageMaker's documentation has it")
        } else {
            "no request of SageMaker has it: remove it, or pass it to the script as a hyperparameter".to_owned()
        });
    };
    let value = body.pointer(pointer).cloned().unwrap_or_default();
    let moved = Operation::set(&target, shaped_member(name, &value));
    let operations = move_of(body, Operation::remove(pointer), moved);
    let is_elsewhere = target
        .rsplit_once('/')
        .is_some_and(|(above, _)| above != place);
    let fix = if is_elsewhere {
        format!("did you mean {}?", target.trim_start_matches('/'))
    } else {
        format!("did you mean {name}?")
    };
    finding.fix(fix).patch(operations)
}

/// Takes a member from where it is to where it belongs, with the object that it belongs in; nothing if the
/// place is taken.
fn move_of(body: &Value, from: Operation, to: Operation) -> Vec<Operation> {
    if body.pointer(&to.path).is_some() {
        Vec::new()
    } else if has_parent(body, &to.path) {
        vec![from, to]
    } else if let Some(parent) = missing_parent(body, &to.path) {
        let empty = Operation::set(parent, Value::Object(Map::new()));
        vec![from, empty, to]
    } else {
        Vec::new()
    }
}

fn has_parent(body: &Value, pointer: &str) -> bool {
    pointer
        .rsplit_once('/')
        .is_some_and(|(parent, _)| body.pointer(parent).is_some_and(Value::is_object))
}

/// The object that a member belongs in, if it can simply be added: it is not there in another spelling.
fn missing_parent<'a>(body: &Value, pointer: &'a str) -> Option<&'a str> {
    let (parent, _) = pointer.rsplit_once('/')?;
    let (above, name) = parent.rsplit_once('/')?;
    let above = body.pointer(above)?.as_object()?;
    let is_there = above.keys().any(|key| plain(key) == plain(name));
    (!is_there).then_some(parent)
}

/// A name without the differences between spellings.
fn plain(name: &str) -> String {
    name.replace('_', "").to_lowercase()
}

/// Objects of a training job in the order in which a misplaced member is looked for.
const PLACES: [&str; 8] = [
    "/AlgorithmSpecification",
    "/ResourceConfig",
    "/StoppingCondition",
    "/OutputDataConfig",
    "/CheckpointConfig",
    "/RetryStrategy",
    "/InfraCheckConfig",
    "/ProfilerConfig",
];

/// The intended position and name of a member that is written as in the SDKs for Python and
/// Terraform, misplaced, or misspelt.
fn renamed(call: Call, place: &str, path: &str, key: &str) -> Option<(String, &'static str)> {
    let same = |names: Vec<&'static str>| {
        let mut alike = names.into_iter().filter(|name| plain(name) == plain(key));
        alike.next()
    };
    let known = api::members(call, path);
    if let Some(name) = same(known.clone()) {
        return Some((format!("{place}/{name}"), name));
    }
    if matches!(key, "job_name" | "job_name_prefix" | "JobName") {
        let name = call.name_member();
        return Some((format!("/{name}"), name));
    }
    let others = PLACES.map(str::to_owned).into_iter();
    for other in others.chain(api::structures(call)) {
        if let Some(name) = same(api::members(call, &other)) {
            return Some((format!("{other}/{name}"), name));
        }
    }
    let name = nearest(key, known.iter().copied(), 1).first().copied()?;
    let own = known.into_iter().find(|member| *member == name)?;
    Some((format!("{place}/{own}"), own))
}

/// Converts the keys of a value to the API's spelling.
pub(crate) fn shaped(value: &Value) -> Value {
    match value {
        Value::Object(entries) => {
            let renamed = entries.iter().map(|(key, value)| {
                let name = camel(key);
                let inner = shaped_member(&name, value);
                (name, inner)
            });
            Value::Object(renamed.collect::<Map<String, Value>>())
        }
        Value::Array(items) => items.iter().map(shaped).collect(),
        other => other.clone(),
    }
}

/// Members whose keys are user-defined.
const MAPS: [&str; 5] = [
    "HyperParameters",
    "Environment",
    "RuleParameters",
    "CollectionParameters",
    "HookParameters",
];

/// The value of a member, with the API's names below it; user-defined keys are kept.
fn shaped_member(name: &str, value: &Value) -> Value {
    if MAPS.contains(&name) {
        value.clone()
    } else {
        shaped(value)
    }
}

/// Converts `volume_size_in_gb` to `VolumeSizeInGB` and `s3_uri` to `S3Uri`.
pub(super) fn camel(key: &str) -> String {
    if !key.contains('_') && key.starts_with(char::is_uppercase) {
        return key.to_owned();
    }
    let word = |word: &str| match word {
        "gb" => "GB".to_owned(),
        _ => word
            .chars()
            .enumerate()
            .map(|(i, c)| if i == 0 { c.to_ascii_uppercase() } else { c })
            .collect::<String>(),
    };
    key.split('_').map(word).collect()
}

/// Examples of members of which the API's model requires nothing, and without which no job runs.
const ALGORITHM: &str = r#"{"TrainingImage": "111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1", "TrainingInputMode": "File"}"#;
const RESOURCES: &str = r#"{"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 1}"#;

/// A member that is not there, with an example of it, and set where only one value is likely.
fn missing(call: Call, body: &Value, pointer: &str, path: &str) -> Finding {
    let likely: Option<Value> = match path.rsplit('/').next().unwrap_or_default() {
        "TrainingInputMode" => Some("File".into()),
        "S3DataType" => Some("S3Prefix".into()),
        "StoppingCondition" => Some(serde_json::json!({"MaxRuntimeInSeconds": 86_400})),
        _ => None,
    };
    let name = pointer.trim_start_matches('/');
    let member = pointer.rsplit('/').next().unwrap_or_default();
    let example = likely.as_ref().map_or_else(
        || match pointer {
            "/AlgorithmSpecification" => ALGORITHM.to_owned(),
            "/ResourceConfig" => RESOURCES.to_owned(),
            _ => api::example(call, path),
        },
        ToString::to_string,
    );
    let operations = likely
        .filter(|_| has_parent(body, pointer))
        .map(|value| vec![Operation::set(pointer, value)]);
    found("member-missing", pointer)
        .says(format!("{name} is missing"))
        .fix(format!("add it: \"{member}\": {example}"))
        .patch(operations.unwrap_or_default())
}

fn required(body: &Value, findings: &mut Vec<Finding>) {
    if body.get("ServerlessJobConfig").is_some() {
        return;
    }
    for member in REQUIRED
        .iter()
        .filter(|member| body.get(**member).is_none())
    {
        let pointer = format!("/{member}");
        findings.push(missing(Call::TrainingJob, body, &pointer, &pointer));
    }
}

/// Checks limits that only the documentation has.
fn stricter(body: &Value, findings: &mut Vec<Finding>) {
    for (pointer, least, most) in STRICTER {
        let given = body.pointer(pointer).and_then(Value::as_u64);
        if let Some(value) = given.filter(|value| !(least..=most).contains(value)) {
            let is_known = findings.iter().any(|one| one.pointer == pointer);
            if !is_known {
                findings.push(found(rule_of(pointer), pointer).says(format!(
                    "the value is {value}; {least} to {most} are allowed"
                )));
            }
        }
    }
}

/// Requires one type with its count, groups of them, or preferences.
fn instances(body: &Value, findings: &mut Vec<Finding>) {
    let Some(resources) = body.get("ResourceConfig").and_then(Value::as_object) else {
        return;
    };
    if ["InstanceGroups", "InstancePreferences"]
        .iter()
        .any(|other| resources.contains_key(*other))
    {
        return;
    }
    for member in ["InstanceType", "InstanceCount"]
        .into_iter()
        .filter(|member| !resources.contains_key(*member))
    {
        let pointer = format!("/ResourceConfig/{member}");
        let patch = if member == "InstanceCount" {
            vec![Operation::set(&pointer, 1)]
        } else {
            Vec::new()
        };
        findings.push(
            found("member-missing", &pointer)
                .says(format!("ResourceConfig/{member} is missing"))
                .patch(patch),
        );
    }
}

/// Patterns of metrics, in a training job and in those of a tuning job.
fn metric_patterns(body: &Value, findings: &mut Vec<Finding>) {
    for job in ["", "/TrainingJobDefinition", "/TrainingJobDefinitions/*"] {
        let path = format!("{job}/AlgorithmSpecification/MetricDefinitions/*/Regex");
        for (pointer, regex) in places(body, &path) {
            let Some(regex) = regex.as_str().filter(|regex| patterns::is_broken(regex)) else {
                continue;
            };
            findings.push(found("metric-regex", pointer).says(format!(
                "`{regex}` has no group around the number, or one that is not closed"
            )));
        }
    }
}

fn image(body: &Value, findings: &mut Vec<Finding>) {
    let Some(algorithm) = body
        .get("AlgorithmSpecification")
        .and_then(Value::as_object)
    else {
        return;
    };
    if algorithm.contains_key("TrainingImage") == algorithm.contains_key("AlgorithmName") {
        findings.push(found("image-or-algorithm", "/AlgorithmSpecification"));
    }
}

fn channels(body: &Value, findings: &mut Vec<Finding>) {
    let mode = body
        .pointer("/AlgorithmSpecification/TrainingInputMode")
        .and_then(Value::as_str);
    let mut names = BTreeSet::new();
    for (pointer, channel) in places(body, "/InputDataConfig/*") {
        let name = channel.get("ChannelName").and_then(Value::as_str);
        if let Some(name) = name.filter(|name| !names.insert(*name)) {
            findings.push(
                found("channel-name", format!("{pointer}/ChannelName")).says(format!(
                    "two channels are named {name}: both would lie in /opt/ml/input/data/{name}"
                )),
            );
        }
        let own = channel.get("InputMode").and_then(Value::as_str).or(mode);
        if channel.get("CompressionType").and_then(Value::as_str) == Some("Gzip")
            && own != Some("Pipe")
        {
            findings.push(found(
                "gzip-needs-pipe",
                format!("{pointer}/CompressionType"),
            ));
        }
        let kind = channel
            .pointer("/DataSource/S3DataSource/S3DataType")
            .and_then(Value::as_str);
        if kind == Some("AugmentedManifestFile") && own != Some("Pipe") {
            findings.push(found(
                "augmented-manifest-needs-pipe",
                format!("{pointer}/DataSource/S3DataSource/S3DataType"),
            ));
        }
        data_source(channel, &pointer, findings);
    }
}

/// Checks that a channel says where its data is.
fn data_source(channel: &Value, pointer: &str, findings: &mut Vec<Finding>) {
    if channel
        .get("DataSource")
        .is_none_or(|source| source.as_object().is_none_or(Map::is_empty))
    {
        findings.push(found("channel-source", pointer));
    }
}

fn pending(body: &Value, findings: &mut Vec<Finding>) {
    let pointer = "/StoppingCondition/MaxPendingTimeInSeconds";
    let kind = body
        .pointer("/ResourceConfig/InstanceType")
        .and_then(Value::as_str)
        .unwrap_or("");
    let is_accelerated = ["ml.p", "ml.g", "ml.trn"]
        .iter()
        .any(|prefix| kind.starts_with(prefix));
    if body.pointer(pointer).is_some() && !kind.is_empty() && !is_accelerated {
        findings.push(
            found("max-pending-without-accelerator", pointer)
                .patch(vec![Operation::remove(pointer)]),
        );
    }
}

fn unique_rules(body: &Value, findings: &mut Vec<Finding>) {
    for member in ["DebugRuleConfigurations", "ProfilerRuleConfigurations"] {
        let mut seen = BTreeSet::new();
        for (pointer, rule) in places(body, &format!("/{member}/*")) {
            let name = rule.get("RuleConfigurationName").and_then(Value::as_str);
            let image = rule.get("RuleEvaluatorImage").and_then(Value::as_str);
            match (name, image) {
                (Some(name), Some(image))
                    if name.len() <= 256 && image.len() <= 255 && !seen.contains(name) =>
                {
                    seen.insert(name);
                }
                (Some(name), Some(_)) if seen.contains(name) => {
                    findings.push(
                        found("rule-limits", &pointer).says(format!("two rules are named {name}")),
                    );
                }
                _ => {
                    findings.push(found("rule-limits", &pointer).says(
                        "a rule needs a name of up to 256 characters and an image of up to 255 characters",
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_written_as_the_api_writes_them() {
        assert_eq!(camel("volume_size_in_gb"), "VolumeSizeInGB");
        assert_eq!(camel("s3_data_source"), "S3DataSource");
        assert_eq!(camel("InstanceType"), "InstanceType");
    }
}
