//! The linter: rules that a document must follow, each with an id, a severity, a pointer, a fix and
//! a source.
//!
//! [`rules`] holds the register of rules. A check is a function in [`request`] (an experiment as a
//! whole), [`candidate`] (one candidate on its hardware), [`shape`] (a raw body, by the API's own model in
//! [`api`]), [`estimator`] and [`trainer`] (arguments of the SDK), or in [`training`] and [`libraries`],
//! which see a training job whatever document it came from. [`bodies`] checks whatever AWS takes, also
//! within the documents of [`documents`]; [`configurations`] reads other programs' configurations. Errors stop the request; refusals stop one candidate;
//! warnings and notes accompany the plan.

mod algorithms;
mod api;
mod bodies;
mod candidate;
mod claims;
mod configurations;
mod documents;
mod estimator;
pub(crate) mod job;
mod libraries;
mod patterns;
mod pointers;
mod quota;
mod recognised;
mod rendered;
mod request;
pub mod run;
pub(crate) mod shape;
pub(crate) mod trainer;
mod training;
pub(crate) mod variables;

pub(crate) use self::configurations::apply as deepspeed_profile;
pub use self::quota::above_quota;
pub use self::recognised::kind_of;
use crate::rules;
pub use crate::rules::document_kind::Kind;

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bakeoff_domain::catalog::model::is_sound;
use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::money::price::Price;
use bakeoff_domain::spec::run::RunSpec;
use bakeoff_domain::spec::{CandidateSpec, ExperimentSpec, ProfileSpec, WorkloadSpec};
use serde_json::Value;

use self::api::Call;
use self::pointers::moved;
use crate::comparison;
use crate::predict::{Calibration, forecast};

/// A document, parsed as far as its kind has a type.
#[derive(Debug, Clone)]
pub enum Document {
    Experiment(Box<ExperimentSpec>),
    Workload(Box<WorkloadSpec>),
    InstanceProfile {
        instance_type: Option<String>,
        spec: Box<ProfileSpec>,
        at: &'static str,
    },
    Run(Box<RunSpec>),
    /// A document of somebody else's, of this kind.
    Foreign(Kind, Value),
}

/// What a document is checked against, beyond its own content.
#[derive(Debug, Clone, Copy)]
pub struct LintContext<'a> {
    /// The prices in force.
    pub prices: &'a [Price],
    /// Calibration of the predicted speeds. It must be the forecast's, or linter and forecast would
    /// contradict each other.
    pub calibration: &'a Calibration,
}

/// Lints a document of any kind against its own content and the prices in force.
pub fn document(document: &Document, prices: &[Price]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let known = LintContext {
        prices,
        calibration: &Calibration::shipped(),
    };
    match document {
        Document::Experiment(spec) => return lint(spec, prices),
        Document::Workload(workload) => {
            request::workload(workload, &mut findings);
            for finding in &mut findings {
                moved(finding, "/workload", "");
            }
        }
        Document::InstanceProfile {
            instance_type,
            spec,
            at,
        } => {
            candidate::profile(instance_type.as_deref(), spec, at, &mut findings);
        }
        Document::Run(spec) => {
            findings = run::check(spec);
            run::claimed(spec, known, &mut findings);
        }
        Document::Foreign(kind, value) => foreign(*kind, value, known, &mut findings),
    }
    once(findings)
}

/// Checks a document that is none of our own types.
fn foreign(kind: Kind, value: &Value, known: LintContext<'_>, findings: &mut Vec<Finding>) {
    let body = |call, findings: &mut Vec<Finding>| {
        let body = bodies::Body {
            call,
            value,
            is_named_later: false,
            is_loose: false,
        };
        bodies::check(body, findings);
    };
    match kind {
        Kind::TrainingJob => match bodies::request_of_description(value) {
            Some(request) => {
                findings.push(rules::found("described-job", ""));
                foreign(kind, &request, known, findings);
            }
            None => body(Call::TrainingJob, findings),
        },
        Kind::TuningJob => body(Call::TuningJob, findings),
        Kind::ProcessingJob => body(Call::ProcessingJob, findings),
        Kind::TransformJob => body(Call::TransformJob, findings),
        Kind::EndpointConfig => body(Call::EndpointConfig, findings),
        Kind::SagemakerModel => body(Call::Model, findings),
        Kind::PipelineDefinition => documents::pipeline(value, findings),
        Kind::StateMachine => documents::state_machine(value, findings),
        Kind::CloudformationTemplate => documents::template(value, findings),
        Kind::ModelTrainer => trainer::check(value, findings),
        Kind::ModelConfig => configurations::model(value, findings),
        Kind::DeepspeedConfig => configurations::deepspeed(value, findings),
        Kind::Estimator => {
            estimator::check(value, findings);
            claimed(value, known, findings);
        }
        Kind::Experiment | Kind::Workload | Kind::InstanceProfile | Kind::Run => {}
    }
}

/// Checks the claims among an estimator's arguments.
fn claimed(arguments: &Value, known: LintContext<'_>, findings: &mut Vec<Finding>) {
    match arguments.get("claims").cloned().map(serde_json::from_value) {
        Some(Ok(claims)) => {
            claims::check(&claims, "/claims", claims::Facts::of(known), findings);
        }
        Some(Err(error)) => {
            findings.push(rules::found("claims-shape", "/claims").says(error.to_string()));
        }
        None => {}
    }
}

/// Merges duplicate findings: candidates of one experiment share their workload.
fn once(findings: Vec<Finding>) -> Vec<Finding> {
    let mut places = BTreeMap::new();
    let mut kept: Vec<Finding> = Vec::new();
    for finding in findings {
        // A shared setting may be refused for a reason specific to each candidate.
        let is_ones_own = finding.severity == Severity::Refused && finding.candidate().is_none();
        let reason = if is_ones_own {
            finding.message.clone()
        } else {
            String::new()
        };
        let key = (finding.rule.clone(), finding.pointer.clone(), reason);
        let Some(first) = places
            .get(&key)
            .and_then(|place: &usize| kept.get_mut(*place))
        else {
            places.insert(key, kept.len());
            kept.push(finding);
            continue;
        };
        // An empty set means all candidates.
        if finding.candidates.is_empty() {
            first.candidates.clear();
        } else if !first.candidates.is_empty() {
            first.candidates.extend(finding.candidates);
        }
    }
    kept
}

/// Marks the findings from index `from` on as made for one candidate.
fn mark_candidate(candidate: usize, findings: &mut [Finding], from: usize) {
    for finding in findings
        .iter_mut()
        .skip(from)
        .filter(|finding| finding.candidate().is_none())
    {
        finding.candidates.insert(candidate);
    }
}

/// Lints an experiment whose workload and profiles have been filled in, using only the measurements
/// that it lists itself.
pub fn lint(spec: &ExperimentSpec, prices: &[Price]) -> Vec<Finding> {
    lint_with(
        spec,
        LintContext {
            prices,
            calibration: &forecast::calibrated(spec),
        },
    )
}

/// The same, when more is known about speeds than the experiment says.
pub fn lint_with(spec: &ExperimentSpec, known: LintContext<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    request::experiment(spec, &mut findings);
    request::limits(spec, &mut findings);
    // Beyond these limits, the remaining checks could take unbounded time.
    if !is_bounded(&findings) {
        return findings;
    }
    request::spot(spec, &mut findings);
    request::queueing::queueing(spec, &mut findings);
    request::measurements(spec, &mut findings);
    match &spec.workload {
        None => findings.push(request::workload_missing()),
        Some(workload) => request::workload(workload, &mut findings),
    }
    candidates(spec, known, &mut findings);
    claims_of(spec, known, &mut findings);
    let mut findings = once(findings);
    for index in 0..spec.candidates.len() {
        let from = findings.len();
        rendered::check(spec, index, &mut findings);
        mark_candidate(index, &mut findings, from);
    }
    let mut findings = once(findings);
    findings.extend(comparability(spec, &findings).into_iter().flatten());
    findings.extend(comparison::differences_in_running(&identities(
        spec, &findings,
    )));
    findings
}

/// Checks each candidate on its hardware, and the training job that it would become.
fn candidates(spec: &ExperimentSpec, known: LintContext<'_>, findings: &mut Vec<Finding>) {
    for (index, found) in spec.candidates.iter().enumerate() {
        let from = findings.len();
        candidate::check(spec, index, known, findings);
        if let Some(workload) = &spec.workload {
            let job = job::of_candidate(spec, workload, index, found);
            training::check(&job, findings);
            libraries::check(&job, findings);
        }
        mark_candidate(index, findings, from);
    }
}

fn claims_of(spec: &ExperimentSpec, known: LintContext<'_>, findings: &mut Vec<Finding>) {
    let Some(claimed) = &spec.claims else { return };
    let candidates = spec.candidates.iter();
    let runs_on: Vec<&str> = candidates.map(|one| one.instance_type.as_str()).collect();
    let workload = spec.workload.as_ref();
    let model = workload.map(|workload| &workload.model);
    let facts = claims::Facts {
        model: model.filter(|model| is_sound(model)),
        global_batch: workload.and_then(|workload| workload.global_batch),
        runs_on: &runs_on,
        ..claims::Facts::of(known)
    };
    claims::check(claimed, "/claims", facts, findings);
}

/// Whether there are few enough candidates and trials to check and lay out.
pub(crate) fn is_bounded(findings: &[Finding]) -> bool {
    !findings
        .iter()
        .any(|finding| matches!(finding.rule.as_str(), "candidate-count" | "trial-count"))
}

/// Returns one entry per candidate: the finding that excludes it from the ranking. Candidates
/// refused by `findings` have none, and do not count towards the usual identity.
pub fn comparability(spec: &ExperimentSpec, findings: &[Finding]) -> Vec<Option<Finding>> {
    let identities = identities(spec, findings);
    let mut all = vec![None; spec.candidates.len()];
    let found = comparison::incomparable(&identities);
    for (identity, finding) in identities.iter().zip(found) {
        if let Some(slot) = all.get_mut(identity.index) {
            *slot = finding;
        }
    }
    all
}

/// What is compared of each candidate that `findings` do not refuse.
fn identities(spec: &ExperimentSpec, findings: &[Finding]) -> Vec<comparison::Identity> {
    let of_one = |(index, candidate): (usize, &CandidateSpec)| {
        let is_refused = findings.iter().any(|finding| finding.refuses(index));
        let profile = candidate.profile.as_ref().filter(|_| !is_refused)?;
        Some(comparison::Identity {
            index,
            candidate: candidate.name.clone(),
            global_batch: profile.global_batch(candidate.accelerators()),
            accelerators: candidate.accelerators(),
            profile: profile.clone(),
        })
    };
    let candidates = spec.candidates.iter().enumerate();
    candidates.filter_map(of_one).collect()
}

/// Reads the register of rules and compiles every pattern.
pub(crate) fn read_embedded() {
    rules::all();
    api::compile();
    LazyLock::force(&request::ROLE);
}

#[cfg(test)]
mod tests;
