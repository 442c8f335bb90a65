//! Which signatures the lines of a log have. Of lines that say the same, a few are enough.

use std::collections::BTreeMap;

use super::line::Line;
use super::signatures::{self, Signature};

/// Of lines that say the same, as many of the first and of the last are looked at: a rank that waits may say it a
/// thousand times, and each is compared with the whole log.
const ALIKE_MAX: usize = 8;

/// A signature that a line has, and the cause in words.
pub(super) type Hit = (&'static Signature, String);

pub(super) fn hits(line: &Line<'_>) -> Vec<Hit> {
    let hits = signatures::in_log(&line.text);
    hits.map(|hit| (hit.signature, hit.cause())).collect()
}

/// The matches with their lines, in order: of those that say the same, the first and the last few.
pub(super) fn first_and_last(hits: &[Vec<Hit>]) -> Vec<(usize, &Hit)> {
    let mut alike: BTreeMap<(&str, &str), Vec<usize>> = BTreeMap::new();
    for (at, (signature, cause)) in all(hits) {
        let key = (signature.id.as_str(), cause.as_str());
        alike.entry(key).or_default().push(at);
    }
    let is_kept = |at: usize, (signature, cause): &Hit| {
        let same = alike.get(&(signature.id.as_str(), cause.as_str()));
        same.is_some_and(|same| {
            let (first, last) = (same.get(ALIKE_MAX), same.iter().nth_back(ALIKE_MAX));
            first.is_none_or(|first| at < *first) || last.is_none_or(|last| at > *last)
        })
    };
    all(hits).filter(|(at, hit)| is_kept(*at, hit)).collect()
}

/// Each match with its line.
fn all(hits: &[Vec<Hit>]) -> impl Iterator<Item = (usize, &Hit)> {
    let numbered = hits.iter().enumerate();
    numbered.flat_map(|(at, hits)| hits.iter().map(move |hit| (at, hit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_thousand_lines_that_say_the_same_a_few_are_looked_at() {
        let signature = signatures::by_id("exception-raised").unwrap();
        let says = |what: &str| vec![(signature, what.to_owned())];
        let mut lines = vec![says("waits"); 1_000];
        lines.insert(500, says("why"));
        lines.insert(501, Vec::new());
        let kept: Vec<usize> = first_and_last(&lines)
            .into_iter()
            .map(|(at, _)| at)
            .collect();
        let expected = (0..8).chain([500]).chain(994..1_002);
        assert_eq!(kept, expected.collect::<Vec<_>>());
        let few = vec![says("waits"); 10];
        assert_eq!(first_and_last(&few).len(), 10);
    }
}
