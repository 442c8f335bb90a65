//! The experiment as it comes together: what is taken, proposed, asked and left out.

use std::collections::BTreeMap;

use bakeoff_domain::finding::escaped;
use serde_json::{Map, Value, json};

use super::{Import, ImportQuestion, ImportedField, LeftOutField, Unreadable};

pub(super) struct Draft<'a> {
    pub(super) spec: Value,
    answers: &'a BTreeMap<String, Value>,
    questions: Vec<ImportQuestion>,
    read: Vec<ImportedField>,
    left_out: Vec<LeftOutField>,
}

/// What a document says.
pub(super) struct StatedValue {
    pub(super) value: Value,
    pub(super) from: String,
}

/// What is asked where nothing says it.
pub(super) struct Ask<'q> {
    pub(super) question: &'q str,
    pub(super) proposal: Option<Value>,
    pub(super) why: String,
}

impl<'a> Draft<'a> {
    pub(super) fn new(answers: &'a BTreeMap<String, Value>) -> Self {
        Self {
            spec: json!({"workload": {"model": {}}, "objective": {"minimize": "cost"}}),
            answers,
            questions: Vec::new(),
            read: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// What a person has answered.
    pub(super) fn answer(&self, pointer: &str) -> Option<&'a Value> {
        self.answers.get(pointer)
    }

    /// The value that stands at a pointer by now.
    pub(super) fn get(&self, pointer: &str) -> Option<&Value> {
        self.answer(pointer).or_else(|| self.spec.pointer(pointer))
    }

    /// Sets what nothing says and nobody need be asked.
    pub(super) fn set(&mut self, pointer: &str, value: Value) {
        put(&mut self.spec, pointer, value);
    }

    /// Sets what a document says.
    pub(super) fn take(&mut self, pointer: &str, value: impl Into<Value>, from: impl Into<String>) {
        put(&mut self.spec, pointer, value.into());
        if self.answer(pointer).is_none() {
            self.read.push(ImportedField {
                pointer: pointer.to_owned(),
                from: from.into(),
            });
        }
    }

    /// Sets a proposal, and asks; an answer needs neither.
    pub(super) fn ask(&mut self, pointer: &str, ask: Ask<'_>) {
        if let Some(answer) = self.answer(pointer) {
            put(&mut self.spec, pointer, answer.clone());
            return;
        }
        if let Some(proposal) = &ask.proposal {
            put(&mut self.spec, pointer, proposal.clone());
        }
        self.questions.push(ImportQuestion {
            pointer: pointer.to_owned(),
            question: ask.question.to_owned(),
            proposal: ask.proposal,
            why: ask.why,
        });
    }

    /// Takes what a document says, or asks.
    pub(super) fn take_or_ask(
        &mut self,
        pointer: &str,
        found: Option<StatedValue>,
        ask: impl FnOnce() -> Ask<'static>,
    ) {
        match found {
            Some(found) => self.take(pointer, found.value, found.from),
            None => self.ask(pointer, ask()),
        }
    }

    pub(super) fn leave_out(&mut self, member: &str, why: &str) {
        self.left_out.push(LeftOutField {
            member: member.to_owned(),
            why: why.to_owned(),
        });
    }

    /// Sets all answers, also those to what was not asked.
    ///
    /// # Errors
    /// Names those that point nowhere.
    pub(super) fn set_answers(&mut self) -> Result<(), Vec<Unreadable>> {
        let mut nowhere = Vec::new();
        for (pointer, answer) in self.answers {
            if !put(&mut self.spec, pointer, answer.clone()) {
                let shown: String = pointer.chars().take(POINTER_SHOWN).collect();
                nowhere.push(Unreadable {
                    pointer: format!("/answers/{}", escaped(&shown)),
                    why: format!("{shown:?} is no place in an experiment"),
                    fix: "name the place by a JSON pointer, as the questions do: /workload/total_tokens".to_owned(),
                });
            }
        }
        if nowhere.is_empty() {
            Ok(())
        } else {
            Err(nowhere)
        }
    }

    pub(super) fn finish(mut self) -> Import {
        self.questions.sort_by_key(|one| one.proposal.is_some());
        Import {
            spec: self.spec,
            is_complete: self.questions.iter().all(|one| one.proposal.is_some()),
            questions: self.questions,
            read: self.read,
            left_out: self.left_out,
        }
    }
}

/// The deepest place in an experiment is not half as deep; what is nested without a bound overflows the stack when it is
/// written or dropped.
const DEPTH_MAX: usize = 32;
/// Letters of a pointer that an error repeats.
const POINTER_SHOWN: usize = 120;

/// Sets a value, with the objects above it; false if the pointer leads through something else, or too deep.
fn put(spec: &mut Value, pointer: &str, value: Value) -> bool {
    let Some(path) = pointer.strip_prefix('/') else {
        return false;
    };
    if path.split('/').nth(DEPTH_MAX).is_some() {
        return false;
    }
    let mut at = spec;
    for part in path.split('/') {
        let name = part.replace("~1", "/").replace("~0", "~");
        let next = match at {
            Value::Object(members) => Some(
                members
                    .entry(name)
                    .or_insert_with(|| Value::Object(Map::new())),
            ),
            Value::Array(items) => name
                .parse()
                .ok()
                .and_then(|index: usize| items.get_mut(index)),
            _ => None,
        };
        let Some(next) = next else { return false };
        at = next;
    }
    *at = value;
    true
}
