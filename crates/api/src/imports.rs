//! API views of imports: an experiment drafted from existing documents.

use bakeoff_planner::import::{Import, ImportQuestion, ImportedField, LeftOutField};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

view! {
    /// A field to confirm or to fill in.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = ImportQuestion)]
    pub struct ImportQuestionView of ImportQuestion {
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
}

view! {
    /// A field of the draft, and what it was read from.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = ImportedField)]
    pub struct ImportedFieldView of ImportedField {
        /// JSON pointer into the experiment.
        pub pointer: String,
        /// What said it: `HyperParameters.max_seq_length`.
        pub from: String,
    }
}

view! {
    /// What an experiment has no place for.
    #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[schema(as = LeftOutField)]
    pub struct LeftOutFieldView of LeftOutField {
        /// The member of the job's body.
        pub member: String,
        /// What that means for the jobs of the experiment.
        pub why: String,
    }
}

view! {
    /// An experiment that was made, with everything that a person should know of it.
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
    #[schema(as = Import)]
    pub struct ImportView of Import {
        /// The experiment, complete but for the questions without a proposal.
        #[schema(value_type = Object)]
        pub spec: Value,
        /// Whether it can be planned as it is: nothing is left that must be answered.
        pub is_complete: bool,
        /// Those without a proposal first.
        pub questions: Vec<ImportQuestionView> as each,
        pub read: Vec<ImportedFieldView> as each,
        pub left_out: Vec<LeftOutFieldView> as each,
    }
}
