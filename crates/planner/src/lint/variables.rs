//! Values that are not known before a document runs: parameters of a pipeline (`{"Get": …}`), paths of
//! a state machine (`"TrainingJobName.$"`, `"{% … %}"`), references of CloudFormation (`{"Ref": …}`, `"${Role.Arn}"`).
//! They are no mistakes, so nothing is said of them, nor of what depends on them.

use std::sync::LazyLock;

use bakeoff_domain::embedded;
use bakeoff_domain::finding::{Finding, escaped};
use regex::Regex;
use serde_json::{Map, Value};

/// A name in a string of `Fn::Sub`; `${!Literal}` is none.
static SUBSTITUTION: LazyLock<Regex> =
    LazyLock::new(|| embedded::pattern_within(r"\$\{[A-Za-z][A-Za-z0-9.:]*\}"));

/// A document without its variables.
#[derive(Debug, Clone)]
pub(crate) struct Plain {
    pub(crate) value: Value,
    /// Pointers of the variables, without Step Functions' `.$`.
    pub(super) variables: Vec<String>,
    /// Whether there are a pipeline's variables among them.
    pub(super) is_of_pipeline: bool,
}

/// Takes the variables out of a document. A list with a variable in it is one as a whole.
pub(crate) fn split(document: &Value) -> Plain {
    let mut plain = Plain {
        value: Value::Null,
        variables: Vec::new(),
        is_of_pipeline: false,
    };
    let value = without(document, String::new(), &mut plain);
    plain.value = value.unwrap_or_default();
    plain
}

/// Functions of pipelines and of CloudFormation: objects with one member.
fn is_function(entries: &Map<String, Value>) -> bool {
    let mut names = entries.keys();
    let is_known =
        |name: &String| is_of_pipeline(name) || name == "Ref" || name.starts_with("Fn::");
    names.next().is_some_and(is_known) && names.next().is_none()
}

fn is_of_pipeline(name: &str) -> bool {
    name == "Get" || name.starts_with("Std:")
}

fn is_variable(value: &Value) -> bool {
    match value {
        Value::Object(entries) => is_function(entries),
        Value::String(text) => {
            text.starts_with("{%") && text.ends_with("%}") || SUBSTITUTION.is_match(text)
        }
        Value::Array(items) => items.iter().any(is_variable),
        _ => false,
    }
}

/// The value without variables; nothing if it is one.
fn without(value: &Value, pointer: String, plain: &mut Plain) -> Option<Value> {
    if is_variable(value) {
        let first = value
            .as_array()
            .and_then(|items| items.iter().find(|item| is_variable(item)));
        let entries = first.unwrap_or(value).as_object();
        plain.is_of_pipeline |=
            entries.is_some_and(|all| all.keys().any(|name| is_of_pipeline(name)));
        plain.variables.push(pointer);
        return None;
    }
    Some(match value {
        Value::Object(entries) => {
            let mut kept = Map::new();
            for (name, value) in entries {
                if let Some(known) = name.strip_suffix(".$") {
                    plain
                        .variables
                        .push(format!("{pointer}/{}", escaped(known)));
                    continue;
                }
                let at = format!("{pointer}/{}", escaped(name));
                if let Some(value) = without(value, at, plain) {
                    kept.insert(name.clone(), value);
                }
            }
            Value::Object(kept)
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            let kept = items
                .filter_map(|(index, item)| without(item, format!("{pointer}/{index}"), plain));
            Value::Array(kept.collect())
        }
        other => other.clone(),
    })
}

/// Whether one pointer is the other, or above or below it; the document as a whole is above none.
fn is_related(one: &str, other: &str) -> bool {
    let is_above = |above: &str, below: &str| {
        !above.is_empty()
            && below
                .strip_prefix(above)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    is_above(one, other) || is_above(other, one)
}

impl Plain {
    /// Leaves out what is said of variables, and patches that would overwrite one.
    pub(super) fn leave_out(&self, findings: &mut Vec<Finding>) {
        let touches = |pointer: &str| {
            self.variables
                .iter()
                .any(|variable| is_related(variable, pointer))
        };
        findings.retain(|finding| !touches(&finding.pointer));
        for finding in findings {
            if finding
                .patch
                .iter()
                .any(|operation| touches(&operation.path))
            {
                finding.patch = Vec::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn variables_of_every_dialect_are_taken_out() {
        let plain = split(&json!({
            "TrainingJobName.$": "$.job",
            "RoleArn": {"Ref": "Role"},
            "ResourceConfig": {"InstanceType": {"Get": "Parameters.Type"}, "InstanceCount": 1},
            "VpcConfig": {"Subnets": [{"Fn::ImportValue": "a"}, "subnet-1"], "SecurityGroupIds": ["sg-1"]},
            "HyperParameters": {"epochs": "{% $states.input.epochs %}", "lr": "0.1"}
        }));
        assert_eq!(
            plain.value,
            json!({"ResourceConfig": {"InstanceCount": 1}, "VpcConfig": {"SecurityGroupIds": ["sg-1"]}, "HyperParameters": {"lr": "0.1"}})
        );
        assert!(plain.is_of_pipeline);
        let mut variables = plain.variables;
        variables.sort_unstable();
        assert_eq!(
            variables,
            [
                "/HyperParameters/epochs",
                "/ResourceConfig/InstanceType",
                "/RoleArn",
                "/TrainingJobName",
                "/VpcConfig/Subnets"
            ]
        );
    }
}
