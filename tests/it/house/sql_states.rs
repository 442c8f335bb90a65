//! The states that SQL lists, against the domain's enums: a state that is added must be put into or kept out of each list
//! here before any query can forget it.

use std::collections::BTreeSet;

use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::lifecycle::state::{AttemptState, ExperimentState, TrialState};
use bakeoff_domain::pipeline::purchase::PurchaseState;
use bakeoff_domain::pipeline::{PipelineState, StepState};
use regex::Regex;

use super::style::sources;

/// The states of an enum that a query may list together, and those that it then leaves out.
struct Group {
    all: Vec<&'static str>,
    listed: &'static str,
    left_out: &'static str,
}

macro_rules! groups {
    ($($state:ident: $listed:literal but not $left_out:literal;)+) => {
        vec![$(Group {
            all: $state::ALL.iter().map(|state| state.as_str()).collect(),
            listed: $listed,
            left_out: $left_out,
        }),+]
    };
}

fn groups() -> Vec<Group> {
    groups! {
        // Not over.
        TrialState: "queued submitting parked running stopping" but not "refused completed failed stopped";
        // Not over, and able to go on without a person.
        TrialState: "queued submitting running stopping" but not "parked refused completed failed stopped";
        // Admitted: it takes from its quota.
        TrialState: "submitting running stopping" but not "queued parked refused completed failed stopped";
        // It may still need an idle warm pool.
        TrialState: "queued submitting" but not "parked running stopping refused completed failed stopped";
        // Nothing of it runs.
        TrialState: "queued parked" but not "submitting running stopping refused completed failed stopped";
        // Its job exists.
        TrialState: "running stopping" but not "queued submitting parked refused completed failed stopped";
        // It has something to teach.
        TrialState: "completed stopped" but not "queued submitting parked running stopping refused failed";
        // A job may yet appear.
        AttemptState: "planned quarantined" but not "running completed failed stopped never_created";
        AttemptState: "planned quarantined running" but not "completed failed stopped never_created";
        ExperimentState: "running cancelling" but not "completed failed cancelled";
        // Over, and no person ended it.
        ExperimentState: "completed failed" but not "running cancelling cancelled";
        // What a person may resume.
        PipelineState: "running failed cancelled" but not "cancelling completed";
        StepState: "waiting running" but not "completed failed skipped cancelled";
        StepState: "failed skipped cancelled" but not "waiting running completed";
        // Not approved.
        PurchaseState: "asked refused" but not "approved";
        EndpointState: "in_service updating rolling_back" but not "creating deleting deleted failed";
    }
}

fn set(words: &str) -> BTreeSet<&str> {
    words.split_whitespace().collect()
}

#[test]
fn each_group_decides_about_every_state() {
    for group in groups() {
        let (listed, left_out) = (set(group.listed), set(group.left_out));
        assert!(listed.is_disjoint(&left_out), "{}", group.listed);
        let decided: BTreeSet<&str> = listed.union(&left_out).copied().collect();
        let all: BTreeSet<&str> = group.all.iter().copied().collect();
        assert_eq!(
            decided, all,
            "which queries that list {} mean it too?",
            group.listed
        );
    }
}

/// Every list of states in the store's SQL, as a set of words.
fn lists(text: &str) -> Vec<String> {
    let list = Regex::new(r"\bstate\s+(?:NOT\s+)?IN\s*\(([^)]*)\)").unwrap();
    list.captures_iter(text)
        .map(|found| found[1].replace(['\'', ','], " "))
        .collect()
}

#[test]
fn sql_lists_states_only_in_groups_that_are_decided() {
    let groups = groups();
    let mut unknown = Vec::new();
    let mut used = BTreeSet::new();
    for (path, text) in sources(&["crates/store/src"]) {
        for words in lists(&text) {
            match groups.iter().find(|group| set(group.listed) == set(&words)) {
                Some(group) => drop(used.insert(group.listed)),
                None => unknown.push(format!("{}: {words}", path.display())),
            }
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
    let of_no_use: Vec<&str> = groups
        .iter()
        .map(|group| group.listed)
        .filter(|listed| !used.contains(listed))
        .collect();
    assert_eq!(of_no_use, Vec::<&str>::new());
}
