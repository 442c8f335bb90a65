//! The order in which a job's statuses are reported to users: it only moves forwards, however late
//! and in whatever order events arrive.

use std::collections::BTreeMap;

use serde_json::Value;

/// The statuses reported for each on-demand trial, in order; spot trials start over again and
/// again.
#[derive(Default)]
pub(super) struct ReportedStatuses(BTreeMap<String, Vec<u8>>);

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

impl ReportedStatuses {
    /// Records an event, if it is a status of an on-demand trial.
    pub(super) fn hear(&mut self, event: &Value) {
        if event["kind"] != "trial.status" || event["purchase_option"] != "on_demand" {
            return;
        }
        let data = &event["data"];
        let stage = [&data["secondary_status"], &data["status"]]
            .into_iter()
            .filter_map(Value::as_str)
            .find(|status| !status.is_empty())
            .and_then(stage_of);
        if let (Some(trial), Some(stage)) = (event["trial_id"].as_str(), stage) {
            self.0.entry(trial.to_owned()).or_default().push(stage);
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
