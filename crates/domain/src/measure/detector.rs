//! Finds what a log says in numbers: which of its lines look like a metric, what the metric means, and the pattern that
//! reads it. For logs that none of a workload's own patterns meets.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use super::metric::{self, Meaning, MetricDefinition};

/// Characters of a line that are looked at.
const LINE_CHARS: usize = 2_000;
const NUMBER: &str = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?";

/// `key=1.5`, `key: 1.5`, `'key': 1.5` and `"key": 1.5`, also of what is no number.
static PAIR: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let pattern = format!(
        r#"(?P<key>['"]?[A-Za-z][A-Za-z0-9_/.\-]*['"]?)(?P<sep>\s*[=:]\s*)(?P<value>['"]?(?:{NUMBER}|(?i:nan|-?inf(?:inity)?)))"#
    );
    Regex::new(&pattern).ok()
});

/// A number in a line, with its name.
#[derive(Debug, Clone, PartialEq)]
pub struct LoggedNumber<'a> {
    /// With its quotes.
    key: &'a str,
    separator: &'a str,
    quote: &'a str,
    pub meaning: Meaning,
    /// Whether the name is a usual one, and not only made of words that are.
    pub is_usual: bool,
    pub value: f64,
}

/// The readings of a line whose names are those of a speed, a loss or a step.
pub fn readings(line: &str) -> Vec<LoggedNumber<'_>> {
    let Some(pair) = PAIR.as_ref() else {
        return Vec::new();
    };
    let end = line.char_indices().nth(LINE_CHARS);
    let line = end.map_or(line, |(end, _)| line.get(..end).unwrap_or(line));
    let found = pair.captures_iter(line).filter_map(|found| {
        let part = |name: &str| found.name(name).map(|part| part.as_str());
        let (key, value) = (part("key")?, part("value")?);
        let bare = value.trim_start_matches(['\'', '"']);
        let name = key.trim_matches(['\'', '"']).to_ascii_lowercase();
        let usual = by_name(&name);
        Some(LoggedNumber {
            key,
            separator: part("sep")?,
            quote: value.strip_suffix(bare).unwrap_or_default(),
            meaning: usual.or_else(|| by_words(&name))?,
            is_usual: usual.is_some(),
            value: bare.to_ascii_lowercase().parse().ok()?,
        })
    });
    found.collect()
}

/// What a name of a framework means; `None` of what says nothing of speed or loss.
fn by_name(lower: &str) -> Option<Meaning> {
    match metric::standard(lower)?.name {
        metric::TOKENS_PER_SECOND => Some(Meaning::TokensPerSecond),
        metric::SAMPLES_PER_SECOND => Some(Meaning::SamplesPerSecond),
        metric::STEPS_PER_SECOND => Some(Meaning::StepsPerSecond),
        metric::TRAIN_LOSS => Some(Meaning::TrainLoss),
        metric::VALIDATION_LOSS => Some(Meaning::ValidationLoss),
        metric::STEP => Some(Meaning::Step),
        _ => None,
    }
}

/// The same by its words, and its unit.
fn by_words(lower: &str) -> Option<Meaning> {
    let parts: Vec<&str> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let has = |words: &[&str]| parts.iter().any(|part| words.contains(part));
    let per_second = || {
        let is_rate = has(&["second", "sec", "s"]) && (has(&["per"]) || lower.contains('/'));
        let of = [
            (&["token", "tokens"][..], Meaning::TokensPerSecond),
            (
                &["sample", "samples", "sequences", "examples", "images"][..],
                Meaning::SamplesPerSecond,
            ),
            (
                &["step", "steps", "it", "iterations"][..],
                Meaning::StepsPerSecond,
            ),
        ];
        let found = of.into_iter().find(|(words, _)| has(words));
        found.filter(|_| is_rate).map(|(_, meaning)| meaning)
    };
    let loss = || {
        let is_validation = has(&["eval", "val", "valid", "validation", "test"]);
        has(&["loss"]).then_some(if is_validation {
            Meaning::ValidationLoss
        } else {
            Meaning::TrainLoss
        })
    };
    per_second().or_else(loss)
}

impl LoggedNumber<'_> {
    /// A metric definition whose pattern reads it, and nothing that only ends like its name.
    pub fn definition(&self) -> MetricDefinition {
        let bare = self.key.trim_matches(['\'', '"']);
        let mark = self.separator.trim();
        let spaced = |text: &str| if text.is_empty() { "" } else { r"\s*" };
        let (before, after) = self
            .separator
            .split_once(mark)
            .unwrap_or((self.separator, ""));
        let regex = format!(
            r"(?:^|[^A-Za-z0-9_/.-]){}{}{}{}{}([-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)",
            // The quote before the name is what the first group takes.
            regex::escape(self.key.trim_start_matches(['\'', '"'])),
            spaced(before),
            mark,
            spaced(after),
            self.quote,
        );
        MetricDefinition {
            name: self
                .meaning
                .standard()
                .map_or_else(|| bare.to_owned(), |name| format!("train:{name}")),
            regex,
            meaning: self.meaning,
        }
    }
}

/// A metric's pattern, ready to read lines.
#[derive(Debug, Clone)]
pub struct Pattern {
    pub meaning: Meaning,
    regex: Regex,
}

impl Pattern {
    /// `None` of one that cannot be read, which the linter refuses.
    pub fn of(definition: &MetricDefinition) -> Option<Self> {
        Some(Self {
            meaning: definition.meaning,
            regex: Regex::new(&definition.regex).ok()?,
        })
    }

    /// The number that it reads from a line.
    pub fn value(&self, line: &str) -> Option<f64> {
        let group = self.regex.captures(line)?.get(1)?;
        group.as_str().to_ascii_lowercase().parse().ok()
    }
}

/// The definition that would have read each kind of metric in the lines, from the newest line that has one. Of those
/// that a pattern in use reads already, none is proposed.
pub fn proposals<'a>(
    lines: impl DoubleEndedIterator<Item = &'a str>,
    in_use: &[Pattern],
) -> Vec<MetricDefinition> {
    let mut found: BTreeMap<&'static str, MetricDefinition> = BTreeMap::new();
    for line in lines.rev() {
        for reading in readings(line) {
            let Some(name) = reading.meaning.standard() else {
                continue;
            };
            let mut own = in_use.iter().filter(|one| one.meaning == reading.meaning);
            if !found.contains_key(name) && !own.any(|one| one.value(line).is_some()) {
                found.insert(name, reading.definition());
            }
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(regex: &str, line: &str) -> Option<f64> {
        let definition = MetricDefinition {
            name: String::new(),
            regex: regex.to_owned(),
            meaning: Meaning::Other,
        };
        Pattern::of(&definition).unwrap().value(line)
    }

    fn seen(line: &str) -> Vec<(Meaning, f64)> {
        let all = readings(line).into_iter();
        all.map(|one| (one.meaning, one.value)).collect()
    }

    #[test]
    fn names_of_frameworks_are_read_with_their_units() {
        let own =
            "step=152 loss=3.4498 eval_loss=3.48 tokens_per_second=1884.2 samples_per_second=0.92";
        assert_eq!(
            seen(own),
            [
                (Meaning::Step, 152.0),
                (Meaning::TrainLoss, 3.4498),
                (Meaning::ValidationLoss, 3.48),
                (Meaning::TokensPerSecond, 1884.2),
                (Meaning::SamplesPerSecond, 0.92)
            ]
        );
        let trainer = "{'loss': 2.31, 'grad_norm': 1.5, 'learning_rate': 2e-05, 'train_samples_per_second': 7.1, 'epoch': 0.1}";
        assert_eq!(
            seen(trainer),
            [(Meaning::TrainLoss, 2.31), (Meaning::SamplesPerSecond, 7.1)]
        );
        let json = r#"{"train/loss": 1.5, "tokens_per_sec": 5e4, "steps/s": "0.4"}"#;
        assert_eq!(
            seen(json),
            [
                (Meaning::TrainLoss, 1.5),
                (Meaning::TokensPerSecond, 50_000.0),
                (Meaning::StepsPerSecond, 0.4)
            ]
        );
        assert_eq!(seen("Loading checkpoint shards: 100% 4/4 host: algo-1"), []);
    }

    #[test]
    fn a_loss_that_is_no_number_is_a_reading_too() {
        let [(Meaning::TrainLoss, value)] = seen("step 3 loss: nan lr: 0.1")[..] else {
            panic!("{:?}", seen("step 3 loss: nan lr: 0.1"));
        };
        assert!(value.is_nan());
        assert_eq!(seen("loss=inf"), [(Meaning::TrainLoss, f64::INFINITY)]);
    }

    #[test]
    fn only_what_no_pattern_reads_is_proposed() {
        let line = "step=152 loss=3.4498 eval_loss=3.4798 samples_per_second=0.92";
        let own = MetricDefinition {
            name: "loss".to_owned(),
            regex: r"(?:^|\s)loss=([0-9.]+)".to_owned(),
            meaning: Meaning::TrainLoss,
        };
        let own = Pattern::of(&own).unwrap();
        let proposed = proposals([line].into_iter(), &[own]);
        let read: Vec<(Meaning, Option<f64>)> = proposed
            .iter()
            .map(|one| (one.meaning, value(&one.regex, line)))
            .collect();
        assert_eq!(
            read,
            [
                (Meaning::SamplesPerSecond, Some(0.92)),
                (Meaning::Step, Some(152.0)),
                (Meaning::ValidationLoss, Some(3.4798))
            ]
        );
    }

    proptest! {
        /// What is proposed reads the very number that was found, in each of the forms, whatever stands around it.
        #[test]
        fn a_proposal_reads_what_was_found(
            name in prop::sample::select(vec!["loss", "eval_loss", "tokens_per_second", "samples/sec", "steps_per_second", "train/loss"]),
            value in 0.001_f64..1e6,
            form in 0_usize..6,
            before in "[a-z]{0,5}",
        ) {
            let number = format!("{value:.3}");
            let pair = match form {
                0 => format!("{name}={number}"),
                1 => format!("{name}: {number}"),
                2 => format!("'{name}': {number},"),
                3 => format!("\"{name}\": {number}}}"),
                4 => format!("\"{name}\":\"{number}\""),
                _ => format!("{name} = {number}"),
            };
            let line = format!("{before} {pair} after=7");
            let found = readings(&line);
            prop_assert_eq!(found.len(), 1, "{} {:?}", line, found);
            let definition = found[0].definition();
            let read = Pattern::of(&definition).unwrap().value(&line);
            prop_assert_eq!(read, number.parse().ok(), "{} by {}", line, definition.regex);
        }
    }
}
