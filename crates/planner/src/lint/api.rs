//! The API's own model of the requests that are linted: their members and the limits of each,
//! generated from botocore by `cargo xtask shapes`; and a walk over a body that finds what breaks
//! them.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bakeoff_domain::embedded;
use bakeoff_domain::finding::{FINDINGS_MAX, escaped};
use regex::Regex;
use serde::Deserialize;
use serde_json::Value;

/// A call whose body is linted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Call {
    TrainingJob,
    TuningJob,
    ProcessingJob,
    TransformJob,
    EndpointConfig,
    Model,
}

impl Call {
    pub(super) const ALL: [Self; 6] = [
        Self::TrainingJob,
        Self::TuningJob,
        Self::ProcessingJob,
        Self::TransformJob,
        Self::EndpointConfig,
        Self::Model,
    ];

    /// As the API calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TrainingJob => "CreateTrainingJob",
            Self::TuningJob => "CreateHyperParameterTuningJob",
            Self::ProcessingJob => "CreateProcessingJob",
            Self::TransformJob => "CreateTransformJob",
            Self::EndpointConfig => "CreateEndpointConfig",
            Self::Model => "CreateModel",
        }
    }

    /// The member that holds the name of what is created.
    pub(super) fn name_member(self) -> &'static str {
        match self {
            Self::TrainingJob => "TrainingJobName",
            Self::TuningJob => "HyperParameterTuningJobName",
            Self::ProcessingJob => "ProcessingJobName",
            Self::TransformJob => "TransformJobName",
            Self::EndpointConfig => "EndpointConfigName",
            Self::Model => "ModelName",
        }
    }

    fn shape(self) -> &'static str {
        match self {
            Self::TrainingJob => "CreateTrainingJobRequest",
            Self::TuningJob => "CreateHyperParameterTuningJobRequest",
            Self::ProcessingJob => "CreateProcessingJobRequest",
            Self::TransformJob => "CreateTransformJobRequest",
            Self::EndpointConfig => "CreateEndpointConfigInput",
            Self::Model => "CreateModelInput",
        }
    }
}

#[derive(Debug, Deserialize)]
struct Model {
    shapes: BTreeMap<String, Shape>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Type {
    Structure,
    List,
    Map,
    String,
    Boolean,
    Integer,
    Long,
    Float,
}

/// One shape of the model: a type with its limits. Lengths of texts, numbers of items, or values.
#[derive(Debug, Deserialize)]
pub(super) struct Shape {
    #[serde(rename = "type")]
    kind: Type,
    /// Name of each member, and of its shape.
    #[serde(default)]
    members: BTreeMap<String, String>,
    #[serde(default)]
    required: Vec<String>,
    member: Option<String>,
    key: Option<String>,
    value: Option<String>,
    min: Option<u64>,
    max: Option<u64>,
    pattern: Option<Pattern>,
    #[serde(default, rename = "enum")]
    choices: Vec<String>,
}

/// A regular expression that the whole text must match.
#[derive(Debug, Deserialize)]
#[serde(from = "String")]
struct Pattern {
    text: String,
    whole: Regex,
}

impl From<String> for Pattern {
    fn from(text: String) -> Self {
        let whole = embedded::pattern(&text);
        Self { text, whole }
    }
}

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    embedded::json(
        "api_shapes.json",
        include_str!("../../data/api_shapes.json"),
    )
});

/// Reads the model and compiles its patterns.
pub(super) fn compile() {
    LazyLock::force(&MODEL);
}

/// Names of `TrainingInstanceType` are compared with the catalog, which suggests the nearest.
const BY_CATALOG: &str = "TrainingInstanceType";

/// What is wrong at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Breach {
    /// The structure that it is in has no such member.
    Unknown,
    Missing,
    /// What is wrong with the value.
    Wrong(String),
}

/// A place where a body is not as the model has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken {
    pub(super) pointer: String,
    /// The pointer with `*` for indexes and for keys of one's own.
    pub(super) path: String,
    pub(super) breach: Breach,
}

fn shape(name: &str) -> Option<&'static Shape> {
    MODEL.shapes.get(name)
}

/// The shape at a path of a call.
fn shape_at(call: Call, path: &str) -> Option<&'static Shape> {
    let mut found = shape(call.shape())?;
    for segment in path.split('/').skip(1) {
        let next = match found.kind {
            Type::Structure => found.members.get(segment)?,
            Type::List => found.member.as_ref()?,
            Type::Map => found.value.as_ref()?,
            _ => return None,
        };
        found = shape(next)?;
    }
    Some(found)
}

/// The members of a structure, by its path; none if there is no structure.
pub(super) fn members(call: Call, path: &str) -> Vec<&'static str> {
    shape_at(call, path).map_or_else(Vec::new, |shape| {
        shape.members.keys().map(String::as_str).collect()
    })
}

/// Paths of the structures of a call that are in no list, nearest to the top first, with the call
/// itself as the first.
pub(super) fn structures(call: Call) -> Vec<String> {
    let mut paths = vec![String::new()];
    let mut next = 0;
    while let Some(path) = paths.get(next).cloned() {
        next += 1;
        let inner = members(call, &path).into_iter();
        let inner = inner.map(|member| format!("{path}/{member}"));
        paths.extend(
            inner.filter(|path| shape_at(call, path).is_some_and(|at| at.kind == Type::Structure)),
        );
    }
    paths
}

/// Whether a member of this name exists anywhere in what is linted.
pub(super) fn is_known_anywhere(name: &str) -> bool {
    MODEL
        .shapes
        .values()
        .any(|shape| shape.members.contains_key(name))
}

/// An example of what belongs at a path: the first choice, a number within the limits, or a text.
pub(super) fn example(call: Call, path: &str) -> String {
    let Some(found) = shape_at(call, path) else {
        return String::new();
    };
    let named = |part: &str| path.ends_with(part);
    match found.kind {
        Type::String if named("RoleArn") => "\"arn:aws:iam::111122223333:role/train\"".to_owned(),
        Type::String if named("Image") || named("ImageUri") => {
            "\"111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1\"".to_owned()
        }
        Type::String if named("Uri") || named("OutputPath") => "\"s3://bucket/prefix\"".to_owned(),
        Type::String if named("Name") => "\"train-1\"".to_owned(),
        Type::String => found
            .choices
            .first()
            .map_or_else(|| "\"…\"".to_owned(), |choice| format!("\"{choice}\"")),
        Type::Integer | Type::Long | Type::Float => {
            let least = found.min.unwrap_or(1).max(1);
            least.to_string()
        }
        Type::Boolean => "true".to_owned(),
        Type::List => "[…]".to_owned(),
        Type::Map => "{…}".to_owned(),
        Type::Structure => {
            let required = found.required.iter().map(|member| {
                let inner = example(call, &format!("{path}/{member}"));
                format!("\"{member}\": {inner}")
            });
            format!("{{{}}}", required.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Every place where a body is not as the call's model has it, up to a limit. Numbers may be text
/// where `is_loose`, as in CloudFormation.
pub(super) fn broken(call: Call, body: &Value, is_loose: bool) -> Vec<Broken> {
    let mut walk = Walk {
        is_loose,
        found: Vec::new(),
    };
    if let Some(root) = shape(call.shape()) {
        let place = Place {
            pointer: String::new(),
            path: String::new(),
        };
        walk.value(root, body, place);
    }
    walk.found
}

#[derive(Debug, Clone)]
struct Place {
    pointer: String,
    path: String,
}

impl Place {
    fn below(&self, key: &str, in_path: &str) -> Self {
        Self {
            pointer: format!("{}/{}", self.pointer, escaped(key)),
            path: format!("{}/{in_path}", self.path),
        }
    }
}

struct Walk {
    is_loose: bool,
    found: Vec<Broken>,
}

impl Walk {
    fn add(&mut self, place: Place, breach: Breach) {
        let Place { pointer, path } = place;
        self.found.push(Broken {
            pointer,
            path,
            breach,
        });
    }

    fn value(&mut self, shape: &Shape, value: &Value, place: Place) {
        if self.found.len() > FINDINGS_MAX {
            return;
        }
        let wrong = match (shape.kind, value) {
            (Type::Structure, Value::Object(_)) => return self.structure(shape, value, &place),
            (Type::Map, Value::Object(_)) => {
                self.entries(shape, value, &place);
                count(shape, value, "entries", "object")
            }
            (Type::List, Value::Array(items)) => {
                if let Some(inner) = shape.member.as_deref().and_then(self::shape) {
                    for (index, item) in items.iter().enumerate() {
                        self.value(inner, item, place.below(&index.to_string(), "*"));
                    }
                }
                count(shape, value, "items", "list")
            }
            (Type::Structure | Type::Map, _) => Some(is_not(value, "an object")),
            (Type::List, _) => Some(is_not(value, "a list")),
            (Type::String, _) => text(shape, value),
            (Type::Boolean, Value::Bool(_)) => None,
            (Type::Boolean, Value::String(text))
                if self.is_loose && matches!(text.as_str(), "true" | "false") =>
            {
                None
            }
            (Type::Boolean, _) => Some(is_not(value, "true or false")),
            (Type::Integer | Type::Long | Type::Float, _) => number(shape, value, self.is_loose),
        };
        if let Some(wrong) = wrong {
            self.add(place, Breach::Wrong(wrong));
        }
    }

    fn structure(&mut self, shape: &Shape, value: &Value, place: &Place) {
        let Some(entries) = value.as_object() else {
            return;
        };
        for name in &shape.required {
            if !entries.contains_key(name) {
                self.add(place.below(name, name), Breach::Missing);
            }
        }
        for (name, value) in entries {
            let at = place.below(name, name);
            match shape.members.get(name).and_then(|inner| self::shape(inner)) {
                None => self.add(at, Breach::Unknown),
                Some(inner) if shape.members.get(name).is_some_and(|of| of == BY_CATALOG) => {
                    if !value.is_string() {
                        self.value(inner, value, at);
                    }
                }
                Some(inner) => self.value(inner, value, at),
            }
            if self.found.len() > FINDINGS_MAX {
                return;
            }
        }
    }

    fn entries(&mut self, shape: &Shape, value: &Value, place: &Place) {
        let (key_shape, inner) = (shape.key.as_deref(), shape.value.as_deref());
        let (Some(key_shape), Some(inner)) =
            (key_shape.and_then(self::shape), inner.and_then(self::shape))
        else {
            return;
        };
        for (key, value) in value.as_object().into_iter().flatten() {
            let at = place.below(key, "*");
            if let Some(wrong) = text(key_shape, &Value::String(key.clone())) {
                self.add(at.clone(), Breach::Wrong(format!("the key: {wrong}")));
            }
            if inner.kind == Type::String && !value.is_string() && !self.is_loose {
                let wrong = format!(
                    "`{}` is not a string: all values must be strings, numbers included",
                    cut(key)
                );
                self.add(at, Breach::Wrong(wrong));
            } else {
                self.value(inner, value, at);
            }
            if self.found.len() > FINDINGS_MAX {
                return;
            }
        }
    }
}

fn is_not(value: &Value, what: &str) -> String {
    format!("{} is not {what}", short(value))
}

/// Checks the number of items of a list or of entries of an object.
fn count(shape: &Shape, value: &Value, of: &str, what: &str) -> Option<String> {
    let count = match value {
        Value::Array(items) => items.len(),
        Value::Object(entries) => entries.len(),
        _ => return None,
    };
    outside(shape, u64::try_from(count).unwrap_or(u64::MAX))
        .map(|allowed| format!("the {what} has {count} {of}; {allowed} are allowed"))
}

/// What is allowed, if a count is not.
fn outside(shape: &Shape, count: u64) -> Option<String> {
    let least = shape.min.unwrap_or(0);
    if count >= least && shape.max.is_none_or(|most| count <= most) {
        return None;
    }
    Some(match shape.max {
        Some(most) if least == 0 => format!("at most {most}"),
        Some(most) => format!("{least} to {most}"),
        None => format!("at least {least}"),
    })
}

fn text(shape: &Shape, value: &Value) -> Option<String> {
    let Some(text) = value.as_str() else {
        return Some(is_not(value, "a string"));
    };
    let count = text.chars().count();
    if let Some(allowed) = outside(shape, u64::try_from(count).unwrap_or(u64::MAX)) {
        return Some(format!(
            "the text has {count} characters; {allowed} are allowed"
        ));
    }
    if !shape.choices.is_empty() && !shape.choices.iter().any(|choice| choice == text) {
        return Some(is_not(value, &one_of(shape, text)));
    }
    let pattern = shape.pattern.as_ref()?;
    if pattern.whole.is_match(text) {
        return None;
    }
    if matches!(pattern.text.as_str(), ".*" | ".+") {
        return Some("the text contains a line break, which is not allowed".to_owned());
    }
    Some(format!("{} does not match {}", short(value), pattern.text))
}

/// Choices, or the nearest of many.
fn one_of(shape: &Shape, text: &str) -> String {
    const LISTED_MAX: usize = 8;
    let all = shape.choices.iter().map(String::as_str);
    if shape.choices.len() <= LISTED_MAX {
        return format!("one of {}", all.collect::<Vec<_>>().join(", "));
    }
    let near = bakeoff_domain::finding::nearest(text, all, 3);
    if near.is_empty() {
        format!("one of the {} choices of the API", shape.choices.len())
    } else {
        format!("a choice of the API; near it are {}", near.join(", "))
    }
}

fn number(shape: &Shape, value: &Value, is_loose: bool) -> Option<String> {
    let what = if shape.kind == Type::Float {
        "a number"
    } else {
        "a whole number"
    };
    let parsed = value
        .as_str()
        .filter(|_| is_loose)
        .and_then(|text| text.parse().ok());
    let value = parsed.as_ref().unwrap_or(value);
    if shape.kind == Type::Float {
        return (!value.is_number()).then(|| is_not(value, what));
    }
    match value.as_u64() {
        None => Some(is_not(value, what)),
        Some(number) => outside(shape, number)
            .map(|allowed| format!("the value is {number}; {allowed} are allowed")),
    }
}

/// A value, shortened for a message.
pub(super) fn short(value: &Value) -> String {
    cut(&value.to_string())
}

pub(super) fn cut(text: &str) -> String {
    if text.chars().count() <= 60 {
        text.to_owned()
    } else {
        text.chars().take(57).chain("...".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_shape_that_is_named_is_there() {
        for call in Call::ALL {
            assert!(shape(call.shape()).is_some(), "{call:?}");
            assert!(members(call, "").contains(&call.name_member()), "{call:?}");
        }
        for (name, one) in &MODEL.shapes {
            let parts = [&one.member, &one.key, &one.value];
            let named = one.members.values().chain(parts.into_iter().flatten());
            for inner in named {
                assert!(shape(inner).is_some(), "{name} names {inner}");
            }
        }
    }

    #[test]
    fn each_kind_of_breach_has_its_place() {
        let body = json!({
            "TrainingJobName": "a_b", "RoleArn": "arn:aws:iam::111122223333:role/train",
            "InputDataConfig": [{"ChannelName": "x", "DataSource": {"FileSystemDataSource": {"FileSystemId": "fs-1"}}}],
            "HyperParameters": {"epochs": 3}, "Elsewhere": 1
        });
        let found = broken(Call::TrainingJob, &body, false);
        let at = |pointer: &str| {
            let mut here = found.iter().filter(|one| one.pointer == pointer);
            here.next().map(|one| (one.path.as_str(), &one.breach))
        };
        assert_eq!(at("/Elsewhere"), Some(("/Elsewhere", &Breach::Unknown)));
        assert_eq!(
            at("/OutputDataConfig").map(|one| one.1),
            Some(&Breach::Missing)
        );
        let id = "/InputDataConfig/0/DataSource/FileSystemDataSource/FileSystemId";
        assert_eq!(
            at(id).map(|one| one.0),
            Some("/InputDataConfig/*/DataSource/FileSystemDataSource/FileSystemId")
        );
        assert!(
            matches!(at("/TrainingJobName"), Some((_, Breach::Wrong(why))) if why.contains("does not match"))
        );
        assert!(
            matches!(at("/HyperParameters/epochs"), Some(("/HyperParameters/*", Breach::Wrong(why))) if why.contains("not a string"))
        );
    }

    #[test]
    fn examples_are_what_the_model_takes() {
        for path in [
            "/OutputDataConfig",
            "/StoppingCondition",
            "/CheckpointConfig",
            "/AlgorithmSpecification/TrainingInputMode",
        ] {
            let value: Value = serde_json::from_str(&example(Call::TrainingJob, path)).unwrap();
            let mut walk = Walk {
                is_loose: false,
                found: Vec::new(),
            };
            let place = Place {
                pointer: String::new(),
                path: String::new(),
            };
            walk.value(shape_at(Call::TrainingJob, path).unwrap(), &value, place);
            assert_eq!(walk.found, [], "{path}");
        }
    }
}
