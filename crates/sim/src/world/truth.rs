//! What a full run would really take on the usual machines, for whoever judges a decision. The product
//! never asks.

use bakeoff_domain::catalog;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::account::request::strings;
use crate::machines::physics::{self, Script};
use crate::world::World;

/// Seconds of starting up that are billed, and of uploading: the middle of what is drawn for a job.
const DOWNLOAD_SECONDS: f64 = 130.0;
const UPLOAD_SECONDS: f64 = 80.0;

/// A training, on demand and without a limit.
#[derive(Debug, Deserialize)]
pub(crate) struct TrainingQuery {
    image: String,
    hyperparameters: Value,
    instance_type: String,
    instance_count: u32,
}

/// Its speed, hours and dollars; `None` if it is not a training of a language model on instances
/// that this account can buy.
pub(crate) fn truth(world: &World, asked: &TrainingQuery) -> Option<Value> {
    let instance = catalog::find(&asked.instance_type)?;
    let hyper = strings(&asked.hyperparameters);
    let law = physics::training(&hyper, instance, asked.instance_count)?;
    let script = match world.lively {
        Some(lively) => lively.usual(&asked.image, &hyper, instance, law),
        None => Script::plain(Some(law)),
    };
    let work = script.work_seconds()?;
    let seconds = script.curve.wall_for(work);
    let billed_hours = (DOWNLOAD_SECONDS + seconds + UPLOAD_SECONDS) / 3600.0;
    let rates = world.rates.usd_per_hour(&asked.instance_type)?;
    let training = script.training?;
    Some(json!({
        "hours": billed_hours,
        "usd": rates * f64::from(asked.instance_count) * billed_hours,
        "tokens_per_second": training.steps * training.tokens_per_step / seconds,
    }))
}
