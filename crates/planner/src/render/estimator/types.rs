//! The types of an estimator's arguments, and what was meant where a value has another: Python does not check
//! them, and a document of JSON or YAML easily has `"2"` for 2, or 2.3 for `"2.3"`.

use serde_json::{Map, Value};

use super::arguments::RENAMED;

/// What an argument's value must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Type {
    Text,
    /// A version: text that looks like a number.
    Version,
    /// A whole number, at least this.
    Count(u64),
    Flag,
    Object,
    /// An object, or a list of `{"Key": …, "Value": …}`.
    Tags,
    List,
}

/// sagemaker 2.257.7, `EstimatorBase` and `Framework`. What may have several types, other than a variable of a pipeline,
/// is not here.
const TYPES: [(&str, Type); 46] = [
    ("sdk_class", Type::Text),
    ("region", Type::Text),
    ("job_name", Type::Text),
    ("base_job_name", Type::Text),
    ("entry_point", Type::Text),
    ("source_dir", Type::Text),
    ("code_location", Type::Text),
    ("role", Type::Text),
    ("framework_version", Type::Version),
    ("pytorch_version", Type::Version),
    ("tensorflow_version", Type::Version),
    ("transformers_version", Type::Version),
    ("py_version", Type::Text),
    ("image_uri", Type::Text),
    ("instance_type", Type::Text),
    ("instance_count", Type::Count(1)),
    ("volume_size", Type::Count(0)),
    ("volume_kms_key", Type::Text),
    ("max_run", Type::Count(1)),
    ("max_wait", Type::Count(1)),
    ("use_spot_instances", Type::Flag),
    ("keep_alive_period_in_seconds", Type::Count(0)),
    ("checkpoint_s3_uri", Type::Text),
    ("checkpoint_local_path", Type::Text),
    ("hyperparameters", Type::Object),
    ("environment", Type::Object),
    ("distribution", Type::Object),
    ("rules", Type::List),
    ("disable_profiler", Type::Flag),
    ("max_retry_attempts", Type::Count(1)),
    ("enable_infra_check", Type::Flag),
    ("output_path", Type::Text),
    ("output_kms_key", Type::Text),
    ("metric_definitions", Type::List),
    ("enable_sagemaker_metrics", Type::Flag),
    ("tags", Type::Tags),
    ("subnets", Type::List),
    ("security_group_ids", Type::List),
    ("encrypt_inter_container_traffic", Type::Flag),
    ("enable_network_isolation", Type::Flag),
    ("input_mode", Type::Text),
    ("container_log_level", Type::Count(0)),
    ("disable_output_compression", Type::Flag),
    ("enable_remote_debug", Type::Flag),
    ("training_plan", Type::Text),
    ("instance_groups", Type::List),
];

/// An argument whose value has another type than the SDK's.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct WrongType {
    pub(crate) argument: &'static str,
    /// Its name in the document: the argument's own, or the one of the SDK's first version.
    pub(crate) written: &'static str,
    /// Describes the actual value and the required type.
    pub(crate) why: String,
    /// The intended value, if it is obvious.
    pub(crate) meant: Option<Value>,
    is_version: bool,
}

impl WrongType {
    /// The intended value, if it is unambiguous. A version is not: YAML reads an unquoted 2.10 as 2.1.
    pub(crate) fn certainly(&self) -> Option<&Value> {
        self.meant.as_ref().filter(|_| !self.is_version)
    }

    /// The way out.
    pub(crate) fn fix(&self) -> String {
        match &self.meant {
            Some(value) if self.is_version => format!("write {value}, in quotes"),
            Some(value) => format!("write {value}"),
            None => "write it as the SDK takes it".to_owned(),
        }
    }
}

/// Arguments as they were meant: under the names that the SDK's second version has for them, and of their types; with those
/// of a wrong type. What cannot be read is left out.
pub(crate) fn read(arguments: &Map<String, Value>) -> (Map<String, Value>, Vec<WrongType>) {
    let mut read = arguments.clone();
    for (old, new) in RENAMED {
        if let Some(value) = read.remove(old) {
            read.entry(new).or_insert(value);
        }
    }
    let mut all = Vec::new();
    for (argument, kind) in TYPES {
        let Some(wrong) = wrong_type(argument, kind, &read) else {
            continue;
        };
        match &wrong.meant {
            Some(value) => read.insert(argument.to_owned(), value.clone()),
            None => read.remove(argument),
        };
        let old = RENAMED.iter().find(|(_, new)| *new == argument);
        let written = old
            .map(|(old, _)| *old)
            .filter(|old| arguments.contains_key(*old) && !arguments.contains_key(argument));
        all.push(WrongType {
            written: written.unwrap_or(argument),
            ..wrong
        });
    }
    (read, all)
}

/// `None` of Python is no value, and what a pipeline fills in is not known.
fn wrong_type(
    argument: &'static str,
    kind: Type,
    arguments: &Map<String, Value>,
) -> Option<WrongType> {
    let value = arguments.get(argument)?;
    if value.is_null() || is_variable(value) || has_type(kind, value) {
        return None;
    }
    let wanted = match kind {
        Type::Text | Type::Version => "text".to_owned(),
        Type::Count(0) => "a whole number, 0 or more".to_owned(),
        Type::Count(least) => format!("a whole number, at least {least}"),
        Type::Flag => "true or false".to_owned(),
        Type::Object => "an object".to_owned(),
        Type::Tags => "an object, or a list of {\"Key\": …, \"Value\": …}".to_owned(),
        Type::List => "a list".to_owned(),
    };
    let shown: String = value.to_string().chars().take(40).collect();
    Some(WrongType {
        argument,
        written: argument,
        why: format!("{argument} is {wanted}, and {shown} is none"),
        meant: meant(kind, value),
        is_version: kind == Type::Version,
    })
}

/// A parameter or a result of a pipeline: `{"Get": "Parameters.Type"}`, `{"Std:Join": …}`.
fn is_variable(value: &Value) -> bool {
    let members = value.as_object().filter(|members| members.len() == 1);
    let mut names = members.into_iter().flat_map(Map::keys);
    names.any(|name| name == "Get" || name.starts_with("Std:"))
}

fn has_type(kind: Type, value: &Value) -> bool {
    match kind {
        Type::Text | Type::Version => value.is_string(),
        Type::Count(least) => value.as_u64().is_some_and(|count| count >= least),
        Type::Flag => value.is_boolean(),
        Type::Object => value.is_object(),
        Type::Tags => value.is_object() || value.is_array(),
        Type::List => value.is_array(),
    }
}

fn meant(kind: Type, value: &Value) -> Option<Value> {
    match (kind, value) {
        (Type::Version, Value::Number(number)) => Some(number.to_string().into()),
        (Type::Count(least), value) => {
            let count = match value {
                Value::String(text) => text.trim().parse::<u64>().ok()?,
                Value::Number(number) => whole(number.as_f64()?)?,
                _ => return None,
            };
            (count >= least).then(|| count.into())
        }
        (Type::Flag, Value::String(text)) => match text.trim().to_ascii_lowercase().as_str() {
            "true" => Some(true.into()),
            "false" => Some(false.into()),
            _ => None,
        },
        (Type::Flag, Value::Number(number)) => match number.as_u64() {
            Some(1) => Some(true.into()),
            Some(0) => Some(false.into()),
            _ => None,
        },
        _ => None,
    }
}

/// A number without a fraction that is one, such as `5 * 24 * 3600.0`.
fn whole(number: f64) -> Option<u64> {
    let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    is_whole.then(|| format!("{number:.0}").parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_meant_is_read_where_it_is_plain() {
        let arguments = json!({"instance_count": "2", "max_run": -5, "use_spot_instances": "True", "framework_version": 2.3,
            "train_max_wait": 60.0, "train_volume_size": "much", "subnets": "subnet-1", "keep_alive_period_in_seconds": null,
            "tags": {"team": "nlp"}, "instance_type": {"Get": "Parameters.Type"}});
        let (meant, wrong) = read(arguments.as_object().unwrap());
        assert_eq!(
            Value::Object(meant),
            json!({"instance_count": 2, "use_spot_instances": true, "framework_version": "2.3", "max_wait": 60,
                "keep_alive_period_in_seconds": null, "tags": {"team": "nlp"}, "instance_type": {"Get": "Parameters.Type"}})
        );
        let written: Vec<&str> = wrong.iter().map(|one| one.written).collect();
        assert_eq!(
            written,
            [
                "framework_version",
                "instance_count",
                "train_volume_size",
                "max_run",
                "train_max_wait",
                "use_spot_instances",
                "subnets"
            ]
        );
        assert_eq!(
            (wrong[0].certainly(), wrong[0].fix().as_str()),
            (None, r#"write "2.3", in quotes"#)
        );
        assert_eq!(wrong[1].certainly(), Some(&json!(2)));
        assert_eq!(
            wrong[1].why,
            r#"instance_count is a whole number, at least 1, and "2" is none"#
        );
    }
}
