//! Metric definitions for what training frameworks print: `data/metric_definitions.json`, with samples of
//! each framework's lines. A workload names a set (`"metrics": "hf-trainer"`), or has one chosen by its image
//! or its script, and a pattern of one's own is tried on the lines of all.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::LazyLock;

use regex::Regex;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{Error, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::embedded;
use crate::sagemaker::metrics::{Meaning, MetricDefinition};

/// The metrics that a framework prints.
#[derive(Debug, Deserialize)]
pub struct Set {
    /// Its name in a workload.
    pub id: String,
    pub label: String,
    /// Where the framework prints them.
    #[expect(dead_code, reason = "it documents the table")]
    source: IgnoredAny,
    /// Caveats: which rates are per device, and what the speed is derived from.
    #[serde(default)]
    pub says: Option<String>,
    /// Patterns of images, and of scripts or programs, that print these.
    #[serde(default)]
    images: Vec<String>,
    #[serde(default)]
    scripts: Vec<String>,
    pub samples: Vec<String>,
    pub definitions: Vec<MetricDefinition>,
    /// What the definitions read in the samples.
    #[cfg_attr(not(test), expect(dead_code, reason = "what the tests expect"))]
    reads: BTreeMap<String, Vec<Value>>,
}

#[derive(Deserialize)]
struct Table {
    /// What `{number}` stands for.
    number: String,
    sets: Vec<Set>,
}

/// A set with its patterns compiled.
struct Compiled {
    images: Vec<Regex>,
    scripts: Vec<Regex>,
    definitions: Vec<Regex>,
}

static SETS: LazyLock<Vec<(Set, Compiled)>> = LazyLock::new(|| {
    let table: Table = embedded::json(
        "metric_definitions.json",
        include_str!("../../data/metric_definitions.json"),
    );
    let compiled = |mut set: Set| {
        for definition in &mut set.definitions {
            definition.regex = definition.regex.replace("{number}", &table.number);
        }
        let own = set.definitions.iter();
        let patterns = Compiled {
            images: set.images.iter().map(|text| found(text)).collect(),
            scripts: set.scripts.iter().map(|text| found(text)).collect(),
            definitions: own.map(|one| found(&one.regex)).collect(),
        };
        (set, patterns)
    };
    table.sets.into_iter().map(compiled).collect()
});

fn found(pattern: &str) -> Regex {
    Regex::new(pattern).unwrap_or_else(|error| embedded::unreadable(pattern, &error))
}

/// Reads the table and compiles its patterns.
pub(crate) fn read_embedded() {
    LazyLock::force(&SETS);
}

/// Every set, in the order of the table.
pub fn all() -> impl Iterator<Item = &'static Set> {
    SETS.iter().map(|(set, _)| set)
}

/// The set of a name.
pub fn named(id: &str) -> Option<&'static Set> {
    all().find(|set| set.id == id)
}

/// The set of a workload that names none, by its image or by the words that start it.
pub fn chosen_by<'a>(
    image: &str,
    mut words: impl Iterator<Item = &'a str>,
) -> Option<&'static Set> {
    let by_image = SETS.iter().find(|(_, patterns)| {
        patterns
            .images
            .iter()
            .any(|pattern| pattern.is_match(image))
    });
    let by_word = || {
        words.find_map(|word| {
            SETS.iter().find(|(_, patterns)| {
                patterns
                    .scripts
                    .iter()
                    .any(|pattern| pattern.is_match(word))
            })
        })
    };
    by_image.or_else(by_word).map(|(set, _)| set)
}

/// The set that these definitions are exactly, if any.
pub fn set_of(definitions: &[MetricDefinition]) -> Option<&'static Set> {
    all().find(|set| set.definitions == definitions)
}

/// A number in a framework's line that a pattern would capture only in part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misread {
    pub label: &'static str,
    /// The part of the line that the pattern was tried on.
    pub line: String,
    pub read: String,
    /// The whole number.
    pub stands: String,
    /// A pattern of the table that reads it, if there is one.
    pub instead: Option<&'static str>,
}

/// Tries a pattern on every sample: a number of which it takes only the beginning is misread.
pub fn misread(pattern: &Regex) -> Option<Misread> {
    SETS.iter().find_map(|(set, patterns)| {
        set.samples.iter().find_map(|line| {
            let captures = pattern.captures(line)?;
            let (whole, group) = (captures.get(0)?, captures.get(1)?);
            let rest = &line[group.end()..];
            let more = CONTINUED.find(rest)?;
            let is_number = group
                .as_str()
                .starts_with(|c: char| c.is_ascii_digit() || "+-".contains(c));
            let stands = format!("{}{}", group.as_str(), more.as_str());
            (is_number && !is_same(group.as_str(), &stands)).then(|| {
                let reads_it = |regex: &&Regex| {
                    let mut all = regex.captures_iter(line).filter_map(|found| found.get(1));
                    all.any(|found| found.as_str() == stands)
                };
                let own = patterns.definitions.iter().find(reads_it);
                Misread {
                    label: &set.label,
                    line: line[whole.start()..group.end() + more.end()].to_owned(),
                    read: group.as_str().to_owned(),
                    stands,
                    instead: own.map(Regex::as_str),
                }
            })
        })
    })
}

/// Whether two texts have the same value, such as `5` and `5.000`.
fn is_same(read: &str, stands: &str) -> bool {
    let number = |text: &str| text.replace(',', "").parse::<f64>().ok();
    matches!((number(read), number(stands)), (Some(read), Some(stands)) if read.to_bits() == stands.to_bits())
}

/// The rest of a number: more digits, thousands after a comma, a fraction, an exponent.
static CONTINUED: LazyLock<Regex> =
    LazyLock::new(|| found(r"^(?:\d+|,\d{3})*(?:\.\d+)?(?:[eE][-+]?\d+)?"));

/// A framework's metric that a pattern reads, and that means something else than is claimed.
#[derive(Debug, Clone, Copy)]
pub struct OtherMeaning {
    pub label: &'static str,
    pub definition: &'static MetricDefinition,
    /// What the pattern reads in the same line that means what is claimed: then the meaning is right, and
    /// the pattern reads too much, such as `loss=` in `train_loss=… val_loss=…`.
    pub as_claimed: Option<&'static MetricDefinition>,
}

/// A metric of a framework that a pattern reads under the wrong meaning: one device's rate as that of all
/// devices, or a micro-step as a step.
pub fn other_meaning(pattern: &Regex, claimed: Meaning) -> Option<OtherMeaning> {
    let spans = |regex: &Regex, line: &str| -> Vec<(usize, usize)> {
        let groups = regex.captures_iter(line).filter_map(|found| found.get(1));
        groups.map(|group| (group.start(), group.end())).collect()
    };
    SETS.iter().find_map(|(set, patterns)| {
        set.samples.iter().find_map(|line| {
            let own = spans(pattern, line);
            let known = set.definitions.iter().zip(&patterns.definitions);
            let read: Vec<&'static MetricDefinition> = known
                .filter(|(_, regex)| spans(regex, line).iter().any(|span| own.contains(span)))
                .map(|(definition, _)| definition)
                .collect();
            let is_other = |meaning| meaning != claimed && meaning != Meaning::Other;
            let other = read.iter().find(|one| is_other(one.meaning))?;
            Some(OtherMeaning {
                label: &set.label,
                definition: other,
                as_claimed: read.iter().find(|one| one.meaning == claimed).copied(),
            })
        })
    })
}

/// Reads definitions: a list of them, or the name of a set.
///
/// # Errors
/// If there is no set of that name, or a definition cannot be read.
pub fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<MetricDefinition>, D::Error> {
    deserializer.deserialize_any(NamedOrListed)
}

/// Passes a list on as it is, so that whoever reads the document still learns where an error is and which
/// fields of a definition are unknown.
struct NamedOrListed;

impl<'de> Visitor<'de> for NamedOrListed {
    type Value = Vec<MetricDefinition>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("metric definitions, or the name of a set of them")
    }

    fn visit_str<E: Error>(self, id: &str) -> Result<Self::Value, E> {
        let set = named(id).ok_or_else(|| {
            E::custom(format!(
                "there are no metrics `{id}`; there are {}",
                names()
            ))
        })?;
        Ok(set.definitions.clone())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Self::Value, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(list))
    }
}

/// Names of all sets, for a message.
pub fn names() -> String {
    all()
        .map(|set| set.id.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_reads_the_samples_of_its_framework() {
        for (set, patterns) in SETS.iter() {
            assert!(
                set.definitions.iter().any(|one| one.meaning.is_speed()),
                "{}: no speed",
                set.id
            );
            assert!(set.definitions.len() <= 40, "{}", set.id);
            for (definition, pattern) in set.definitions.iter().zip(&patterns.definitions) {
                assert!(
                    definition.regex.len() <= 500,
                    "{} {}",
                    set.id,
                    definition.name
                );
                let read: Vec<String> = set
                    .samples
                    .iter()
                    .flat_map(|line| pattern.captures_iter(line))
                    .map(|found| found[1].parse::<f64>().unwrap().to_string())
                    .collect();
                let expected: Vec<String> = set
                    .reads
                    .get(&definition.name)
                    .into_iter()
                    .flatten()
                    .map(|value| value.as_f64().unwrap_or(f64::NAN).to_string())
                    .collect();
                assert_eq!(read, expected, "{} {}", set.id, definition.name);
            }
            assert!(
                set.reads
                    .keys()
                    .all(|name| set.definitions.iter().any(|one| one.name == *name)),
                "{}",
                set.id
            );
        }
    }

    #[test]
    fn a_number_of_which_only_the_beginning_is_read_is_misread() {
        let of = |pattern: &str| misread(&Regex::new(pattern).unwrap());
        let found = of(r"tps: ([0-9.]+)").unwrap();
        assert_eq!(
            (
                found.read.as_str(),
                found.stands.as_str(),
                found.line.as_str()
            ),
            ("10", "10,050", "tps: 10,050")
        );
        let found = of(r"lm loss: ([0-9.]+)").unwrap();
        assert_eq!(
            (found.read.as_str(), found.stands.as_str()),
            ("9.504220", "9.504220E-01")
        );
        assert!(found.instead.unwrap().contains("lm loss"));
        for right in [
            r"my loss=([0-9.]+)",
            r"CurrSamplesPerSec=([0-9.]+)",
            r"global_step=(\d+)",
        ] {
            assert_eq!(of(right), None, "{right}");
        }
    }

    #[test]
    fn a_rate_of_one_device_is_not_that_of_all() {
        let pattern = Regex::new(r"tokens_per_second_per_gpu:([0-9.]+)").unwrap();
        let other = other_meaning(&pattern, Meaning::TokensPerSecond).unwrap();
        assert_eq!(
            (other.label, other.definition.meaning),
            ("torchtune", Meaning::TokensPerSecondPerDevice)
        );
        assert!(other.as_claimed.is_none());
        assert!(other_meaning(&pattern, Meaning::TokensPerSecondPerDevice).is_none());
    }

    /// Its training loss is as it is claimed, and Lightning prints another loss in the same line.
    #[test]
    fn a_pattern_that_reads_two_metrics_of_a_line_has_the_right_meaning() {
        let of = |pattern: &str| other_meaning(&Regex::new(pattern).unwrap(), Meaning::TrainLoss);
        let other = of(r"loss=([0-9.]+)").unwrap();
        assert_eq!(other.definition.name, "validation_loss");
        assert_eq!(other.as_claimed.unwrap().name, "train_loss");
        assert!(of(r"(?:^|[\s,])loss=([0-9.]+)").is_none());
    }

    #[test]
    fn a_set_is_chosen_by_image_or_script() {
        let chosen = |image: &str, word: &str| {
            chosen_by(image, [word].into_iter()).map(|set| set.id.as_str())
        };
        let of_aws = "763104351884.dkr.ecr.us-east-1.amazonaws.com/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04";
        assert_eq!(chosen(of_aws, "train.py"), Some("hf-trainer"));
        assert_eq!(
            chosen(
                "111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1",
                "scripts/run_clm.py"
            ),
            Some("hf-trainer")
        );
        assert_eq!(
            chosen(
                "111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1",
                "pretrain_gpt.py"
            ),
            Some("megatron-lm")
        );
        assert_eq!(chosen("mosaicml/llm-foundry:2.6.0", "x"), Some("composer"));
        assert_eq!(
            chosen(
                "111122223333.dkr.ecr.us-east-1.amazonaws.com/train:1",
                "train.py"
            ),
            None
        );
    }
}
