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

/// sagemaker 2.257.7, `EstimatorBase` and `Framework`. What may have several types is not here.
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
    ("volume_size", Type::Count(1)),
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
    /// What is there, and what must be.
    pub(crate) why: String,
    /// What was meant, where that is plain.
    pub(crate) meant: Option<Value>,
    is_version: bool,
}

impl WrongType {
    /// What was meant, where it can be nothing else: 2.10 without quotes has become 2.1 before it was read.
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

/// Every argument of a wrong type. `None` of Python is no value.
pub(crate) fn wrong_types(arguments: &Map<String, Value>) -> Vec<WrongType> {
    let wrong = |(argument, kind): &(&'static str, Type)| {
        let value = arguments.get(*argument).filter(|value| !value.is_null())?;
        if has_type(*kind, value) {
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
            why: format!("{argument} is {wanted}, and {shown} is none"),
            meant: meant(*kind, value),
            is_version: *kind == Type::Version,
        })
    };
    TYPES.iter().filter_map(wrong).collect()
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
        (Type::Count(least), Value::String(text)) => {
            let count = text.trim().parse::<u64>().ok()?;
            (count >= least).then(|| count.into())
        }
        (Type::Flag, Value::String(text)) => match text.trim().to_ascii_lowercase().as_str() {
            "true" => Some(true.into()),
            "false" => Some(false.into()),
            _ => None,
        },
        _ => None,
    }
}

/// The arguments under the names that the SDK's second version has for them.
pub(crate) fn as_named(arguments: &Map<String, Value>) -> Map<String, Value> {
    let mut named = arguments.clone();
    for (old, new) in RENAMED {
        if let Some(value) = named.remove(old) {
            named.entry(new).or_insert(value);
        }
    }
    named
}

/// The arguments as they were meant: so named, and of their types. What cannot be read is left out.
pub(crate) fn as_meant(arguments: &Map<String, Value>) -> Map<String, Value> {
    let mut read = as_named(arguments);
    for wrong in wrong_types(&read) {
        match wrong.meant {
            Some(value) => read.insert(wrong.argument.to_owned(), value),
            None => read.remove(wrong.argument),
        };
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_meant_is_read_where_it_is_plain() {
        let arguments = json!({"instance_count": "2", "max_run": -5, "use_spot_instances": "True", "framework_version": 2.3,
            "train_max_wait": 60, "subnets": "subnet-1", "volume_size": null, "tags": {"team": "nlp"}});
        let arguments = arguments.as_object().unwrap();
        let read = Value::Object(as_meant(arguments));
        assert_eq!(
            read,
            json!({"instance_count": 2, "use_spot_instances": true, "framework_version": "2.3", "max_wait": 60,
                "volume_size": null, "tags": {"team": "nlp"}})
        );
        let wrong = wrong_types(arguments);
        let names: Vec<&str> = wrong.iter().map(|one| one.argument).collect();
        assert_eq!(
            names,
            [
                "framework_version",
                "instance_count",
                "max_run",
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
