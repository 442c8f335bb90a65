//! Rules of the sources: style, imports, forms, query plans, and what mutants must not survive.

pub(crate) mod dependencies;
pub(crate) mod docs;
pub(crate) mod forms;
pub(crate) mod imports;
pub(crate) mod mutant_killers;
pub(crate) mod query_plans;
pub(crate) mod snippets;
pub(crate) mod sql_states;
pub(crate) mod style;
