//! Checks claims against the catalog, the prices in force and physics: assumptions behind a
//! configuration that are not true.

use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::finding::{FINDINGS_MAX, Finding, Operation};
use bakeoff_domain::number::real;
use bakeoff_domain::spec::claim::{Claims, HardwareClaim, SpeedClaim};
use bakeoff_domain::spec::{Precision, ProfileSpec};

use super::LintContext;
use crate::predict::Case;
use crate::rules::found;
use crate::setup::Setup;

/// What claims are checked against.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts<'a> {
    pub(super) known: LintContext<'a>,
    pub(super) model: Option<&'a ModelShape>,
    /// Sequences per step.
    pub(super) global_batch: Option<u64>,
    /// The profile that a claimed speed refers to.
    pub(super) profile: Option<&'a ProfileSpec>,
    /// Instance types that the document runs on; empty if it names none.
    pub(super) runs_on: &'a [&'a str],
}

impl<'a> Facts<'a> {
    /// For a document that does not describe its model and names no instance type.
    pub(super) fn of(known: LintContext<'a>) -> Self {
        Self {
            known,
            model: None,
            global_batch: None,
            profile: None,
            runs_on: &[],
        }
    }
}

/// Claims may differ from the truth by this share: people round.
const ROUNDING: f64 = 0.10;
/// Larger price errors would change decisions.
const PRICE_ROUNDING: f64 = 0.05;
/// Bytes per token when tokens are stored as 16-bit and as 32-bit numbers.
const TOKEN_16_BIT: f64 = 2.0;
const TOKEN_32_BIT: f64 = 4.0;
/// A share of the peak that no transformer training has reached on a GPU.
const MFU_MAX: f64 = 0.75;

pub(super) fn check(claims: &Claims, at: &str, facts: Facts<'_>, findings: &mut Vec<Finding>) {
    let begun = findings.len();
    for (index, claim) in claims.hardware.iter().enumerate() {
        if findings.len() > begun + FINDINGS_MAX {
            return;
        }
        let place = format!("{at}/hardware/{index}");
        hardware(claim, &place, facts, findings);
    }
    size(claims, at, facts, findings);
    data(claims, at, facts, findings);
    for (index, claim) in claims.speeds.iter().enumerate() {
        if findings.len() > begun + FINDINGS_MAX {
            return;
        }
        speed(claim, &format!("{at}/speeds/{index}"), facts, findings);
    }
}

fn differs(claimed: f64, truth: f64, tolerance: f64) -> bool {
    (claimed / truth - 1.0).abs() > tolerance
}

/// One figure of an instance type.
struct Figure {
    /// Field of the claim.
    field: &'static str,
    claimed: Option<f64>,
    truth: Option<f64>,
    unit: &'static str,
}

fn figures(claim: &HardwareClaim, kind: &InstanceType) -> [Figure; 5] {
    let figure = |field, claimed, truth, unit| Figure {
        field,
        claimed,
        truth,
        unit,
    };
    [
        figure(
            "accelerator_memory_gb",
            claim.accelerator_memory_gb,
            kind.accelerator_memory_gib,
            "GB per accelerator",
        ),
        figure(
            "vcpus",
            claim.vcpus.map(f64::from),
            kind.vcpus.map(f64::from),
            "vCPU",
        ),
        figure(
            "memory_gb",
            claim.memory_gb,
            kind.memory_gib,
            "GB of host memory",
        ),
        figure(
            "network_gbps",
            claim.network_gbps,
            kind.network_gbps,
            "Gbit/s of total network bandwidth",
        ),
        figure(
            "nvme_gb",
            claim.nvme_gb,
            Some(f64::from(kind.nvme_gb)),
            "GB of local NVMe",
        ),
    ]
}

fn hardware(claim: &HardwareClaim, at: &str, facts: Facts<'_>, findings: &mut Vec<Finding>) {
    let Some(kind) = catalog::find(&claim.instance_type) else {
        findings.push(super::training::unknown_type(
            &claim.instance_type,
            &format!("{at}/instance_type"),
        ));
        return;
    };
    let name = &kind.instance_type;
    let mut wrong = |field: &str, claimed: String, truth: String, value: serde_json::Value| {
        let pointer = format!("{at}/{field}");
        findings.push(
            found("hardware-claim", &pointer)
                .says(format!(
                    "{name} is claimed to have {claimed}, but has {truth}"
                ))
                .patch(vec![Operation::set(&pointer, value)]),
        );
    };
    let truth = kind.accelerator_count;
    if let Some(count) = claim.accelerators.filter(|count| *count != truth) {
        wrong(
            "accelerators",
            format!("{count} accelerators"),
            truth.to_string(),
            truth.into(),
        );
    }
    if let (Some(claimed), Some(truth)) = (&claim.accelerator, &kind.accelerator)
        && !truth.to_lowercase().contains(&claimed.to_lowercase())
    {
        wrong(
            "accelerator",
            claimed.clone(),
            truth.clone(),
            truth.clone().into(),
        );
    }
    for Figure {
        field,
        claimed,
        truth,
        unit,
    } in figures(claim, kind)
    {
        if let (Some(claimed), Some(truth)) = (claimed, truth)
            && (truth == 0.0 && claimed > 0.0 || truth > 0.0 && differs(claimed, truth, ROUNDING))
        {
            wrong(
                field,
                format!("{claimed} {unit}"),
                truth.to_string(),
                truth.into(),
            );
        }
    }
    let has_efa = kind.efa_interfaces.map(|count| count > 0);
    if let (Some(claimed), Some(truth)) = (claim.efa, has_efa)
        && claimed != truth
    {
        let text = |has: bool| if has { "EFA" } else { "no EFA" }.to_owned();
        wrong("efa", text(claimed), text(truth), truth.into());
    }
    largest(claim, kind, at, findings);
    price(claim, kind, at, facts, findings);
    if !facts.runs_on.is_empty() && !facts.runs_on.contains(&name.as_str()) {
        findings.push(
            found("claimed-type-is-not-run", format!("{at}/instance_type")).says(format!(
                "the claim is about {name}, but no candidate runs on it"
            )),
        );
    }
}

/// Of all its accelerators together; zero if the catalog has no figure.
fn total_peak(kind: &InstanceType) -> f64 {
    kind.peak_tflops().unwrap_or(0.0) * f64::from(kind.accelerator_count)
}

fn largest(claim: &HardwareClaim, kind: &InstanceType, at: &str, findings: &mut Vec<Finding>) {
    if !claim.is_the_largest {
        return;
    }
    let mut larger: Vec<&InstanceType> = catalog::all()
        .iter()
        .filter(|other| total_peak(other) > total_peak(kind) * 1.01)
        .collect();
    larger.sort_by(|a, b| total_peak(b).total_cmp(&total_peak(a)));
    if !larger.is_empty() {
        let names: Vec<&str> = larger
            .iter()
            .take(4)
            .map(|other| other.instance_type.as_str())
            .collect();
        let pointer = format!("{at}/is_the_largest");
        findings.push(
            found("not-the-largest", &pointer)
                .says(format!(
                    "{} types are larger than {}: {}",
                    larger.len(),
                    kind.instance_type,
                    names.join(", ")
                ))
                .patch(vec![Operation::remove(&pointer)]),
        );
    }
}

fn price(
    claim: &HardwareClaim,
    kind: &InstanceType,
    at: &str,
    facts: Facts<'_>,
    findings: &mut Vec<Finding>,
) {
    if let Some(spot) = claim.spot_usd_per_hour {
        let pointer = format!("{at}/spot_usd_per_hour");
        findings.push(
            found("spot-has-no-price", &pointer)
                .says(format!(
                    "${spot} per hour is a guess: spot savings are known only after a job has ended"
                ))
                .patch(vec![Operation::remove(&pointer)]),
        );
    }
    let (Some(claimed), Some(price)) = (
        claim.usd_per_hour,
        facts
            .known
            .prices
            .iter()
            .find(|price| price.instance_type == kind.instance_type),
    ) else {
        return;
    };
    let (least, most) = (price.usd_per_hour.as_f64(), price.ceiling().as_f64());
    if claimed < least * (1.0 - PRICE_ROUNDING) || claimed > most * (1.0 + PRICE_ROUNDING) {
        let pointer = format!("{at}/usd_per_hour");
        findings.push(
            found("price-claim", &pointer)
                .says(format!(
                    "{} is claimed to cost ${claimed} per hour; SageMaker's price in {} is ${least} ({})",
                    kind.instance_type,
                    price.region,
                    price.label()
                ))
                .patch(vec![Operation::set(&pointer, least)]),
        );
    }
}

/// Checks the size of the model and its initial loss.
fn size(claims: &Claims, at: &str, facts: Facts<'_>, findings: &mut Vec<Finding>) {
    let Some(model) = facts.model else { return };
    let truth = model.parameters();
    if let Some(claimed) = claims
        .parameters
        .filter(|claimed| differs(*claimed, truth, ROUNDING))
    {
        let pointer = format!("{at}/parameters");
        findings.push(
            found("parameters-claim", &pointer)
                .says(format!(
                    "the model shape has {:.3} billion parameters, but the claim is {:.3} billion",
                    truth / 1e9,
                    claimed / 1e9
                ))
                .patch(vec![Operation::set(&pointer, truth.round())]),
        );
    }
    let uniform = f64::from(model.vocabulary).ln();
    if let Some(claimed) = claims
        .initial_loss
        .filter(|loss| model.lora_rank.is_none() && differs(*loss, uniform, 0.15))
    {
        findings.push(found("initial-loss", format!("{at}/initial_loss")).says(format!(
            "an untrained model with a vocabulary of {} has a loss of ln {} = {uniform:.1}, but the claim is {claimed}",
            model.vocabulary, model.vocabulary
        )));
    }
}

/// Checks bytes per token and passes over the data.
fn data(claims: &Claims, at: &str, facts: Facts<'_>, findings: &mut Vec<Finding>) {
    let Some(tokens) = claims.dataset_tokens.filter(|tokens| *tokens > 0.0) else {
        return;
    };
    let least = if facts.model.is_some_and(|model| model.vocabulary > 65_536) {
        TOKEN_32_BIT
    } else {
        TOKEN_16_BIT
    };
    if let Some(bytes) = claims.dataset_bytes
        && bytes / tokens < least * (1.0 - ROUNDING)
    {
        let pointer = format!("{at}/dataset_bytes");
        findings.push(
            found("bytes-per-token", &pointer)
                .says(format!(
                    "{:.1} GB for {:.1} billion tokens is {:.2} bytes per token; stored as token ids they take {least} bytes each, {:.0} GB in total",
                    bytes / 1e9,
                    tokens / 1e9,
                    bytes / tokens,
                    tokens * least / 1e9
                ))
                .patch(vec![Operation::set(&pointer, tokens * least)]),
        );
    }
    let (Some(steps), Some(batch), Some(model)) =
        (claims.training_steps, facts.global_batch, facts.model)
    else {
        return;
    };
    let per_step = real(batch) * f64::from(model.sequence_length);
    let passes = steps * per_step / tokens;
    let claimed = claims.epochs.unwrap_or(1.0);
    if differs(passes, claimed, ROUNDING) {
        findings.push(
            found("passes-over-the-data", format!("{at}/training_steps"))
                .says(format!(
                    "{steps} steps of {:.2} million tokens make {:.1} billion tokens, {passes:.2} passes over the data; the claim is {claimed}",
                    per_step / 1e6,
                    steps * per_step / 1e9
                ))
                .fix(format!("plan {:.0} steps, or claim {passes:.2} epochs", claimed * tokens / per_step))
                .patch(vec![Operation::set(&format!("{at}/training_steps"), (claimed * tokens / per_step).round())]),
        );
    }
}

/// Checks a claimed speed as a share of the peak and against the prediction.
fn speed(claim: &SpeedClaim, at: &str, facts: Facts<'_>, findings: &mut Vec<Finding>) {
    let pointer = format!("{at}/steps_per_hour");
    let Some(kind) = catalog::find(&claim.instance_type) else {
        findings.push(super::training::unknown_type(
            &claim.instance_type,
            &format!("{at}/instance_type"),
        ));
        return;
    };
    let (Some(model), Some(batch), Some(peak)) =
        (facts.model, facts.global_batch, kind.peak_tflops())
    else {
        return;
    };
    let tokens = claim.steps_per_hour * real(batch) * f64::from(model.sequence_length) / 3600.0;
    let cluster = Cluster {
        instance: kind,
        count: claim.instance_count,
    };
    let accelerators = cluster.accelerators();
    let mfu = tokens * model.flops_per_token() / (f64::from(accelerators) * peak * 1e12);
    if mfu > MFU_MAX {
        findings.push(found("speed-beyond-the-peak", &pointer).says(format!(
            "{} steps per hour is {tokens:.0} tokens/s, {:.0} % of the peak of {accelerators} accelerators: no training run has reached that",
            claim.steps_per_hour,
            100.0 * mfu
        )));
        return;
    }
    let plain = ProfileSpec {
        zero_stage: 2,
        ..ProfileSpec::of_batch(batch, accelerators)
    };
    let setup = Setup {
        model,
        profile: facts.profile.unwrap_or(&plain),
        precision: Precision::Bf16,
        cluster,
    };
    let Some(case) = Case::new(setup) else {
        return;
    };
    let tuned = facts.known.calibration.of_tuned_code();
    let [_, expected, high] = tuned.tokens_per_second(&case);
    if tokens > high {
        let steps = |speed: f64| speed * 3600.0 / (real(batch) * f64::from(model.sequence_length));
        findings.push(
            found("speed-claim", &pointer)
                .says(format!(
                    "{} steps per hour is {tokens:.0} tokens/s ({:.0} % of the peak); {expected:.0} are predicted for {} × {}, at most \
                     {high:.0} with well-tuned code",
                    claim.steps_per_hour,
                    100.0 * mfu,
                    claim.instance_count,
                    kind.instance_type
                ))
                .fix(format!("plan for {:.0} steps per hour", steps(expected)))
                .patch(vec![Operation::set(&pointer, steps(expected).floor())]),
        );
    }
}
