//! Which candidates may be ranked against each other. Within an experiment, the model, data, code,
//! sequence length and optimiser are the same by construction (one workload); a profile can only
//! change the global batch and hyperparameters, of which some change only how it runs. Strategy, micro-batch,
//! accumulation, offload and checkpointing may differ.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::finding::Finding;
use bakeoff_domain::spec::{OptimizerStates, ProfileSpec};

use crate::learnt::may_change_learning;
use crate::rules::found;

/// What must be equal for two candidates to be ranked: the global batch and the candidate's own
/// hyperparameters, since a difference there may mean a different optimiser.
#[derive(Debug, Clone, PartialEq)]
pub struct Identity {
    /// Index among the experiment's candidates.
    pub index: usize,
    pub candidate: String,
    /// Sequences per optimiser step.
    pub global_batch: u64,
    /// Over all its instances.
    pub accelerators: u32,
    pub profile: ProfileSpec,
}

/// Returns a finding (or none) for each identity, in order. The reference is the most common
/// identity; the first wins a tie.
pub fn incomparable(identities: &[Identity]) -> Vec<Option<Finding>> {
    let Some(reference) = reference(identities) else {
        return Vec::new();
    };
    identities
        .iter()
        .map(|identity| difference(identity, reference))
        .collect()
}

fn reference(identities: &[Identity]) -> Option<&Identity> {
    let same = |left: &Identity, right: &Identity| {
        left.global_batch == right.global_batch
            && learnt(&left.profile) == learnt(&right.profile)
            && numbers(&left.profile) == numbers(&right.profile)
    };
    let supporters = |identity: &Identity| {
        identities
            .iter()
            .filter(|other| same(identity, other))
            .count()
    };
    // `max_by_key` keeps the last of equal items; reversed, that is the first.
    identities
        .iter()
        .rev()
        .max_by_key(|identity| supporters(identity))
}

/// The hyperparameters that may change what is learnt.
fn learnt(profile: &ProfileSpec) -> Entries {
    let all = profile.hyperparameters.iter();
    let own = all.filter(|(name, _)| may_change_learning(name));
    own.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// What is said of hyperparameters that differ and change only how a training runs: one finding for each candidate that
/// sets some to other values than the usual one.
pub fn differences_in_running(identities: &[Identity]) -> Vec<Finding> {
    let Some(reference) = reference(identities) else {
        return Vec::new();
    };
    let of_one = |identity: &Identity| {
        let (here, there) = (
            &identity.profile.hyperparameters,
            &reference.profile.hyperparameters,
        );
        let keys: BTreeSet<&String> = here.keys().chain(there.keys()).collect();
        let differs =
            |key: &&&String| here.get(**key) != there.get(**key) && !may_change_learning(key);
        let names: Vec<&str> = keys
            .iter()
            .filter(differs)
            .map(|key| key.as_str())
            .collect();
        let at = format!("/candidates/{}/profile/hyperparameters", identity.index);
        (!names.is_empty()).then(|| {
            found("hyperparameters-of-running", at).says(format!(
                "{} has its own {}: taken to change how it runs and not what it learns, so that it is compared with the others",
                identity.candidate,
                names.join(", ")
            ))
        })
    };
    identities.iter().filter_map(of_one).collect()
}

/// The number formats that training depends on, beside the workload's precision.
fn numbers(profile: &ProfileSpec) -> (OptimizerStates, u8) {
    (profile.optimizer_states, profile.base_weight_bits)
}

fn difference(identity: &Identity, reference: &Identity) -> Option<Finding> {
    let index = identity.index;
    if identity.global_batch != reference.global_batch {
        let message = format!(
            "{} trains {} sequences per step, the others {}: loss per step, and so quality per dollar, cannot be compared",
            identity.candidate, identity.global_batch, reference.global_batch
        );
        return Some(
            found(
                "global-batch-differs",
                format!("/candidates/{index}/profile"),
            )
            .says(message)
            .fix(batch_fix(
                &identity.profile,
                identity.accelerators,
                reference.global_batch,
            )),
        );
    }
    if numbers(&identity.profile) != numbers(&reference.profile) {
        let said = |(states, bits): (OptimizerStates, u8)| {
            format!("{states:?} optimiser states and {bits}-bit base weights").to_lowercase()
        };
        return Some(
            found(
                "number-formats-differ",
                format!("/candidates/{index}/profile"),
            )
            .says(format!(
                "{} trains with {}, the others with {}: loss, and so quality per dollar, cannot be compared",
                identity.candidate,
                said(numbers(&identity.profile)),
                said(numbers(&reference.profile))
            )),
        );
    }
    let (key, here) = first_difference(&learnt(&identity.profile), &learnt(&reference.profile))?;
    let there = reference
        .profile
        .hyperparameters
        .get(&key)
        .map_or("nothing", String::as_str);
    Some(
        found(
            "hyperparameters-differ",
            format!("/candidates/{index}/profile/hyperparameters"),
        )
        .says(format!(
            "{} sets {key} to {here}, the others to {there}: the results cannot be compared",
            identity.candidate
        ))
        .fix(format!(
            "move {key} to the workload's hyperparameters, so that all candidates share one value; if it changes only how the script runs, pass it by the profile's environment"
        )),
    )
}

type Entries = BTreeMap<String, String>;

fn first_difference(here: &Entries, there: &Entries) -> Option<(String, String)> {
    let keys = here.keys().chain(there.keys());
    let key = keys
        .into_iter()
        .find(|key| here.get(*key) != there.get(*key))?;
    Some((
        key.clone(),
        here.get(key)
            .cloned()
            .unwrap_or_else(|| "nothing".to_owned()),
    ))
}

/// Largest batch, in sequences per step, for which a fix is searched.
const PER_STEP_MAX: u64 = 1 << 20;

/// Suggests settings that would reach the reference: keeps the micro-batch where accumulation can
/// make up the rest.
pub(crate) fn batch_fix(profile: &ProfileSpec, accelerators: u32, wanted: u64) -> String {
    let fallback = format!(
        "choose micro_batch_per_gpu and gradient_accumulation_steps that make {wanted} sequences per step"
    );
    let replicas = u64::from((accelerators / profile.accelerators_per_replica()).max(1));
    // Another rule reports a batch of zero, or one that is too large: skip the search.
    if wanted == 0 || !wanted.is_multiple_of(replicas) || wanted > PER_STEP_MAX {
        return fallback;
    }
    let per_gpu = wanted / replicas;
    // The largest divisor that is no larger than the user's micro-batch, or else the smallest above
    // it.
    let micro = u64::from(profile.micro_batch_per_gpu.max(1));
    let below = (1..=micro.min(per_gpu))
        .rev()
        .find(|batch| per_gpu.is_multiple_of(*batch))
        .unwrap_or(1);
    let above = (micro..=per_gpu)
        .find(|batch| per_gpu.is_multiple_of(*batch))
        .unwrap_or(per_gpu);
    let first = format!(
        "set micro_batch_per_gpu {below} × gradient_accumulation_steps {}",
        per_gpu / below
    );
    if above == below {
        return format!("{first}: {wanted} sequences per step");
    }
    format!(
        "{first}, or {above} × {} if it fits: {wanted} sequences per step",
        per_gpu / above
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(micro: u32, accumulation: u32) -> ProfileSpec {
        serde_json::from_value(
            serde_json::json!({"micro_batch_per_gpu": micro, "gradient_accumulation_steps": accumulation}),
        )
        .unwrap()
    }

    #[test]
    fn a_batch_of_none_is_not_searched_for() {
        assert!(batch_fix(&profile(2, 4), 8, 0).starts_with("choose"));
    }

    fn identities(profiles: &[ProfileSpec]) -> Vec<Identity> {
        let named = |(index, profile): (usize, &ProfileSpec)| Identity {
            index,
            candidate: format!("c{index}"),
            global_batch: profile.global_batch(8),
            accelerators: 8,
            profile: profile.clone(),
        };
        profiles.iter().enumerate().map(named).collect()
    }

    /// Document 001: P4d 2 × 4, P4de 4 × 2 and P5 6 × 1 on eight GPUs make 64, 64 and 48.
    #[test]
    fn the_documents_p5_profile_is_named_with_its_way_out() {
        let profiles = [profile(2, 4), profile(4, 2), profile(6, 1)];
        let findings = incomparable(&identities(&profiles));
        assert_eq!(findings[0], None);
        assert_eq!(findings[1], None);
        let p5 = findings[2].as_ref().unwrap();
        assert!(
            p5.message.contains("48 sequences per step, the others 64"),
            "{}",
            p5.message
        );
        assert!(
            p5.fix
                .contains("4 × gradient_accumulation_steps 2, or 8 × 1"),
            "{}",
            p5.fix
        );
    }

    #[test]
    fn eight_bit_states_are_another_training() {
        let mut profiles = [profile(8, 1), profile(8, 1), profile(8, 1)];
        profiles[2].optimizer_states = OptimizerStates::Int8;
        let findings = incomparable(&identities(&profiles));
        assert!(findings[0].is_none() && findings[1].is_none());
        let odd = findings[2].as_ref().unwrap();
        assert_eq!(odd.rule, "number-formats-differ");
        assert!(
            odd.message.contains("int8 optimiser states"),
            "{}",
            odd.message
        );
    }

    #[test]
    fn another_learning_rate_is_another_experiment() {
        let mut profiles = [profile(8, 1), profile(8, 1), profile(8, 1)];
        profiles[1]
            .hyperparameters
            .insert("learning_rate".into(), "1e-3".into());
        let findings = incomparable(&identities(&profiles));
        assert!(findings[0].is_none() && findings[2].is_none());
        assert_eq!(findings[1].as_ref().unwrap().rule, "hyperparameters-differ");
    }

    /// Document 001's P4de profile uses its NVMe disks.
    #[test]
    fn a_cache_on_nvme_is_another_way_to_run_the_same() {
        let mut profiles = [profile(8, 1), profile(8, 1), profile(8, 1)];
        profiles[1]
            .hyperparameters
            .insert("use_nvme_cache".into(), "true".into());
        let all = identities(&profiles);
        assert!(incomparable(&all).iter().all(Option::is_none));
        let said = differences_in_running(&all);
        assert_eq!(said.len(), 1);
        assert!(
            said[0].message.contains("c1 has its own use_nvme_cache"),
            "{}",
            said[0].message
        );
    }
}
