//! Models of completed trials in the region's registry: asked for while everything fails, as a pipeline
//! would, and compared with the region's record at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stage::{ACCOUNT, Stage};
use bakeoff_demo::http::{get, pages, post};

/// No further model is asked for in a turn that has taken this long.
const ASK_MAX: Duration = Duration::from_secs(2);

/// Trials whose models have been asked for, unless they are not to be.
pub(super) struct Models {
    asked: BTreeSet<String>,
    is_idle: bool,
}

impl Models {
    pub(super) fn new(is_idle: bool) -> Self {
        Self {
            asked: BTreeSet::new(),
            is_idle,
        }
    }

    /// Asks for those of these experiments that have not been asked for; safe to repeat. True if none was
    /// left.
    pub(super) fn ask<'a>(
        &mut self,
        stage: &Stage,
        experiments: impl Iterator<Item = &'a String>,
    ) -> bool {
        let (begun, key) = (Instant::now(), &stage.api_key);
        let Some(url) = stage.urls().into_iter().next() else {
            return self.is_idle;
        };
        let is_idle = self.is_idle;
        for one in experiments.filter(|_| !is_idle) {
            let Ok(trials) = pages(&format!("{url}/v1/experiments/{one}/trials"), key) else {
                return false;
            };
            let completed = trials.iter().filter(|trial| trial["state"] == "completed");
            for id in completed.filter_map(|trial| trial["id"].as_str()) {
                if self.asked.contains(id) {
                    continue;
                }
                if begun.elapsed() > ASK_MAX {
                    return false;
                }
                let wish = json!({"trial_id": id, "group": "storm", "image": "serve:1"});
                match post(&format!("{url}/v1/model-packages"), key, &wish) {
                    // Of a job that SageMaker forgot, no model is known.
                    Err(refused) if !refused.contains("409") => return false,
                    Ok(_) | Err(_) => self.asked.insert(id.to_owned()),
                };
            }
        }
        true
    }

    /// Whether SageMaker has all that was asked for.
    pub(super) fn are_registered(&self, url: &str, key: &str) -> bool {
        let all = pages(&format!("{url}/v1/model-packages"), key);
        let is_open = |one: &Value| one["state"] == "registering";
        self.is_idle || all.is_ok_and(|all| !all.iter().any(is_open))
    }
}

/// What the region's registry has, held against what the service believes.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) packages: usize,
    /// Each must be there once, and none without a row.
    pub(super) wrong: Vec<String>,
}

pub(super) fn compare(stage: &Stage, url: &str) -> Result<Compared, String> {
    let believed = pages(&format!("{url}/v1/model-packages"), &stage.api_key)?;
    let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
    let there = record["model_packages"].as_array().into_iter().flatten();
    let mut by_marker: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in there {
        let marker = &package["request"]["CustomerMetadataProperties"]["bakeoff:model_package"];
        let arn = package["arn"].as_str().unwrap_or_default();
        // While the credentials are another account's, one may land there.
        if arn.split(':').nth(4) == Some(ACCOUNT) {
            by_marker
                .entry(marker.as_str().unwrap_or_default())
                .or_default()
                .push(arn);
        }
    }
    let packages = by_marker.len();
    let mut wrong = Vec::new();
    for one in &believed {
        let id = one["id"].as_str().unwrap_or_default();
        let arns = by_marker.remove(id).unwrap_or_default();
        let is_there = one["arn"].as_str().is_some_and(|arn| arns == [arn]);
        if one["state"] != "registered" || !is_there {
            wrong.push(format!(
                "{id} is {} ({}): {arns:?}",
                one["state"], one["reason"]
            ));
        }
    }
    let unknown = by_marker.into_iter();
    wrong.extend(unknown.map(|(marker, arns)| format!("{arns:?} of {marker} have no row")));
    Ok(Compared { packages, wrong })
}
