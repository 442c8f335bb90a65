//! References of one step to outputs of another: `${step.member.member}` in any text. They are found in
//! every text of a body, and replaced once the step that they name has completed.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::finding::escaped;

/// A reference, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// JSON pointer into the body.
    pub pointer: String,
    pub step: String,
    /// The members that lead to the value, in the step's outputs.
    pub path: Vec<String>,
}

impl Reference {
    /// As it is written.
    pub fn text(&self) -> String {
        format!("${{{}.{}}}", self.step, self.path.join("."))
    }
}

/// A text with `${` that is no reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    pub pointer: String,
    pub text: String,
}

/// A reference to something that is not among its step's outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unresolved {
    pub reference: Reference,
    pub why: String,
}

enum TextPart<'a> {
    Text(&'a str),
    Reference(&'a str),
}

/// Splits a text at its references; `Err` is what begins like one and is none.
fn parts(text: &str) -> Result<Vec<TextPart<'_>>, String> {
    let (mut parts, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(kept) = before.strip_suffix('$') {
            // `$${`: one dollar and the brace are meant.
            parts.extend([TextPart::Text(kept), TextPart::Text("${")]);
            rest = from.get(2..).unwrap_or_default();
            continue;
        }
        parts.push(TextPart::Text(before));
        let Some((inner, after)) = from.get(2..).and_then(|inner| inner.split_once('}')) else {
            return Err(from.to_owned());
        };
        if path(inner).is_none() {
            return Err(format!("${{{inner}}}"));
        }
        parts.push(TextPart::Reference(inner));
        rest = after;
    }
    parts.push(TextPart::Text(rest));
    Ok(parts)
}

/// The step and the members of `step.member.member`.
fn path(inner: &str) -> Option<(&str, Vec<String>)> {
    let (step, rest) = inner.split_once('.')?;
    let is_name = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !name.is_empty() && name.len() <= 100 && name.chars().all(is_part)
    };
    let path: Vec<String> = rest.split('.').map(str::to_owned).collect();
    (is_name(step) && path.iter().all(|name| is_name(name))).then_some((step, path))
}

fn reference(pointer: &str, inner: &str) -> Option<Reference> {
    let (step, path) = path(inner)?;
    Some(Reference {
        pointer: pointer.to_owned(),
        step: step.to_owned(),
        path,
    })
}

/// Calls `act` with every text of a value and where it stands.
fn each_text(value: &Value, pointer: &str, act: &mut dyn FnMut(&str, &str)) {
    match value {
        Value::String(text) => act(pointer, text),
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                each_text(item, &format!("{pointer}/{index}"), act);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = escaped(name);
                each_text(field, &format!("{pointer}/{name}"), act);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// All references in a body, and what looks like one and is none.
pub fn find(body: &Value) -> (Vec<Reference>, Vec<Unreadable>) {
    let (mut found, mut unreadable) = (Vec::new(), Vec::new());
    each_text(body, "", &mut |pointer, text| match parts(text) {
        Ok(parts) => found.extend(parts.iter().filter_map(|part| match part {
            TextPart::Reference(inner) => reference(pointer, inner),
            TextPart::Text(_) => None,
        })),
        Err(text) => unreadable.push(Unreadable {
            pointer: pointer.to_owned(),
            text,
        }),
    });
    (found, unreadable)
}

/// The body with every reference replaced by what `value_of` says it stands for.
pub fn replaced(
    body: &Value,
    value_of: &dyn Fn(&Reference) -> Result<Value, Unresolved>,
) -> Result<Value, Unresolved> {
    replaced_at(body, "", value_of)
}

fn replaced_at(
    value: &Value,
    pointer: &str,
    value_of: &dyn Fn(&Reference) -> Result<Value, Unresolved>,
) -> Result<Value, Unresolved> {
    Ok(match value {
        Value::String(text) => replaced_text(text, pointer, value_of)?,
        Value::Array(items) => {
            let items = items.iter().enumerate();
            let items =
                items.map(|(i, item)| replaced_at(item, &format!("{pointer}/{i}"), value_of));
            Value::Array(items.collect::<Result<_, _>>()?)
        }
        Value::Object(fields) => {
            let fields = fields.iter().map(|(name, field)| {
                let field = replaced_at(field, &format!("{pointer}/{name}"), value_of)?;
                Ok((name.clone(), field))
            });
            Value::Object(fields.collect::<Result<_, _>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    })
}

fn replaced_text(
    text: &str,
    pointer: &str,
    value_of: &dyn Fn(&Reference) -> Result<Value, Unresolved>,
) -> Result<Value, Unresolved> {
    // What cannot be read was refused when the pipeline was created.
    let parts = parts(text).unwrap_or_else(|_| vec![TextPart::Text(text)]);
    let is_whole = matches!(
        parts.as_slice(),
        [
            TextPart::Text(""),
            TextPart::Reference(_),
            TextPart::Text("")
        ]
    );
    let mut written = String::new();
    for part in parts {
        let inner = match part {
            TextPart::Text(text) => {
                written.push_str(text);
                continue;
            }
            TextPart::Reference(inner) => inner,
        };
        let Some(reference) = reference(pointer, inner) else {
            continue;
        };
        let value = value_of(&reference)?;
        if is_whole {
            return Ok(value);
        }
        match value {
            Value::String(text) => written.push_str(&text),
            Value::Number(number) => written.push_str(&number.to_string()),
            Value::Bool(flag) => written.push_str(&flag.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => {
                let why = "it is no text, number or flag, and stands within a text".to_owned();
                return Err(Unresolved { reference, why });
            }
        }
    }
    Ok(Value::String(written))
}

/// The body with every reference replaced by the steps' outputs.
pub fn resolve(body: &Value, outputs: &BTreeMap<String, Value>) -> Result<Value, Unresolved> {
    replaced(body, &|reference| {
        let found = value_of(reference, outputs);
        found.map_err(|why| Unresolved {
            reference: reference.clone(),
            why,
        })
    })
}

/// What a reference stands for, or what there is instead.
fn value_of(reference: &Reference, outputs: &BTreeMap<String, Value>) -> Result<Value, String> {
    let Reference { step, path, .. } = reference;
    let mut value = outputs
        .get(step)
        .ok_or_else(|| format!("{step} has not completed"))?;
    let mut place = step.clone();
    for name in path {
        let next = match value {
            Value::Array(items) => name.parse().ok().and_then(|index: usize| items.get(index)),
            other => other.get(name),
        };
        let Some(next) = next.filter(|next| !next.is_null()) else {
            let known = value.as_object().into_iter().flatten();
            let known = known.filter(|(_, value)| !value.is_null());
            let known: Vec<&str> = known.map(|(name, _)| name.as_str()).collect();
            return Err(if known.is_empty() {
                format!("{place} has no members")
            } else {
                format!("{place} has {}", known.join(", "))
            });
        };
        (value, place) = (next, format!("{place}.{name}"));
    }
    Ok(value.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outputs() -> BTreeMap<String, Value> {
        let prepare = json!({"outputs": {"train": "s3://b/t"}, "message": {"train": {"records": 9}, "x": null}});
        BTreeMap::from([("prepare".to_owned(), prepare)])
    }

    #[test]
    fn a_whole_text_becomes_the_value_and_a_part_of_one_is_written_into_it() {
        let body = json!({"uri": "${prepare.outputs.train}", "n": "${prepare.message.train.records}",
            "list": ["--n=${prepare.message.train.records} of ${prepare.outputs.train}"]});
        let want = json!({"uri": "s3://b/t", "n": 9, "list": ["--n=9 of s3://b/t"]});
        assert_eq!(resolve(&body, &outputs()), Ok(want));
        assert_eq!(find(&body).0.len(), 4);
    }

    #[test]
    fn a_doubled_dollar_is_a_dollar_and_a_lone_one_is_itself() {
        let body = json!([
            "$${HOME}",
            "a$b",
            "$",
            "{}",
            "$${a.b}${prepare.outputs.train}"
        ]);
        let want = json!(["${HOME}", "a$b", "$", "{}", "${a.b}s3://b/t"]);
        assert_eq!(resolve(&body, &outputs()), Ok(want));
        assert!(find(&body).1.is_empty());
    }

    #[test]
    fn what_is_no_reference_is_told_with_its_place() {
        for wrong in ["${HOME}", "${a.b", "${a..b}", "${.b}", "${a b.c}", "x${}"] {
            let (found, unreadable) = find(&json!({"a": [wrong]}));
            assert!(found.is_empty(), "{wrong}");
            let pointers: Vec<&str> = unreadable.iter().map(|one| one.pointer.as_str()).collect();
            assert_eq!(pointers, ["/a/0"], "{wrong}");
        }
    }

    #[test]
    fn what_is_not_there_is_told_with_what_is() {
        let why = |text: &str| resolve(&json!([text]), &outputs()).unwrap_err().why;
        assert_eq!(why("${prepare.outputs.test}"), "prepare.outputs has train");
        assert_eq!(why("${prepare.message.x}"), "prepare.message has train");
        assert_eq!(why("${train.outputs.x}"), "train has not completed");
        assert_eq!(
            why("${prepare.outputs.train.more}"),
            "prepare.outputs.train has no members"
        );
        assert!(why("a ${prepare.outputs}").contains("stands within a text"));
    }
}
