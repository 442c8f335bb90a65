//! What follows from a measured speed and the shape of the training: samples and steps a second,
//! utilisation of the hardware, dollars per token. Every figure stays empty when an input is
//! unknown.

use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;

use crate::catalog::model::{ModelShape, is_sound};
use crate::catalog::{self, InstanceType};
use crate::money::{Usd, cost};
use crate::number::real;
use crate::spec::{Candidate, WorkloadSpec};

/// Percent of an accelerator's memory beyond which a figure is in another unit. The catalog's size may be a little less
/// than what a driver reports.
const MEMORY_LEAST: f64 = 0.5;
const MEMORY_MOST: f64 = 110.0;

/// The shape of one training, the same for trials and external runs.
#[derive(Debug, Clone, Copy)]
pub struct TrainingShape<'a> {
    pub model: Option<&'a ModelShape>,
    /// Sequences per optimizer step, over all accelerators.
    pub global_batch: Option<u64>,
    pub accelerators: u32,
    /// Of one accelerator.
    pub peak_tflops: Option<f64>,
    /// Memory of one accelerator, as the catalog has it.
    pub accelerator_gib: Option<f64>,
    pub epoch_tokens: Option<u64>,
    pub planned_steps: Option<i64>,
    /// Price of all instances together.
    pub usd_per_hour: Option<Usd>,
    /// Billed time divided by productive time; none while unknown.
    pub billed_share: Option<f64>,
}

/// Derived from tokens per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Derived {
    pub samples_per_second: Option<f64>,
    pub steps_per_second: Option<f64>,
    /// Model FLOPs utilization, 0 to 100.
    pub mfu_percent: Option<f64>,
    pub usd_per_million_tokens: Option<Usd>,
    pub usd_per_step: Option<Usd>,
    pub usd_per_epoch: Option<Usd>,
}

impl<'a> TrainingShape<'a> {
    /// Of a candidate as it is specified, without its cost.
    pub fn of_candidate(candidate: Candidate<'a>) -> Self {
        let accelerators = candidate.spec.accelerators();
        Self::of_workload(
            candidate.workload,
            &candidate.spec.instance_type,
            accelerators,
            candidate.profile.global_batch(accelerators),
        )
    }

    /// Of a workload on some hardware, without its cost. A global batch of zero is unknown.
    pub fn of_workload(
        workload: &'a WorkloadSpec,
        instance_type: &str,
        accelerators: u32,
        global_batch: u64,
    ) -> Self {
        let instance = catalog::find(instance_type);
        Self {
            model: Some(&workload.model),
            global_batch: Some(global_batch).filter(|batch| *batch > 0),
            accelerators,
            peak_tflops: instance.and_then(InstanceType::peak_tflops),
            accelerator_gib: instance.and_then(|one| one.accelerator_memory_gib),
            epoch_tokens: workload.epoch_tokens,
            planned_steps: None,
            usd_per_hour: None,
            billed_share: None,
        }
    }

    pub fn tokens_per_sample(&self) -> Option<f64> {
        self.model.map(|model| f64::from(model.sequence_length))
    }

    pub fn tokens_per_step(&self) -> Option<f64> {
        Some(self.tokens_per_sample()? * real(self.global_batch?))
    }

    /// Percent of an accelerator's memory that is in use: of its total as it was reported, or else of the catalog's. `None`
    /// where the figures do not fit together, as where they are in other units.
    pub fn memory_percent(&self, used_mib: Option<f64>, total_mib: Option<f64>) -> Option<f64> {
        let catalog = self.accelerator_gib.map(|gib| gib * 1024.0);
        let percent = 100.0 * used_mib? / total_mib.or(catalog)?;
        (MEMORY_LEAST..=MEMORY_MOST)
            .contains(&percent)
            .then_some(percent.min(100.0))
    }

    /// Progress towards the planned steps, 0 to 1.
    pub fn progress(&self, step: Option<i64>) -> Option<f64> {
        let planned = self.planned_steps.filter(|planned| *planned > 0)?;
        Some((real(step?.unsigned_abs()) / real(planned.unsigned_abs())).clamp(0.0, 1.0))
    }

    /// Everything that follows from a speed.
    pub fn derive(&self, tokens_per_second: Option<f64>) -> Derived {
        let per = |divisor: Option<f64>| {
            Some(tokens_per_second? / divisor?).filter(|rate| rate.is_finite())
        };
        let peak = self
            .peak_tflops
            .map(|peak| peak * 1e12 * f64::from(self.accelerators));
        let described = self.model.filter(|model| is_sound(model));
        let flops = described.map(ModelShape::flops_per_token);
        let per_million = tokens_per_second
            .zip(self.usd_per_hour)
            .zip(self.billed_share)
            .and_then(|((speed, rate), share)| cost::usd_per_million_tokens(rate, 1, speed, share));
        let of_tokens = |tokens: Option<f64>| {
            let millions = Decimal::from_f64(tokens? / 1e6)?;
            Some(Usd(per_million?.0.checked_mul(millions)?).rounded())
        };
        Derived {
            samples_per_second: per(self.tokens_per_sample()),
            steps_per_second: per(self.tokens_per_step()),
            mfu_percent: tokens_per_second
                .zip(flops)
                .zip(peak)
                .map(|((speed, flops), peak)| 100.0 * speed * flops / peak),
            usd_per_million_tokens: per_million,
            usd_per_step: of_tokens(self.tokens_per_step()),
            usd_per_epoch: of_tokens(self.epoch_tokens.map(real)),
        }
    }
}
