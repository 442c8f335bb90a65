//! Labels: by which experiments, pipelines and endpoints are found again, and which their jobs carry as tags, for AWS's
//! cost reports.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::Regex;

use crate::embedded;

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// Of the 50 tags that SageMaker takes, some are our own and others belong to whoever set up the account.
const LABELS_MAX: usize = 20;
const NAME_MAX: usize = 128;
const VALUE_MAX: usize = 256;
/// Names of these belong to AWS, and to us.
const RESERVED: [&str; 2] = ["aws:", "bakeoff:"];

/// What is wrong with a label, at a pointer below all of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFlaw {
    pub pointer: String,
    pub detail: String,
    pub fix: String,
}

impl LabelFlaw {
    fn new(pointer: impl Into<String>, detail: impl Into<String>, fix: &str) -> Self {
        Self {
            pointer: pointer.into(),
            detail: detail.into(),
            fix: fix.to_owned(),
        }
    }
}

/// As AWS takes tags (Tag in SageMaker's API reference).
static TAG: LazyLock<Regex> = LazyLock::new(|| embedded::pattern(r"[\p{L}\p{N} _.:/=+@-]*"));

fn is_tag(text: &str, most: usize) -> bool {
    text.chars().count() <= most && TAG.is_match(text)
}

/// What is wrong with labels.
pub fn flaws(labels: &Labels) -> Vec<LabelFlaw> {
    let mut flaws = Vec::new();
    if labels.len() > LABELS_MAX {
        flaws.push(LabelFlaw::new(
            "",
            format!("has more than {LABELS_MAX} labels"),
            "keep those that somebody looks for",
        ));
    }
    for (name, value) in labels {
        let at = format!("/{}", crate::finding::escaped(name));
        let lower = name.to_lowercase();
        if RESERVED.iter().any(|prefix| lower.starts_with(prefix)) {
            flaws.push(LabelFlaw::new(
                at,
                "is a reserved name",
                "choose a name that begins with neither aws: nor bakeoff:",
            ));
        } else if !is_tag(name, NAME_MAX)
            || name.contains('=')
            || name.trim() != name
            || name.is_empty()
        {
            flaws.push(LabelFlaw::new(
                at,
                "is no name that AWS takes for a tag",
                "use 1 to 128 letters, digits, spaces and _.:/+@-",
            ));
        } else if !is_tag(value, VALUE_MAX) {
            flaws.push(LabelFlaw::new(
                at,
                "has a value that AWS does not take for a tag",
                "use at most 256 letters, digits, spaces and _.:/=+@-",
            ));
        }
    }
    flaws
}

/// Gives labels those of what they are part of, where they have none of the name.
pub fn inherit(labels: &mut Labels, whole: &Labels) {
    for (name, value) in whole {
        labels.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

/// Labels as they are stored and looked for: `team=legal`.
pub fn pairs(labels: &Labels) -> Vec<String> {
    let pair = |(name, value): (&String, &String)| format!("{name}={value}");
    labels.iter().map(pair).collect()
}

/// The labels of stored pairs.
pub fn of_pairs(pairs: &[String]) -> Labels {
    let split = |pair: &String| {
        let (name, value) = pair.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    };
    pairs.iter().filter_map(split).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(name: &str, value: &str) -> Labels {
        Labels::from([(name.to_owned(), value.to_owned())])
    }

    #[test]
    fn labels_are_tags() {
        for (name, value) in [
            ("team", "legal"),
            ("cost-center", "4711"),
            ("Größe", "a b=c"),
            ("a", ""),
        ] {
            assert!(flaws(&labels(name, value)).is_empty(), "{name}={value}");
        }
        for (name, value) in [
            ("", "x"),
            (" team", "x"),
            ("team ", "x"),
            ("aws:createdBy", "x"),
            ("AWS:x", "x"),
            ("bakeoff:trial", "x"),
            ("a=b", "x"),
            ("team", "x\ny"),
            ("team", "<x>"),
            // A vowel sign, which is no letter to AWS.
            ("team", "\u{915}\u{93f}"),
        ] {
            assert_eq!(flaws(&labels(name, value)).len(), 1, "{name}={value}");
        }
        assert_eq!(flaws(&labels(&"x".repeat(129), "")).len(), 1);
        assert_eq!(flaws(&labels("x", &"x".repeat(257))).len(), 1);
        let many: Labels = (0..21).map(|i| (i.to_string(), String::new())).collect();
        assert_eq!(flaws(&many).len(), 1);
    }

    proptest! {
        #[test]
        fn pairs_read_back(labels in prop::collection::btree_map("[^=]{1,9}", ".{0,9}", 0..5)) {
            prop_assert_eq!(of_pairs(&pairs(&labels)), labels);
        }
    }
}
