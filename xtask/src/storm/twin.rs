//! A second database of the installation, as a person would create one: a copy started beside its
//! original, or a backup restored when the original is lost. It is in the seed's own cluster, and
//! an object in S3 tells the two apart.

use std::process::Child;
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::plan::Kind;
use super::stage::Stage;
use bakeoff_demo::http::{get, pages, post};

/// The original is lost at least this long after its backup, and not before it has created a job
/// that the backup does not know.
const LOST_AFTER: Duration = Duration::from_secs(10);
/// What a copy logs when it has met its original.
pub(super) const MET: &str = "another database holds this installation's fence";

/// The second database of a seed, and how far its scenario has come.
pub(super) struct Twin {
    pub(super) kind: Kind,
    pub(super) made_at: Option<SystemTime>,
    /// The replica on a copy.
    service: Option<(Child, String)>,
    /// Whether the copy was told to cancel everything, or the backup has replaced its original.
    pub(super) is_played: bool,
}

impl Twin {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            made_at: None,
            service: None,
            is_played: false,
        }
    }

    /// Takes the next step of the scenario when it is due. It begins once everything is submitted:
    /// jobs have been created by then, and more are to come.
    pub(super) fn follow(&mut self, stage: &mut Stage) -> Result<(), String> {
        let Some(made_at) = self.made_at else {
            if stage.copy_database().is_ok() {
                self.made_at = Some(SystemTime::now());
                if self.kind == Kind::Copy {
                    self.service = Some(stage.start_on_copy()?);
                }
            }
            return Ok(());
        };
        if self.is_played {
            return Ok(());
        }
        match self.kind {
            Kind::Copy => {
                if let Some((_, url)) = &self.service {
                    self.is_played = cancel_all(url, &stage.api_key).is_ok();
                }
            }
            Kind::Backup => {
                let is_time = made_at.elapsed().is_ok_and(|passed| passed > LOST_AFTER);
                if is_time && has_created_since(stage, made_at)? {
                    stage.restore_copy();
                    self.is_played = true;
                }
            }
        }
        Ok(())
    }
}

/// Someone mistakes the copy for a playground.
fn cancel_all(url: &str, key: &str) -> Result<(), String> {
    for experiment in pages(&format!("{url}/v1/experiments"), key)? {
        let id = experiment["id"].as_str().unwrap_or_default();
        post(
            &format!("{url}/v1/experiments/{id}/cancel"),
            key,
            &json!({}),
        )?;
    }
    Ok(())
}

fn has_created_since(stage: &Stage, since: SystemTime) -> Result<bool, String> {
    let record = get(&format!("{}/_sim/record", stage.region_url), "")?;
    let jobs = record["jobs"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut created = jobs
        .iter()
        .filter_map(|job| Some(stage.real(job["created_at"].as_str()?.parse().ok()?)));
    Ok(created.any(|at| at > chrono::DateTime::<chrono::Utc>::from(since)))
}

impl Drop for Twin {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.service {
            bakeoff_demo::stack::kill(child);
        }
    }
}
