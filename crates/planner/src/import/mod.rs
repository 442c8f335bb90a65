//! An experiment from what people already have: arguments of an estimator or a ModelTrainer, the body of a job or its
//! description, a model's `config.json` or name, a DeepSpeed configuration, a trainer's configuration file, a W&B run. What they say is
//! taken, what they do not say is proposed and asked, and what an experiment has no place for is named.

mod draft;
mod hyperparameters;
mod inside;
mod job;
mod left_out;
mod material;
mod own_cluster;
mod proposals;
mod trainer_config;
mod wandb;

use std::collections::BTreeMap;

use bakeoff_domain::catalog::hugging_face;
use bakeoff_domain::money::price::Price;
use serde::Serialize;
use serde_json::Value;

use self::draft::Draft;
pub use self::material::Unreadable;
use self::material::{MODEL, Material};
use crate::predict::Calibration;

/// A field to confirm or to fill in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportQuestion {
    /// JSON pointer into the experiment: what an answer is named by.
    pub pointer: String,
    pub question: String,
    /// Already in the specification; absent where nothing can be proposed, and an answer is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proposal: Option<Value>,
    /// Why it cannot be known, or what the proposal rests on.
    pub why: String,
}

/// A field of the draft, and what it was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportedField {
    /// JSON pointer into the experiment.
    pub pointer: String,
    /// What said it: `HyperParameters.max_seq_length`.
    pub from: String,
}

/// What an experiment has no place for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOutField {
    /// The member of the job's body.
    pub member: String,
    /// What that means for the jobs of the experiment.
    pub why: String,
}

/// An experiment that was made, with everything that a person should know of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Import {
    /// The experiment, complete but for the questions without a proposal.
    pub spec: Value,
    /// Whether it can be planned as it is: nothing is left that must be answered.
    pub is_complete: bool,
    /// Those without a proposal first.
    pub questions: Vec<ImportQuestion>,
    pub read: Vec<ImportedField>,
    pub left_out: Vec<LeftOutField>,
}

/// What an import starts from.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// Documents, and names of models as text.
    pub documents: &'a [Value],
    /// Answers to questions, by pointer.
    pub answers: &'a BTreeMap<String, Value>,
    /// The prices in force in the region.
    pub prices: &'a [Price],
    /// The region that is proposed where nothing names one.
    pub home: &'a str,
    pub calibration: &'a Calibration,
    /// Stands at the end of names that the SDK would make.
    pub stamp: &'a str,
}

/// The region that an import is for, whose prices it needs; `None` if nothing names one, or nothing can be read.
pub fn region(documents: &[Value], answers: &BTreeMap<String, Value>) -> Option<String> {
    if let Some(answer) = answers.get("/region").and_then(Value::as_str) {
        return Some(answer.to_owned());
    }
    let material = Material::of(documents, None, "").ok()?;
    job::region(&material).map(str::to_owned)
}

/// Makes an experiment.
///
/// # Errors
/// Names each document that says nothing of a training job, or that cannot be read.
pub fn import(known: Known<'_>) -> Result<Import, Vec<Unreadable>> {
    let mut answers = known.answers.clone();
    // A model is answered as it is sent: by its name, or its config.json.
    let model = known
        .answers
        .get(MODEL)
        .filter(|model| model.is_string() || hugging_face::is_config(model));
    if model.is_some() {
        answers.remove(MODEL);
    }
    let material = Material::of(known.documents, model, known.stamp)?;
    let mut draft = Draft::new(&answers);
    if let Some(spec) = &material.experiment {
        draft.spec = spec.clone();
        draft.set_answers()?;
        return Ok(draft.finish());
    }
    job::take(&material, known.home, &mut draft);
    proposals::propose(&material, known, &mut draft);
    draft.set_answers()?;
    Ok(draft.finish())
}

#[cfg(test)]
mod tests;
