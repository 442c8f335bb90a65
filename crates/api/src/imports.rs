//! API views of imports: an experiment drafted from existing documents.

use bakeoff_planner::import::{Import, ImportQuestion, ImportedField, LeftOutField};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

/// A field to confirm or to fill in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = ImportQuestion)]
pub struct ImportQuestionView {
    /// JSON pointer into the experiment: what an answer is named by.
    pub pointer: String,
    pub question: String,
    /// Already in the specification; absent where nothing can be proposed, and an answer is needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    pub proposal: Option<Value>,
    /// Why it cannot be known, or what the proposal rests on.
    pub why: String,
}

impl From<ImportQuestion> for ImportQuestionView {
    fn from(of: ImportQuestion) -> Self {
        let ImportQuestion {
            pointer,
            question,
            proposal,
            why,
        } = of;
        Self {
            pointer,
            question,
            proposal,
            why,
        }
    }
}

/// A field of the draft, and what it was read from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = ImportedField)]
pub struct ImportedFieldView {
    /// JSON pointer into the experiment.
    pub pointer: String,
    /// What said it: `HyperParameters.max_seq_length`.
    pub from: String,
}

impl From<ImportedField> for ImportedFieldView {
    fn from(of: ImportedField) -> Self {
        let ImportedField { pointer, from } = of;
        Self { pointer, from }
    }
}

/// What an experiment has no place for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = LeftOutField)]
pub struct LeftOutFieldView {
    /// The member of the job's body.
    pub member: String,
    /// What that means for the jobs of the experiment.
    pub why: String,
}

impl From<LeftOutField> for LeftOutFieldView {
    fn from(of: LeftOutField) -> Self {
        let LeftOutField { member, why } = of;
        Self { member, why }
    }
}

/// An experiment that was made, with everything that a person should know of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Import)]
pub struct ImportView {
    /// The experiment, complete but for the questions without a proposal.
    #[schema(value_type = Object)]
    pub spec: Value,
    /// Whether it can be planned as it is: nothing is left that must be answered.
    pub is_complete: bool,
    /// Those without a proposal first.
    pub questions: Vec<ImportQuestionView>,
    pub read: Vec<ImportedFieldView>,
    pub left_out: Vec<LeftOutFieldView>,
}

impl From<Import> for ImportView {
    fn from(import: Import) -> Self {
        let Import {
            spec,
            is_complete,
            questions,
            read,
            left_out,
        } = import;
        Self {
            spec,
            is_complete,
            questions: questions.into_iter().map(Into::into).collect(),
            read: read.into_iter().map(Into::into).collect(),
            left_out: left_out.into_iter().map(Into::into).collect(),
        }
    }
}
