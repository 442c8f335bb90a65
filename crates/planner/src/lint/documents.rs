//! Documents that hold bodies of requests: a pipeline's definition, a state machine of Step
//! Functions, a template of CloudFormation. Each body is checked where it stands.

use bakeoff_domain::finding::{Finding, escaped};
use serde_json::{Map, Value};

use super::api::Call;
use super::bodies::{self, Body};
use super::pointers::moved;
use super::variables;
use crate::rules::found;

/// Deeper than anybody nests states.
const DEPTH_MAX: usize = 32;

/// Checks a pipeline's definition, as CreatePipeline takes it.
pub(super) fn pipeline(definition: &Value, findings: &mut Vec<Finding>) {
    steps(definition.get("Steps"), "/Steps", 0, findings);
}

fn steps(list: Option<&Value>, at: &str, depth: usize, findings: &mut Vec<Finding>) {
    let list = list.and_then(Value::as_array).into_iter().flatten();
    for (index, step) in list.enumerate().filter(|_| depth < DEPTH_MAX) {
        let at = format!("{at}/{index}");
        let kind = step.get("Type").and_then(Value::as_str).unwrap_or_default();
        let arguments = step.get("Arguments").unwrap_or(&Value::Null);
        let call = match kind {
            "Training" => Some(Call::TrainingJob),
            "Tuning" => Some(Call::TuningJob),
            "Processing" => Some(Call::ProcessingJob),
            "Transform" => Some(Call::TransformJob),
            "Model" => Some(Call::Model),
            _ => None,
        };
        let place = format!("{at}/Arguments");
        match call {
            Some(call) => {
                let body = Body {
                    call,
                    value: arguments,
                    is_named_later: true,
                    is_loose: false,
                };
                checked(body, &place, findings);
            }
            // Decisions of the pipeline itself: nothing is sent for them, but for what is in them.
            None if matches!(kind, "Condition" | "Fail") => {
                for branch in ["IfSteps", "ElseSteps"] {
                    let place = format!("{place}/{branch}");
                    steps(arguments.get(branch), &place, depth + 1, findings);
                }
            }
            None => unread(&format!("a step of type {kind}"), &at, findings),
        }
    }
}

/// Checks a state machine.
pub(super) fn state_machine(machine: &Value, findings: &mut Vec<Finding>) {
    states(machine, "", 0, findings);
}

fn states(machine: &Value, at: &str, depth: usize, findings: &mut Vec<Finding>) {
    let all = machine.get("States").and_then(Value::as_object);
    for (name, state) in all.into_iter().flatten().filter(|_| depth < DEPTH_MAX) {
        let at = format!("{at}/States/{}", escaped(name));
        let resource = state
            .get("Resource")
            .and_then(Value::as_str)
            .unwrap_or_default();
        task(state, resource, &at, findings);
        for member in ["Iterator", "ItemProcessor"] {
            if let Some(inner) = state.get(member) {
                states(inner, &format!("{at}/{member}"), depth + 1, findings);
            }
        }
        let branches = state.get("Branches").and_then(Value::as_array);
        for (index, branch) in branches.into_iter().flatten().enumerate() {
            states(
                branch,
                &format!("{at}/Branches/{index}"),
                depth + 1,
                findings,
            );
        }
    }
}

/// Checks the body that a state sends to SageMaker; nothing for other services.
fn task(state: &Value, resource: &str, at: &str, findings: &mut Vec<Finding>) {
    let Some((_, action)) = resource.rsplit_once("sagemaker:") else {
        return;
    };
    let action = action.split('.').next().unwrap_or_default();
    let call = Call::ALL
        .into_iter()
        .find(|call| call.name().eq_ignore_ascii_case(action));
    let sent = ["Arguments", "Parameters"]
        .into_iter()
        .find_map(|member| Some((member, state.get(member)?)));
    let (Some(call), Some((member, value))) = (call, sent) else {
        return unread(
            &format!("what {action} sends"),
            &format!("{at}/Resource"),
            findings,
        );
    };
    let body = Body {
        call,
        value,
        is_named_later: false,
        is_loose: false,
    };
    checked(body, &format!("{at}/{member}"), findings);
}

/// Checks a template of CloudFormation, as JSON.
pub(super) fn template(template: &Value, findings: &mut Vec<Finding>) {
    let resources = template.get("Resources").and_then(Value::as_object);
    for (name, resource) in resources.into_iter().flatten() {
        let at = format!("/Resources/{}/Properties", escaped(name));
        let kind = resource
            .get("Type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let properties = resource.get("Properties").unwrap_or(&Value::Null);
        let call = match kind.strip_prefix("AWS::SageMaker::") {
            Some("ProcessingJob") => Call::ProcessingJob,
            Some("EndpointConfig") => Call::EndpointConfig,
            Some("Model") => Call::Model,
            Some("Pipeline") => {
                let holder = properties.get("PipelineDefinition").unwrap_or(&Value::Null);
                let at = format!("{at}/PipelineDefinition");
                written(holder, "PipelineDefinitionBody", &at, pipeline, findings);
                continue;
            }
            Some(_) => {
                unread(&format!("a resource of type {kind}"), &at, findings);
                continue;
            }
            None if kind == "AWS::StepFunctions::StateMachine" => {
                match properties.get("Definition") {
                    Some(machine) => states(machine, &format!("{at}/Definition"), 0, findings),
                    None => written(properties, "DefinitionString", &at, state_machine, findings),
                }
                continue;
            }
            None => continue,
        };
        let body = Body {
            call,
            value: properties,
            is_named_later: true,
            is_loose: true,
        };
        checked(body, &at, findings);
    }
}

/// Checks a document that is JSON in a string, also in one with substitutions (`Fn::Sub`). What is said of it points at
/// the string, and mends nothing in it. A string that is put together, or kept elsewhere, is not read.
fn written(
    holder: &Value,
    member: &str,
    at: &str,
    check: impl Fn(&Value, &mut Vec<Finding>),
    findings: &mut Vec<Finding>,
) {
    let text = holder.get(member).and_then(|text| {
        text.as_str()
            .or_else(|| text.get("Fn::Sub")?.as_str())
            .or_else(|| text.pointer("/Fn::Sub/0")?.as_str())
    });
    let Some(document) = text.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
        return unread(
            &format!("{member}, which is not JSON in a string,"),
            at,
            findings,
        );
    };
    let plain = variables::split(&document);
    let mut own = Vec::new();
    check(&plain.value, &mut own);
    plain.leave_out(&mut own);
    for mut finding in own {
        finding.message = format!("{}: {}", finding.pointer, finding.message);
        finding.pointer = format!("{at}/{member}");
        finding.patch = Vec::new();
        findings.push(finding);
    }
}

/// Says that a part is not checked.
fn unread(what: &str, at: &str, findings: &mut Vec<Finding>) {
    findings.push(found("part-not-checked", at).says(format!("{what} is not checked here")));
}

/// Checks a body where it stands.
fn checked(body: Body<'_>, at: &str, findings: &mut Vec<Finding>) {
    let from = findings.len();
    bodies::check(body, findings);
    for finding in findings.iter_mut().skip(from) {
        moved(finding, "", at);
    }
}

/// Whether a document is a pipeline's definition.
pub(super) fn is_pipeline(document: &Map<String, Value>) -> bool {
    let first = document.get("Steps").and_then(|steps| steps.get(0));
    first.is_some_and(|step| step.get("Type").is_some() && step.get("Name").is_some())
}

/// Whether a document is a state machine.
pub(super) fn is_state_machine(document: &Map<String, Value>) -> bool {
    document.contains_key("StartAt") && document.get("States").is_some_and(Value::is_object)
}

/// Whether a document is a template of CloudFormation.
pub(super) fn is_template(document: &Map<String, Value>) -> bool {
    let resources = document.get("Resources").and_then(Value::as_object);
    let is_typed = |resource: &Value| {
        resource
            .get("Type")
            .and_then(Value::as_str)
            .is_some_and(|kind| kind.contains("::"))
    };
    resources.is_some_and(|all| all.values().any(is_typed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::lint::pointers::told_by;

    fn has(found: &[(String, String)], rule: &str, pointer: &str) -> bool {
        found.iter().any(|one| one.0 == rule && one.1 == pointer)
    }

    #[test]
    fn states_within_states_are_checked_where_they_stand() {
        let train = json!({"Type": "Task", "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync",
            "Parameters": {"TrainingJobName.$": "$.name", "HyperParameters": {"epochs": 3}}});
        let other = json!({"Type": "Task", "Resource": "arn:aws:states:::lambda:invoke", "Parameters": {"X": 1}});
        let endpoint =
            json!({"Type": "Task", "Resource": "arn:aws:states:::sagemaker:createEndpoint"});
        let machine = json!({"StartAt": "All", "States": {
            "All": {"Type": "Parallel", "Branches": [{"StartAt": "Train", "States": {"Train": train}}]},
            "Other": other, "Serve": endpoint}});
        let found = told_by(state_machine, &machine);
        let at = "/States/All/Branches/0/States/Train/Parameters";
        assert!(
            has(
                &found,
                "hyperparameter-limits",
                &format!("{at}/HyperParameters/epochs")
            ),
            "{found:?}"
        );
        assert!(has(&found, "member-missing", &format!("{at}/RoleArn")));
        assert!(!has(
            &found,
            "member-missing",
            &format!("{at}/TrainingJobName")
        ));
        assert!(has(&found, "part-not-checked", "/States/Serve/Resource"));
        assert!(found.iter().all(|one| !one.1.starts_with("/States/Other")));
    }

    #[test]
    fn a_template_may_write_numbers_as_text_and_hold_other_documents() {
        let definition = json!({"Version": "2020-12-01", "Steps": [
            {"Name": "t", "Type": "Training", "Arguments": {"HyperParameters": {"epochs": 3}}}]});
        let machine = json!({"StartAt": "t", "States": {"t": {"Type": "Task", "End": true,
            "Resource": "arn:aws:states:::sagemaker:createTrainingJob.sync",
            "Parameters": {"RoleArn": "${Role.Arn}", "HyperParameters": {"epochs": 3}}}}});
        let template = json!({"Resources": {
            "Config": {"Type": "AWS::SageMaker::EndpointConfig", "Properties": {"ProductionVariants": [
                {"VariantName": "a", "ModelName": {"Ref": "Model"}, "InitialInstanceCount": "1", "InstanceType": "ml.g5.xlarge"}]}},
            "Flow": {"Type": "AWS::SageMaker::Pipeline", "Properties": {"PipelineDefinition": {"PipelineDefinitionBody": definition.to_string()}}},
            "Machine": {"Type": "AWS::StepFunctions::StateMachine", "Properties": {"DefinitionString": {"Fn::Join": ["", []]}}},
            "Sub": {"Type": "AWS::StepFunctions::StateMachine", "Properties": {"DefinitionString": {"Fn::Sub": machine.to_string()}}},
            "Map": {"Type": "AWS::StepFunctions::StateMachine", "Properties": {"DefinitionString": {"Fn::Sub": [machine.to_string(), {}]}}},
            "Bucket": {"Type": "AWS::S3::Bucket"}}});
        let found = told_by(super::template, &template);
        let errors: Vec<_> = found
            .iter()
            .filter(|one| one.1.starts_with("/Resources/Config"))
            .collect();
        assert!(
            errors.iter().all(|one| one.0 == "value-not-known"),
            "{errors:?}"
        );
        assert!(has(
            &found,
            "part-not-checked",
            "/Resources/Machine/Properties"
        ));
        for name in ["Sub", "Map"] {
            let body = format!("/Resources/{name}/Properties/DefinitionString");
            assert!(has(&found, "hyperparameter-limits", &body), "{found:?}");
            let mut own = found.iter().filter(|one| one.1.starts_with(&body));
            assert!(own.all(|one| !one.0.contains("role")), "{found:?}");
        }
        let body = "/Resources/Flow/Properties/PipelineDefinition/PipelineDefinitionBody";
        assert!(has(&found, "hyperparameter-limits", body), "{found:?}");
    }
}
