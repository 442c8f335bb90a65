//! Documents in files: JSON, or YAML by the file's name.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value};
use serde_norway::Value as Yaml;
use serde_norway::value::TaggedValue;

/// A file's document as JSON.
pub(super) fn document(path: &Path) -> anyhow::Result<Value> {
    let bytes = json(path)?;
    serde_json::from_slice(&bytes).with_context(|| format!("{} is not JSON", path.display()))
}

/// What a file says, in JSON: its own bytes, unless it is YAML.
pub(super) fn json(path: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    if !is_yaml(path) {
        // As Windows begins a file.
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        return Ok(text.to_vec());
    }
    let value = from_yaml(&bytes).with_context(|| path.display().to_string())?;
    Ok(serde_json::to_vec(&value)?)
}

pub(super) fn is_yaml(path: &Path) -> bool {
    let extension = path.extension().and_then(OsStr::to_str);
    extension
        .is_some_and(|text| text.eq_ignore_ascii_case("yaml") || text.eq_ignore_ascii_case("yml"))
}

/// Whether a file is named as one with a document.
pub(super) fn is_document(path: &Path) -> bool {
    let is_json = |text: &OsStr| text.eq_ignore_ascii_case("json");
    is_yaml(path) || path.extension().is_some_and(is_json)
}

fn from_yaml(bytes: &[u8]) -> anyhow::Result<Value> {
    as_json(serde_norway::from_slice(bytes).context("not YAML")?)
}

fn as_json(yaml: Yaml) -> anyhow::Result<Value> {
    Ok(match yaml {
        Yaml::Null => Value::Null,
        Yaml::Bool(bool) => bool.into(),
        Yaml::Number(number) if !number.is_finite() => bail!("{number} cannot be written in JSON"),
        Yaml::Number(number) => serde_json::to_value(&number)?,
        Yaml::String(text) => text.into(),
        Yaml::Sequence(items) => {
            let items: anyhow::Result<Vec<Value>> = items.into_iter().map(as_json).collect();
            items?.into()
        }
        Yaml::Mapping(members) => {
            let members = members.into_iter();
            let members: anyhow::Result<Map<String, Value>> = members
                .map(|(key, value)| Ok((name(key)?, as_json(value)?)))
                .collect();
            merged(members?)?.into()
        }
        Yaml::Tagged(tagged) => of_cloud_formation(*tagged)?,
    })
}

/// What `<<` names has the members that are not given (YAML 1.1, "Merge Key Language-Independent Type").
fn merged(mut members: Map<String, Value>) -> anyhow::Result<Map<String, Value>> {
    let sources = match members.remove("<<") {
        None => return Ok(members),
        Some(Value::Array(sources)) => sources,
        Some(source) => vec![source],
    };
    for source in sources {
        let Value::Object(source) = source else {
            bail!("`<<` takes mappings, not {source}");
        };
        for (name, value) in source {
            members.entry(name).or_insert(value);
        }
    }
    Ok(members)
}

/// Members of JSON are named by text; `2: …` is the member `"2"`.
fn name(key: Yaml) -> anyhow::Result<String> {
    Ok(match as_json(key)? {
        Value::String(name) => name,
        other @ (Value::Number(_) | Value::Bool(_)) => other.to_string(),
        other => bail!("{other} is used as a name, and is not text"),
    })
}

/// `!Ref x` is `{"Ref": "x"}`, `!Sub x` is `{"Fn::Sub": "x"}` (AWS CloudFormation, "Intrinsic function reference").
fn of_cloud_formation(tagged: TaggedValue) -> anyhow::Result<Value> {
    let tag = tagged.tag.to_string();
    let function = tag.trim_start_matches('!');
    let mut value = as_json(tagged.value)?;
    if function == "GetAtt"
        && let Some((resource, attribute)) = value.as_str().and_then(|text| text.split_once('.'))
    {
        value = serde_json::json!([resource, attribute]);
    }
    let function = match function {
        "Ref" | "Condition" => function.to_owned(),
        _ => format!("Fn::{function}"),
    };
    Ok(Map::from_iter([(function, value)]).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn yaml_says_what_its_json_would() {
        let text = "
name: llama            # a comment
base: &base {micro_batch_per_gpu: 2, lr: 3e-4}
candidates:
  - <<: *base
    spot: true
    role: !Sub 'arn:aws:iam::${AWS::AccountId}:role/train'
    image: !GetAtt Repository.RepositoryUri
    bucket: !Ref Bucket
    2: ~
";
        let candidate = json!({
            "micro_batch_per_gpu": 2, "lr": 3e-4, "spot": true,
            "role": {"Fn::Sub": "arn:aws:iam::${AWS::AccountId}:role/train"},
            "image": {"Fn::GetAtt": ["Repository", "RepositoryUri"]},
            "bucket": {"Ref": "Bucket"}, "2": null,
        });
        let read = from_yaml(text.as_bytes()).unwrap();
        assert_eq!(read["name"], "llama");
        assert_eq!(read["candidates"], json!([candidate]));
    }

    #[test]
    fn a_merge_may_be_merged_again() {
        let text = "b: &b {x: 1}\nd: &d {<<: *b, y: 2}\ne: {<<: [*d, {x: 3, z: 4}], y: 5}";
        let read = from_yaml(text.as_bytes()).unwrap();
        assert_eq!(read["e"], json!({"x": 1, "y": 5, "z": 4}));
    }

    #[test]
    fn what_json_cannot_say_is_refused() {
        let told = |text: &str| format!("{:#}", from_yaml(text.as_bytes()).unwrap_err());
        assert!(told("? [a, b]\n: c").contains("is used as a name"));
        assert!(told("a: .inf").contains("cannot be written in JSON"));
        assert!(told("<<: text").contains("takes mappings"));
        assert!(told("a: [").starts_with("not YAML: "));
        assert!(told("a: 1\na: 2").contains("duplicate"));
        assert!(told("one: 1\n---\ntwo: 2").starts_with("not YAML: "));
    }
}
