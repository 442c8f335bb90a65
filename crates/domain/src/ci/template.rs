//! Templates: an experiment with places for what a trigger says. The commit must come to what runs, or every run
//! would measure the same code under another name.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Event, Repository, Trigger};
use crate::finding::escaped;
use crate::finding::flaws::Flaw;
use crate::money::Usd;
use crate::money::budget::{TemplateCaps, least_budget, limit_flaw};
use crate::pipeline::reference::{self, Reference};
use crate::spec::ci::{GateSettings, TemplateSettings};

/// How a template calls a trigger.
const CI: &str = "ci";
/// What a trigger may say, as a template names it.
const KNOWN: [&str; 7] = [
    "commit",
    "short_commit",
    "ref",
    "branch",
    "pull_request",
    "image",
    "source_s3_uri",
];
const HYPERPARAMETERS: &str = "hyperparameters";
/// Those that differ from commit to commit.
const OF_A_COMMIT: [&str; 4] = ["commit", "short_commit", "image", "source_s3_uri"];
/// Names of branches in a template.
const BRANCHES_MAX: usize = 20;

/// Runs of a template at once.
const RUNS_AT_ONCE_MAX: u32 = 1000;

impl TemplateSettings {
    /// What its runs may have under way and spend, by its experiment's budget where it states nothing.
    pub fn caps(&self, budget: Usd) -> TemplateCaps {
        let usual = TemplateCaps::usual(budget);
        TemplateCaps {
            runs_at_once: self.runs_at_once.unwrap_or(usual.runs_at_once),
            usd_per_day: self.usd_per_day.unwrap_or(usual.usd_per_day),
            usd_per_month: self.usd_per_month.unwrap_or(usual.usd_per_month),
        }
    }

    fn cap_flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        let is_count = |count: u32| (1..=RUNS_AT_ONCE_MAX).contains(&count);
        if self.runs_at_once.is_some_and(|count| !is_count(count)) {
            flaws.push(Flaw::new(
                "/settings/runs_at_once",
                format!("is not 1 to {RUNS_AT_ONCE_MAX}"),
                "delete the template to have it start nothing",
            ));
        }
        for (name, usd) in [
            ("usd_per_day", self.usd_per_day),
            ("usd_per_month", self.usd_per_month),
        ] {
            let flaw = usd.and_then(|usd| limit_flaw(usd, least_budget()));
            let flaw = flaw.map(|detail| {
                let fix = "name what its runs may cost together, or leave it out";
                Flaw::new(format!("/settings/{name}"), detail, fix)
            });
            flaws.extend(flaw);
        }
        flaws
    }

    /// Why a trigger starts nothing; `None` if it does.
    pub fn ignores(&self, event: Event, trigger: &Trigger) -> Option<String> {
        match event {
            Event::Trigger => None,
            Event::PullRequest if self.pull_requests => None,
            Event::PullRequest => Some("this template takes no pull requests".to_owned()),
            Event::Push => {
                let branch = trigger.branch.as_deref();
                let is_named = |name: &String| match name.strip_suffix('*') {
                    Some(start) => branch.is_some_and(|branch| branch.starts_with(start)),
                    None => branch == Some(name),
                };
                let is_taken = self.branches.is_empty() || self.branches.iter().any(is_named);
                let what = branch.or(trigger.reference.as_deref()).unwrap_or("it");
                (!is_taken).then(|| format!("this template does not take {what}"))
            }
        }
    }

    /// Whether a newer commit of a branch ends the runs of earlier ones.
    pub fn supersedes(&self, branch: &str) -> bool {
        let gate = self.gate.as_ref();
        self.supersede
            .unwrap_or_else(|| gate.is_none_or(|gate| gate.baseline_branch != branch))
    }

    /// Whether a repository is the one that is stated, by its name or its number.
    pub fn takes_repository(&self, repository: Option<&Repository>) -> bool {
        let Some(stated) = &self.repository else {
            return true;
        };
        repository.is_some_and(|told| {
            stated.eq_ignore_ascii_case(&told.name) || *stated == told.id.to_string()
        })
    }

    /// What is wrong with them, beside the experiment that they belong to.
    pub fn flaws(&self, experiment: &Value) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        let is_name = |name: &String| !name.is_empty() && name.len() <= 250;
        if self.branches.len() > BRANCHES_MAX || !self.branches.iter().all(is_name) {
            flaws.push(Flaw::new(
                "/settings/branches",
                format!("has more than {BRANCHES_MAX} names, or one without 1 to 250 characters"),
                "name prefixes: release/*",
            ));
        }
        flaws.extend(self.cap_flaws());
        let repository = self.repository.as_ref();
        if repository.is_some_and(|name| !is_name(name) || name.chars().any(char::is_control)) {
            flaws.push(Flaw::new(
                "/settings/repository",
                "does not have 1 to 250 characters",
                "name it as its host does: owner/name, or its number",
            ));
        }
        let gate = self.gate.iter().flat_map(GateSettings::flaws);
        flaws.extend(gate.map(|flaw| Flaw {
            pointer: format!("/settings{}", flaw.pointer),
            ..flaw
        }));
        if let Some(gate) = &self.gate {
            flaws.extend(unlike(experiment));
            flaws.extend(unconfirmed(gate, experiment));
        }
        let (found, _) = reference::find(experiment);
        let takes = |name: &str| {
            found
                .iter()
                .any(|one| one.path.iter().eq([HYPERPARAMETERS, name]))
        };
        for name in self.hyperparameters.keys().filter(|name| !takes(name)) {
            flaws.push(Flaw::new(
                format!("/settings/{HYPERPARAMETERS}/{}", escaped(name)),
                "stands for nothing: the template does not take it in",
                format!("have the template name ${{ci.{HYPERPARAMETERS}.{name}}}, or leave it out"),
            ));
        }
        flaws
    }
}

/// What makes trials of a gate unlike each other.
fn unlike(experiment: &Value) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    if experiment["stopping_policy"] != "full" {
        flaws.push(Flaw::new(
            "/spec/stopping_policy",
            "a gate compares trials that have trained all their tokens, and a race stops those that lose",
            "write \"stopping_policy\": \"full\"",
        ));
    }
    if experiment["keep_alive_seconds"]
        .as_u64()
        .is_some_and(|seconds| seconds > 0)
    {
        flaws.push(Flaw::new(
            "/spec/keep_alive_seconds",
            "trials on the same warm instances differ less than commits do: the gate would take luck for a change",
            "leave it out",
        ));
    }
    flaws
}

/// A gate that judges by one trial: of equal commits, it would call one in nine worse, since machines stall.
fn unconfirmed(gate: &GateSettings, experiment: &Value) -> Option<Flaw> {
    let candidates = experiment["candidates"].as_array()?;
    let is_alone = |candidate: &Value| candidate["repeats"].as_u64().unwrap_or(1) < 2;
    (gate.rounds == 1 && candidates.iter().any(is_alone)).then(|| {
        Flaw::new(
            "/settings/gate/rounds",
            "is 1 with one trial of a candidate: a machine that stalls would pass for a commit that is slower",
            "allow a second round (it runs only where the first shows something), or have two \"repeats\" of each candidate",
        )
    })
}

/// Whether a place takes a trigger in, and whether what runs depends on it.
fn place(pointer: &str) -> Option<bool> {
    let parts: Vec<&str> = pointer.split('/').skip(1).collect();
    match parts.as_slice() {
        ["name"] | ["notes", _] => Some(false),
        ["workload", "image"]
        | ["workload", "script", "source_s3_uri"]
        | ["workload", "hyperparameters" | "container_entrypoint", _]
        | [
            "candidates",
            _,
            "profile",
            "environment" | "hyperparameters",
            _,
        ] => Some(true),
        _ => None,
    }
}

/// What a template's experiment takes in, and what is wrong with how it does; pointers are into the experiment.
pub fn flaws(experiment: &Value) -> Vec<Flaw> {
    let (found, unreadable) = reference::find(experiment);
    let mut flaws: Vec<Flaw> = unreadable
        .into_iter()
        .map(|one| {
            let detail = format!("{} is no reference", one.text);
            Flaw::new(
                one.pointer,
                detail,
                "write ${ci.commit}, or $${ for a dollar and a brace",
            )
        })
        .collect();
    for one in &found {
        if !is_known(one) {
            let fix = format!(
                "use {}, or ${{ci.hyperparameters.NAME}}",
                KNOWN.map(|name| format!("${{ci.{name}}}")).join(", ")
            );
            flaws.push(Flaw::new(
                &*one.pointer,
                format!("{} is nothing that a trigger says", one.text()),
                fix,
            ));
        } else if place(&one.pointer).is_none() {
            flaws.push(Flaw::new(
                &*one.pointer,
                "takes nothing in from a trigger",
                "it can stand in the workload's image, script.source_s3_uri, container_entrypoint and hyperparameters, in a profile's environment and hyperparameters, in the name and in notes",
            ));
        }
    }
    if !runs_everywhere(experiment, &tested(&found)) {
        flaws.push(Flaw::new(
            "/workload/image",
            "every commit would run the same code: nothing that the trigger says changes what runs",
            "name the commit's image (repository:${ci.commit}, or ${ci.image}) or sources (${ci.source_s3_uri}), or pass ${ci.commit} to a script that checks it out",
        ));
    }
    flaws
}

/// A hash of what must be the same for figures to compare, of one candidate: region, workload, checkpoints and the
/// candidate, as the template has them, with the hyperparameters that a trigger chose. What differs from commit to
/// commit is left as it is written. `resolved`: the experiment that was started.
pub fn comparable(template: &Value, resolved: &Value, candidate: &str) -> String {
    let mut written = template.clone();
    let (found, _) = reference::find(template);
    for one in found
        .iter()
        .filter(|one| one.path.first().is_some_and(|name| name == HYPERPARAMETERS))
    {
        if let (Some(place), Some(chosen)) = (
            written.pointer_mut(&one.pointer),
            resolved.pointer(&one.pointer),
        ) {
            place.clone_from(chosen);
        }
    }
    let written = &written;
    let candidates = written["candidates"].as_array();
    let mut own = candidates
        .and_then(|all| all.iter().find(|one| one["name"] == candidate))
        .cloned();
    // How often it is measured, and how it is bought, does not change what is measured; spot has a name of its own.
    if let Some(Value::Object(own)) = &mut own {
        own.remove("repeats");
        own.remove("purchase_options");
    }
    let same = json!([
        written["region"],
        written["workload"],
        written["checkpoint"],
        own
    ]);
    hex::encode(Sha256::digest(same.to_string()))
}

/// Where what runs depends on the commit.
fn tested(found: &[Reference]) -> Vec<&str> {
    let of_commit = |one: &Reference| {
        let name = one.path.first();
        name.is_some_and(|name| OF_A_COMMIT.contains(&name.as_str()))
    };
    found
        .iter()
        .filter(|one| is_known(one) && of_commit(one) && place(&one.pointer) == Some(true))
        .map(|one| one.pointer.as_str())
        .collect()
}

/// Whether every candidate runs what one of these places says: one in the workload that no profile overrides, or one in
/// each profile.
fn runs_everywhere(experiment: &Value, places: &[&str]) -> bool {
    let candidates = experiment["candidates"].as_array().map_or(0, Vec::len);
    let is_everywhere = |place: &&str| {
        let Some(name) = place.strip_prefix("/workload/hyperparameters/") else {
            return place.starts_with("/workload/");
        };
        let overrides = |index| format!("/candidates/{index}/profile/hyperparameters/{name}");
        (0..candidates).all(|index| experiment.pointer(&overrides(index)).is_none())
    };
    let is_in = |index: usize| {
        let start = format!("/candidates/{index}/");
        places.iter().any(|place| place.starts_with(&start))
    };
    places.iter().any(is_everywhere) || candidates > 0 && (0..candidates).all(is_in)
}

/// What a template takes in and an event does not say.
pub fn unsaid(experiment: &Value, trigger: &Trigger) -> Option<&'static str> {
    let (found, _) = reference::find(experiment);
    let said = [
        ("ref", trigger.reference.is_some()),
        ("branch", trigger.branch.is_some()),
        ("pull_request", trigger.pull_request.is_some()),
        ("image", trigger.image.is_some()),
        ("source_s3_uri", trigger.source_s3_uri.is_some()),
    ];
    let is_taken = |name: &str| found.iter().any(|one| one.path.iter().eq([name]));
    let mut unsaid = said
        .into_iter()
        .filter(|(name, is_said)| !is_said && is_taken(name));
    unsaid.next().map(|(name, _)| name)
}

/// What no event of a code host's ever says although a template takes it in, as the template writes it: only our own
/// form and `bakeoff gate` can start it.
pub fn never_pushed(experiment: &Value, settings: &TemplateSettings) -> Option<String> {
    let (found, _) = reference::find(experiment);
    let is_said = |one: &Reference| match one.path.as_slice() {
        [name] => match name.as_str() {
            "image" | "source_s3_uri" => false,
            "pull_request" => settings.pull_requests,
            _ => true,
        },
        [map, name] if map == HYPERPARAMETERS => settings.hyperparameters.contains_key(name),
        _ => true,
    };
    let mut unsaid = found.iter().filter(|one| is_known(one) && !is_said(one));
    unsaid.next().map(Reference::text)
}

/// A hash of the commit and of what the template takes in where it changes what runs: beside the version of the
/// template, all that tells one run from another. Who says it, and where it stands in names and notes, does not count.
pub fn what_runs(experiment: &Value, settings: &TemplateSettings, trigger: &Trigger) -> String {
    let told = said(settings, trigger);
    let (found, _) = reference::find(experiment);
    let taken: BTreeMap<String, &Value> = found
        .iter()
        .filter(|one| place(&one.pointer) == Some(true))
        .map(|one| {
            let path = one
                .path
                .iter()
                .try_fold(&told, |value, name| value.get(name));
            (one.path.join("."), path.unwrap_or(&Value::Null))
        })
        .collect();
    let all = json!({"commit": trigger.commit, "taken": taken});
    Sha256::digest(all.to_string().as_bytes())
        .iter()
        .fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// All that a trigger says, under the names that a template knows it by.
fn said(settings: &TemplateSettings, trigger: &Trigger) -> Value {
    let mut hyperparameters = settings.hyperparameters.clone();
    hyperparameters.extend(trigger.hyperparameters.clone());
    json!({
        "commit": trigger.commit, "short_commit": trigger.short_commit(), "ref": trigger.reference, "branch": trigger.branch,
        "pull_request": trigger.pull_request.map(|number| number.to_string()), "image": trigger.image,
        "source_s3_uri": trigger.source_s3_uri, HYPERPARAMETERS: hyperparameters,
    })
}

/// A trigger that says all that a template takes in, of a commit that does not exist.
pub fn sample(experiment: &Value, settings: &TemplateSettings) -> Trigger {
    let (found, _) = reference::find(experiment);
    let takes = |name: &str| found.iter().any(|one| one.path.iter().eq([name]));
    let commit = "0123456789abcdef0123456789abcdef01234567";
    let image = format!(
        "111122223333.dkr.ecr.us-east-1.amazonaws.com/image@sha256:{}",
        "0".repeat(64)
    );
    let named = found.iter().filter_map(|one| match one.path.as_slice() {
        [map, name] if map == HYPERPARAMETERS && !settings.hyperparameters.contains_key(name) => {
            Some((name.clone(), "1".to_owned()))
        }
        _ => None,
    });
    Trigger {
        commit: commit.to_owned(),
        reference: Some("refs/heads/main".to_owned()),
        branch: Some("main".to_owned()),
        pull_request: Some(1),
        image: takes("image").then_some(image),
        source_s3_uri: takes("source_s3_uri").then(|| "s3://bucket/sourcedir.tar.gz".to_owned()),
        hyperparameters: named.collect(),
        ..Trigger::default()
    }
}

fn is_known(one: &Reference) -> bool {
    if one.step != CI {
        return false;
    }
    match one.path.as_slice() {
        [name] => KNOWN.contains(&name.as_str()),
        [map, _] => map == HYPERPARAMETERS,
        _ => false,
    }
}

/// What a trigger says and the template does not take in.
fn closed(trigger: &Trigger, takes: &dyn Fn(&[&str]) -> bool) -> Vec<Flaw> {
    let mut flaws = Vec::new();
    let mut close = |pointer: String, name: &str| {
        let fix = format!("leave it out, or have the template name ${{ci.{name}}}");
        let flaw = Flaw::new(pointer, "the template does not take this in", fix);
        flaws.push(flaw);
    };
    for (name, told) in [
        ("image", &trigger.image),
        ("source_s3_uri", &trigger.source_s3_uri),
    ] {
        if told.is_some() && !takes(&[name]) {
            close(format!("/{name}"), name);
        }
    }
    for name in trigger.hyperparameters.keys() {
        if !takes(&[HYPERPARAMETERS, name]) {
            let pointer = format!("/{HYPERPARAMETERS}/{}", escaped(name));
            close(pointer, &format!("{HYPERPARAMETERS}.{name}"));
        }
    }
    flaws
}

/// The experiment of a trigger; pointers of flaws are into the trigger.
pub fn filled(
    experiment: &Value,
    settings: &TemplateSettings,
    trigger: &Trigger,
) -> Result<Value, Vec<Flaw>> {
    let (found, _) = reference::find(experiment);
    let takes = |path: &[&str]| {
        found
            .iter()
            .any(|one| one.path.iter().map(String::as_str).eq(path.iter().copied()))
    };
    let mut flaws = trigger.flaws(|name| takes(&[name]));
    flaws.extend(closed(trigger, &takes));
    let outputs = BTreeMap::from([(CI.to_owned(), said(settings, trigger))]);
    match reference::resolve(experiment, &outputs) {
        Ok(filled) if flaws.is_empty() => Ok(filled),
        Ok(_) => Err(flaws),
        Err(unresolved) => {
            let (text, path) = (
                unresolved.reference.text(),
                unresolved.reference.path.join("/"),
            );
            flaws.push(Flaw::new(
                format!("/{path}"),
                format!(
                    "the template needs it at {} ({text}), and the trigger does not say it",
                    unresolved.reference.pointer
                ),
                "send it, or take the reference out of the template",
            ));
            Err(flaws)
        }
    }
}
