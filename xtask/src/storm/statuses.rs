//! The order in which a job's statuses are reported to users: it only moves forwards, however late
//! and in whatever order events arrive.

use std::collections::BTreeMap;

use serde_json::Value;

/// The statuses reported for each on-demand trial, in order; spot trials start over again and
/// again.
#[derive(Default)]
pub(super) struct Told(BTreeMap<String, Vec<u8>>);

/// How far along a job is; `None` for a status that does not say.
fn stage_of(status: &str) -> Option<u8> {
    Some(match status {
        "Starting" | "Pending" => 0,
        "Downloading" => 1,
        "Training" => 2,
        "Uploading" | "Stopping" => 3,
        "Completed" | "Failed" | "Stopped" | "MaxRuntimeExceeded" => 4,
        _ => return None,
    })
}

impl Told {
    /// Records a trial's event `<candidate> on_demand: <status>`.
    pub(super) fn hear(&mut self, event: &Value) {
        let (trial, message) = (
            event["trial_id"].as_str(),
            event["message"].as_str().unwrap_or_default(),
        );
        let status = message
            .split_once(" on_demand: ")
            .and_then(|(_, status)| stage_of(status));
        if let (Some(trial), Some(status)) = (trial, status)
            && event["kind"] == "trial.status"
        {
            self.0.entry(trial.to_owned()).or_default().push(status);
        }
    }

    /// Trials whose status went backwards more often than they started over, with the reported
    /// stages.
    pub(super) fn backwards(&self, attempts: &BTreeMap<String, usize>) -> Vec<String> {
        let goes_back = |told: &[u8]| {
            told.windows(2)
                .filter(|pair| matches!(pair, [one, next] if next < one))
                .count()
        };
        let begun = |trial: &String| attempts.get(trial).copied().unwrap_or_default();
        let wrong = self
            .0
            .iter()
            .filter(|(trial, told)| goes_back(told) > begun(trial).saturating_sub(1));
        wrong
            .map(|(trial, told)| format!("{trial} was told to be at {told:?} of its way"))
            .collect()
    }
}
