//! The shape and limits of a CreateTrainingJob body, member by member, following the API model
//! (botocore 1.44.5). [`super::training`] and [`super::libraries`] check members in combination.

mod limits;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use bakeoff_domain::embedded;
use bakeoff_domain::finding::escaped;
use bakeoff_domain::finding::{FINDINGS_MAX, Finding, Operation, nearest};
use regex::Regex;
use serde_json::{Map, Value};

use self::limits::Check::{self, Entries, Items, Label, OneOf, Pattern, Range, Text, Truth};
use self::limits::{LIMITS, MEMBERS, OPTIONAL_OBJECTS, REQUIRED};
use super::rules::found;

static PATTERNS: LazyLock<Vec<Option<Regex>>> = LazyLock::new(|| {
    let compile = |check: &Check| match check {
        Pattern(pattern, _) => Some(embedded::pattern(pattern)),
        _ => None,
    };
    LIMITS.iter().map(|(_, _, check)| compile(check)).collect()
});

/// Compiles every pattern.
pub(super) fn compile() {
    LazyLock::force(&PATTERNS);
}

pub(super) fn check(body: &Value, findings: &mut Vec<Finding>) {
    members(body, findings);
    required(body, findings);
    for ((rule, path, check), pattern) in LIMITS.iter().zip(PATTERNS.iter()) {
        for (pointer, value) in places(body, path) {
            if let Some(wrong) = wrong(value, check, pattern.as_ref()) {
                findings.push(found(rule, pointer).says(wrong));
            }
        }
    }
    for key in body
        .get("Environment")
        .and_then(Value::as_object)
        .into_iter()
        .flat_map(Map::keys)
    {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !key.chars().all(is_name) || key.starts_with(|c: char| c.is_ascii_digit()) {
            findings.push(
                found(
                    "environment-limits",
                    format!("/Environment/{}", escaped(key)),
                )
                .says(format!(
                    "`{}` is not a valid environment variable name",
                    cut(key)
                )),
            );
        }
    }
    instances(body, findings);
    image(body, findings);
    channels(body, findings);
    pending(body, findings);
    unique_rules(body, findings);
    vpc(body, findings);
    set_once(findings);
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

fn wrong(value: &Value, check: &Check, pattern: Option<&Regex>) -> Option<String> {
    let is_not = |what: &str| Some(format!("{} is not {what}", short(value)));
    match check {
        Text(least, most) => match value.as_str().map(|text| text.chars().count()) {
            None => is_not("a string"),
            Some(count) if !(*least..=*most).contains(&count) => Some(format!(
                "the text has {count} characters; {least} to {most} are allowed"
            )),
            Some(_) => None,
        },
        Label(least, most) => label(value, *least, *most),
        Pattern(expected, most) => match value.as_str() {
            None => is_not("a string"),
            Some(text) if text.chars().count() > *most => Some(format!(
                "the text has {} characters; at most {most} are allowed",
                text.chars().count()
            )),
            Some(text) if pattern.is_some_and(|regex| regex.is_match(text)) => None,
            Some(_) => Some(format!("{} does not match {expected}", short(value))),
        },
        Range(least, most) => match value.as_u64() {
            None => is_not("a whole number"),
            Some(number) if !(*least..=*most).contains(&number) => Some(format!(
                "the value is {number}; {least} to {most} are allowed"
            )),
            Some(_) => None,
        },
        Items(least, most) => match value.as_array().map(Vec::len) {
            None => is_not("a list"),
            Some(count) if !(*least..=*most).contains(&count) => Some(format!(
                "the list has {count} items; {least} to {most} are allowed"
            )),
            Some(_) => None,
        },
        Entries(most, key_max, value_max) => entries(value, *most, *key_max, *value_max),
        Truth if value.is_boolean() => None,
        Truth => is_not("true or false"),
        OneOf(allowed) => match value.as_str() {
            Some(text) if allowed.contains(&text) => None,
            _ => is_not(&format!("one of {}", allowed.join(", "))),
        },
    }
}

/// Checks text against what tags allow in keys and values.
fn label(value: &Value, least: usize, most: usize) -> Option<String> {
    let is_plain = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_.:/=+-@".contains(c);
    let is_good =
        |text: &str| (least..=most).contains(&text.chars().count()) && text.chars().all(is_plain);
    (!value.as_str().is_some_and(is_good)).then(|| {
        format!(
            "{} is not {least} to {most} letters, digits, spaces or _.:/=+-@",
            short(value)
        )
    })
}

fn entries(value: &Value, most: usize, key_max: usize, value_max: usize) -> Option<String> {
    let Some(entries) = value.as_object() else {
        return Some(format!("{} is not an object", short(value)));
    };
    if entries.len() > most {
        return Some(format!(
            "the object has {} entries; at most {most} are allowed",
            entries.len()
        ));
    }
    entries.iter().find_map(|(key, value)| {
        let Some(text) = value.as_str() else {
            return Some(format!(
                "`{key}` is not a string: all values must be strings, numbers included"
            ));
        };
        if key.is_empty() || key.chars().count() > key_max {
            return Some(format!(
                "the key `{}` has {} characters; 1 to {key_max} are allowed",
                cut(key),
                key.chars().count()
            ));
        }
        let count = text.chars().count();
        if count > value_max {
            return Some(format!(
                "`{key}` has {count} characters; at most {value_max} are allowed"
            ));
        }
        text.contains('\n')
            .then(|| format!("`{key}` contains a line break, which is not allowed"))
    })
}

/// A value, shortened for a message.
fn short(value: &Value) -> String {
    cut(&value.to_string())
}

fn cut(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_owned()
    } else {
        text.chars().take(57).chain("...".chars()).collect()
    }
}

fn members(body: &Value, findings: &mut Vec<Finding>) {
    for (place, known) in MEMBERS {
        let Some(object) = body.pointer(place).and_then(Value::as_object) else {
            continue;
        };
        for (key, value) in object
            .iter()
            .filter(|(key, _)| !known.contains(&key.as_str()))
            .take(FINDINGS_MAX + 1)
        {
            let pointer = format!("{place}/{}", escaped(key));
            let finding = found("not-api-shape", &pointer)
                .says(format!("CreateTrainingJob has no member `{key}` here"));
            findings.push(match renamed(place, key, known) {
                Some((target, name)) => {
                    let moved = Operation::set(&target, shaped_member(name, value));
                    let patch = move_of(body, Operation::remove(&pointer), moved);
                    finding.fix(format!("did you mean {name}?")).patch(patch)
                }
                None => finding.fix("remove it"),
            });
        }
    }
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

/// The intended position and name of a member that is written as in the SDKs for Python and
/// Terraform, or misspelt.
fn renamed(place: &str, key: &str, known: &[&'static str]) -> Option<(String, &'static str)> {
    let same =
        |names: &[&'static str]| names.iter().copied().find(|name| plain(name) == plain(key));
    if let Some(name) = same(known) {
        return Some((format!("{place}/{name}"), name));
    }
    if matches!(key, "job_name" | "job_name_prefix" | "JobName") {
        return Some(("/TrainingJobName".to_owned(), "TrainingJobName"));
    }
    for (other, names) in MEMBERS {
        if let Some(name) = same(names) {
            return Some((format!("{other}/{name}"), name));
        }
    }
    let name = nearest(key, known.iter().copied(), 1).first().copied()?;
    known
        .iter()
        .copied()
        .find(|member| *member == name)
        .map(|name| (format!("{place}/{name}"), name))
}

/// Converts the keys of a value to the API's spelling.
fn shaped(value: &Value) -> Value {
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
fn camel(key: &str) -> String {
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

fn required(body: &Value, findings: &mut Vec<Finding>) {
    let is_serverless = body.get("ServerlessJobConfig").is_some();
    for pointer in REQUIRED {
        let object = pointer.split('/').nth(1).unwrap_or_default();
        let is_optional = OPTIONAL_OBJECTS.contains(&object) && body.get(object).is_none()
            || is_serverless
                && matches!(
                    object,
                    "AlgorithmSpecification" | "ResourceConfig" | "StoppingCondition"
                );
        if !is_optional && body.pointer(pointer).is_none() {
            let patch = match pointer {
                "/AlgorithmSpecification/TrainingInputMode" if has_parent(body, pointer) => {
                    vec![Operation::set(pointer, "File")]
                }
                "/StoppingCondition" => {
                    vec![Operation::set(
                        pointer,
                        serde_json::json!({"MaxRuntimeInSeconds": 86_400}),
                    )]
                }
                _ => Vec::new(),
            };
            findings.push(
                found("member-missing", pointer)
                    .says(format!("{} is missing", pointer.trim_start_matches('/')))
                    .patch(patch),
            );
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
    for (pointer, channel) in places(body, "/InputDataConfig/*") {
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
        if channel.get("ChannelName").is_none() {
            findings.push(
                found("member-missing", format!("{pointer}/ChannelName"))
                    .says("ChannelName is missing"),
            );
        }
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
    if let Some(source) = channel
        .pointer("/DataSource/S3DataSource")
        .and_then(Value::as_object)
    {
        for member in ["S3DataType", "S3Uri"]
            .into_iter()
            .filter(|member| !source.contains_key(*member))
        {
            let place = format!("{pointer}/DataSource/S3DataSource/{member}");
            let patch = if member == "S3DataType" {
                vec![Operation::set(&place, "S3Prefix")]
            } else {
                Vec::new()
            };
            findings.push(
                found("member-missing", &place)
                    .says(format!("{member} is missing"))
                    .patch(patch),
            );
        }
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

fn vpc(body: &Value, findings: &mut Vec<Finding>) {
    let Some(config) = body.get("VpcConfig") else {
        return;
    };
    for member in ["SecurityGroupIds", "Subnets"] {
        if config.get(member).is_none() {
            findings.push(found("vpc", "/VpcConfig").says(format!("{member} is missing")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_compiles() {
        let patterns = LIMITS
            .iter()
            .filter(|(_, _, check)| matches!(check, Pattern(..)))
            .count();
        assert_eq!(PATTERNS.iter().flatten().count(), patterns);
    }

    #[test]
    fn names_are_written_as_the_api_writes_them() {
        assert_eq!(camel("volume_size_in_gb"), "VolumeSizeInGB");
        assert_eq!(camel("s3_data_source"), "S3DataSource");
        assert_eq!(camel("InstanceType"), "InstanceType");
    }
}
