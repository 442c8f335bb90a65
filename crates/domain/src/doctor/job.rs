//! The one proof of everything: a job that runs one command in the image on the cheapest type, and
//! ends. It pulls the image under the role, writes a log and an empty model, and is an experiment like
//! any other: planned, reserved, watched, billed.

use serde_json::json;

use super::found::{AwsFound, PriceFound};
use super::wanted::{CheckScope, S3Use};
use crate::money::Usd;
use crate::sagemaker::quota::{Quota, Usage};
use crate::spec::ExperimentSpec;

/// Name of the experiment and its workload.
pub const NAME: &str = "bakeoff-doctor";
/// Ten minutes: the command ends within seconds, so this only bounds what a broken image can cost.
const MAX_RUNTIME_SECONDS: u32 = 600;
/// Runs in any image that has a shell.
const COMMAND: [&str; 3] = [
    "/bin/sh",
    "-c",
    "echo tokens_per_second=1; echo bakeoff doctor: the image was pulled, and its command runs",
];

/// The experiment, on `instance_type` or else on the cheapest type that may run. `None` if role, image
/// or output are not named, or no such type has a price.
///
/// It reads no inputs: downloading a large dataset would cost more than everything else.
pub fn experiment(
    wanted: &CheckScope,
    aws: &AwsFound,
    prices: &[PriceFound],
    instance_type: Option<&str>,
) -> Option<ExperimentSpec> {
    let output = wanted
        .places
        .iter()
        .find(|place| place.usage == S3Use::Output)?;
    let kind = match instance_type {
        Some(kind) => kind,
        None => cheapest(aws.quotas.as_deref().ok()?, prices)?,
    };
    let price = prices.iter().find(|price| price.instance_type == kind)?;
    let spec = json!({
        "name": NAME,
        "region": wanted.region,
        // An hour's price covers the worst case of ten minutes with download, upload and stop.
        "budget_usd": Usd(price.usd_per_hour?.0.ceil()),
        "max_runtime_seconds": MAX_RUNTIME_SECONDS,
        "deadline_hours": 1,
        "stopping_policy": "full",
        "objective": {"minimize": "cost"},
        "notes": ["Made by `bakeoff doctor --job`: it only shows that jobs run."],
        "workload": {
            "name": NAME,
            "image": wanted.image.as_ref()?.as_str(),
            "role_arn": wanted.role_arn.as_ref()?,
            "channels": [],
            "output_s3_uri": output.uri,
            "container_entrypoint": COMMAND,
            "omit_plan_hyperparameters": true,
            "model": {"total_parameters": 1},
            "precision": "fp32",
            "data_version": "none",
            "code_version": "none",
            "total_tokens": 1,
            "trial_tokens": 1,
            "metrics": [{
                "name": "doctor:tokens_per_second",
                "regex": "tokens_per_second=([0-9.]+)",
                "meaning": "tokens_per_second",
            }],
        },
        "candidates": [{
            "name": "check",
            "instance_type": kind,
            "profile": {"micro_batch_per_gpu": 1, "gradient_accumulation_steps": 1, "zero_stage": 0},
        }],
    });
    serde_json::from_value(spec).ok()
}

fn cheapest<'a>(quotas: &[Quota], prices: &'a [PriceFound]) -> Option<&'a str> {
    let may_run = |price: &&PriceFound| {
        quotas.iter().any(|quota| {
            quota.usage == Usage::OnDemand
                && quota.instances > 0
                && quota.instance_type == price.instance_type
        })
    };
    let usable = prices
        .iter()
        .filter(|price| price.usd_per_hour.is_some())
        .filter(may_run);
    let kind = usable.min_by_key(|price| price.usd_per_hour)?;
    Some(&kind.instance_type)
}
