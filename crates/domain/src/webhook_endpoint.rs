//! Webhooks that go out: which events an endpoint hears of, and what Slack is told. When a delivery is tried again is
//! in [`crate::delivery`]; how a request is sent, and where it may go, is the service's matter.

use serde_json::{Value, json};

use crate::event::EventSeverity;

/// Kinds of events.
pub const KINDS: [&str; 43] = [
    "budget.threshold",
    "ci.decided",
    "endpoint.changed",
    "endpoint.expiring",
    "experiment.cancelling",
    "experiment.changed",
    "experiment.concluded",
    "experiment.created",
    "experiment.paused",
    "experiment.repriced",
    "experiment.resumed",
    "purchase.decided",
    "purchase.waiting",
    "trial.accelerators_idle",
    "trial.billing_corrected",
    "trial.checkpoint_stalled",
    "trial.completed",
    "trial.diagnosed",
    "trial.end_refused",
    "trial.failed",
    "trial.loss_not_finite",
    "trial.no_readings",
    "trial.orphaned_job",
    "trial.orphaned_pool",
    "trial.over_reservation",
    "trial.parked",
    "trial.planned",
    "trial.pool_settled",
    "trial.refused",
    "trial.released",
    "trial.retrying",
    "trial.setting_ignored",
    "trial.status",
    "trial.stop_refused",
    "trial.stopped",
    "trial.stopping",
    "trial.submitted",
    "trial.taken_over",
    "trial.unit_doubtful",
    "trial.unknown_job",
    "trial.unreadable",
    "trial.waiting",
    "webhook.disabled",
];

named! {
    /// What a delivery looks like.
    Form {
        /// Standard Webhooks: type, timestamp and data, signed.
        Standard = "standard",
        /// For an incoming webhook of Slack's, or of a chat that takes the same.
        Slack = "slack",
    }
}

/// Whether a pattern names at least one kind: a kind, or the first part of some with `.*`.
pub fn names_a_kind(pattern: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => start.ends_with('.') && KINDS.iter().any(|kind| kind.starts_with(start)),
        None => KINDS.contains(&pattern),
    }
}

/// A message in Slack's form. What users have named cannot mention anybody or hide a link in it.
pub fn slack(
    severity: EventSeverity,
    experiment: &str,
    message: &str,
    way_out: Option<&str>,
) -> Value {
    let sign = match severity {
        EventSeverity::Alarm => ":rotating_light:",
        EventSeverity::Warning => ":warning:",
        EventSeverity::Info => ":information_source:",
    };
    let mut text = format!("{sign} *{}*: {}", escaped(experiment), escaped(message));
    if let Some(way_out) = way_out {
        text = format!("{text}\n{}", escaped(way_out));
    }
    json!({"text": text, "unfurl_links": false})
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_event_can_be_asked_for() {
        let rows: Vec<Value> =
            serde_json::from_str(include_str!("../../../tests/stored/events.v1.json")).unwrap();
        for row in rows {
            assert!(names_a_kind(row["kind"].as_str().unwrap()), "{row}");
        }
        for pattern in ["trial.*", "ci.*", "experiment.concluded"] {
            assert!(names_a_kind(pattern), "{pattern}");
        }
        for pattern in [
            "",
            "*",
            ".*",
            "trial",
            "trial*",
            "nothing.*",
            "experiment.ended",
        ] {
            assert!(!names_a_kind(pattern), "{pattern}");
        }
    }

    #[test]
    fn nobody_is_mentioned_in_slack() {
        let told = slack(
            EventSeverity::Alarm,
            "<!channel>",
            "a & <https://x|y>",
            Some("resume it"),
        );
        assert_eq!(
            told["text"],
            ":rotating_light: *&lt;!channel&gt;*: a &amp; &lt;https://x|y&gt;\nresume it"
        );
    }
}
