//! Fits and evaluates the speed law on measured runs.

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::spec::{Precision, ProfileSpec};
use bakeoff_planner::predict::fit as memory;
use bakeoff_planner::predict::fit::Verdict;
use bakeoff_planner::predict::{self, Calibration, EFFECTS, Effects, Hardware, Model, Setting};
use bakeoff_planner::setup::Setup;
use serde_json::{Value, json};

use crate::least_squares::{self, Prior};
use crate::table::{Throughput, leave_out, median, quantile, share};

/// Residual (in logarithms) at which a row counts as an outlier.
const SCALE: f64 = 0.04;
/// Prior centres and spreads: published kernel efficiencies and traffic counts, each wide.
pub(crate) const PRIORS: [Prior; predict::COUNT] = [
    Prior {
        centre: 1.25,
        sigma: 0.20,
    },
    Prior {
        centre: 0.19,
        sigma: 0.50,
    },
    Prior {
        centre: 1.75,
        sigma: 0.40,
    },
    Prior {
        centre: 0.60,
        sigma: 0.50,
    },
    Prior {
        centre: 250.0,
        sigma: 0.50,
    },
    Prior {
        centre: 40.0,
        sigma: 0.50,
    },
    Prior {
        centre: 0.75,
        sigma: 0.30,
    },
    Prior {
        centre: 1.50,
        sigma: 0.20,
    },
    Prior {
        centre: 2.00,
        sigma: 0.40,
    },
    Prior {
        centre: 0.008,
        sigma: 0.70,
    },
];

fn shape(row: &Throughput) -> ModelShape {
    ModelShape {
        layers: row.n_layers,
        hidden: row.d_model,
        heads: row.n_heads,
        kv_heads: None,
        intermediate: None,
        vocabulary: row.vocab,
        tied_embeddings: true,
        sequence_length: row.seq_len,
        lora_rank: None,
        ..ModelShape::default()
    }
}

/// The instance type that has a row's GPU.
pub(crate) fn kind(row: &Throughput) -> Result<&'static str, String> {
    match row.gpu.as_str() {
        "a100_40gb" => Ok("ml.p4d.24xlarge"),
        "a100_80gb" => Ok("ml.p4de.24xlarge"),
        "h100_80gb" => Ok("ml.p5.48xlarge"),
        other => Err(format!(
            "throughput_mosaic: no instance type stands for {other}"
        )),
    }
}

/// The catalog's chip on the network of the measured clusters: 1,600 Gbit/s per instance for A100,
/// 3,200 for H100.
fn hardware(row: &Throughput) -> Result<(String, Hardware), String> {
    let kind = kind(row)?;
    let network = if row.gpu == "h100_80gb" { 50e9 } else { 25e9 };
    let instance = catalog::find(kind).ok_or(kind)?;
    let found = predict::hardware(instance, Precision::Bf16).ok_or(kind)?;
    Ok((row.gpu.clone(), Hardware { network, ..found }))
}

fn setting(row: &Throughput) -> Setting {
    let model = shape(row);
    // FSDP gathers and scatters in every micro-step.
    let collectives = if row.sharding == "FULL_SHARD" {
        3.0
    } else {
        2.0
    };
    Setting {
        parameters: model.parameters(),
        layer_parameters: model.layer_parameters(),
        layers: f64::from(row.n_layers),
        hidden: f64::from(row.d_model),
        vocabulary: f64::from(row.vocab),
        sequence_length: f64::from(row.seq_len),
        accelerators: f64::from(row.n_gpus),
        micro_batch: row.micro_batch,
        accumulation: row.grad_accum,
        collectives,
        collectives_between: collectives,
        recomputes: row.act_ckpt,
        recomputes_attention: false,
        is_fp8: row.precision == "fp8",
        products: 6.0,
        optimised: model.parameters() / f64::from(row.n_gpus),
        width: 1.0,
        unpacked_bytes: 0.0,
        split: 1.0,
        tensor: 1.0,
        pipeline: 1.0,
        context: 1.0,
        context_bytes: 0.0,
        host_per_micro_step: 0.0,
        host_per_step: 0.0,
    }
}

/// The memory verdict on rows that all ran, through the product's code path for ZeRO and FSDP.
/// Nothing in it was fitted to these rows.
pub(crate) fn memory_of(rows: &[Throughput]) -> Result<Value, String> {
    let mut verdicts = Vec::new();
    for row in rows {
        let kind = kind(row)?;
        let instance = catalog::find(kind).ok_or(kind)?;
        let profile = ProfileSpec {
            zero_stage: if row.sharding == "FULL_SHARD" { 3 } else { 2 },
            micro_batch_per_gpu: row.micro_batch as u32,
            gradient_accumulation_steps: row.grad_accum as u32,
            activation_checkpointing: row.act_ckpt,
            ..ProfileSpec::of_batch(1, 1)
        };
        let setup = Setup {
            model: &shape(row),
            profile: &profile,
            precision: Precision::Bf16,
            cluster: Cluster {
                instance,
                count: row.n_gpus.div_ceil(8),
            },
        };
        verdicts.push(memory::fit(setup).verdict);
    }
    let of = |wanted: Verdict| 100.0 * share(&verdicts, |verdict| *verdict == wanted);
    Ok(json!({
        "rows": rows.len(),
        "false_oom_pct": of(Verdict::DoesNotFit),
        "uncertain_pct": of(Verdict::Uncertain),
    }))
}

struct Case {
    gpu: String,
    hardware: Hardware,
    setting: Setting,
    measured: f64,
}

impl Case {
    /// The case as input to the law. The rows come from the code that the law was fitted to, so
    /// there is no extra uncertainty.
    fn asked(&self) -> predict::Case<'_> {
        predict::Case {
            kind: &self.gpu,
            hardware: self.hardware,
            setting: self.setting,
            effects: [0.0; EFFECTS],
            extra: 0.0,
        }
    }
}

fn cases(rows: &[Throughput]) -> Result<Vec<Case>, String> {
    rows.iter()
        .map(|row| {
            let (gpu, hardware) = hardware(row)?;
            Ok(Case {
                gpu,
                hardware,
                setting: setting(row),
                measured: row.tokens_per_s_gpu,
            })
        })
        .collect()
}

/// Fits the law to the rows.
pub(crate) fn fit(rows: &[Throughput]) -> Result<Model, String> {
    let cases = cases(rows)?;
    let found = least_squares::fit(&PRIORS, |theta| {
        let residual = |case: &Case| {
            (predict::log_speed(theta, &case.hardware, &case.setting) - case.measured.ln()) / SCALE
        };
        cases.iter().map(residual).collect()
    });
    Ok(Model {
        theta: found.theta,
        covariance: found.covariance,
        effects: Effects::default(),
    })
}

/// The law as a plan uses it: what the code of a workload does to its speed is not known.
pub(crate) struct Product(Calibration);

pub(crate) fn product(model: &Model) -> Product {
    Product(Calibration::new(model, predict::IMPLEMENTATION))
}

impl Product {
    /// Standard deviation of what types share, as a logarithm.
    pub(crate) fn shared_sd(&self) -> f64 {
        self.0.shared_sd()
    }

    /// Low, expected and high tokens/s of all accelerators of a row.
    pub(crate) fn of(&self, row: &Throughput) -> Result<[f64; 3], String> {
        let (_, hardware) = hardware(row)?;
        let instance = catalog::find(kind(row)?).ok_or("no such instance type")?;
        let asked = predict::Case {
            kind: instance.accelerator.as_deref().unwrap_or_default(),
            hardware,
            setting: setting(row),
            effects: [0.0; EFFECTS],
            extra: 0.0,
        };
        Ok(self.0.tokens_per_second(&asked))
    }
}

/// Low, expected and high speed of each row.
fn predicted(model: &Model, rows: &[Throughput]) -> Result<Vec<[f64; 3]>, String> {
    let calibration = Calibration::new(model, 0.0);
    let of = |case: Case| calibration.speed(&case.asked(), 0.0);
    Ok(cases(rows)?.into_iter().map(of).collect())
}

fn errors_pct(predicted: &[f64], rows: &[Throughput]) -> Vec<f64> {
    predicted
        .iter()
        .zip(rows)
        .map(|(found, row)| 100.0 * (found / row.tokens_per_s_gpu - 1.0).abs())
        .collect()
}

fn covered(intervals: &[[f64; 3]], rows: &[Throughput]) -> f64 {
    let pairs: Vec<(&[f64; 3], &Throughput)> = intervals.iter().zip(rows).collect();
    share(&pairs, |(interval, row)| {
        (interval[0]..=interval[2]).contains(&row.tokens_per_s_gpu)
    })
}

/// Predicts each row with a law fitted without the row's group.
fn cross_validated(
    rows: &[Throughput],
    group: impl Fn(&Throughput) -> String,
) -> Result<Vec<[f64; 3]>, String> {
    let mut all = vec![[0.0; 3]; rows.len()];
    for (others, own) in leave_out(rows, group) {
        let model = fit(&others)?;
        let held_out: Vec<Throughput> = own.iter().map(|index| rows[*index].clone()).collect();
        for (index, interval) in own.iter().zip(predicted(&model, &held_out)?) {
            all[*index] = interval;
        }
    }
    Ok(all)
}

/// For each GPU in turn: fits the law to the others, measures one of its rows, and takes the median
/// error on the rest. Returns the mean over the GPUs.
fn new_gpu_one_shot(rows: &[Throughput]) -> Result<Option<f64>, String> {
    let mut gpus: Vec<&str> = rows.iter().map(|row| row.gpu.as_str()).collect();
    gpus.sort_unstable();
    gpus.dedup();
    if gpus.len() < 2 {
        return Ok(None);
    }
    let mut medians: Vec<f64> = Vec::new();
    for gpu in gpus {
        medians.extend(one_shot(rows, gpu)?);
    }
    Ok((!medians.is_empty()).then(|| medians.iter().sum::<f64>() / medians.len() as f64))
}

/// The median error on a GPU of which one row was measured; `None` without any other row.
fn one_shot(rows: &[Throughput], gpu: &str) -> Result<Option<f64>, String> {
    let (own, others): (Vec<Throughput>, Vec<Throughput>) =
        rows.iter().cloned().partition(|row| row.gpu == gpu);
    let Some(anchor) = anchor(&own) else {
        return Ok(None);
    };
    let mut calibration = Calibration::new(&fit(&others)?, 0.0);
    let all = cases(&own)?;
    let Some(measured) = all.get(anchor) else {
        return Ok(None);
    };
    calibration.measure(&measured.asked(), predict::TYPE, measured.measured);
    let rest = all.iter().enumerate().filter(|(index, _)| *index != anchor);
    let errors: Vec<f64> = rest
        .map(|(_, case)| {
            let [_, expected, _] = calibration.speed(&case.asked(), 0.0);
            100.0 * (expected / case.measured - 1.0).abs()
        })
        .collect();
    Ok((!errors.is_empty()).then(|| median(&errors)))
}

/// The row of 7b at 2,048 tokens on 8 GPUs, or else the one with the median speed.
fn anchor(rows: &[Throughput]) -> Option<usize> {
    let standard = rows
        .iter()
        .position(|row| row.model == "7b" && row.seq_len == 2048 && row.n_gpus == 8);
    standard.or_else(|| {
        let mut order: Vec<usize> = (0..rows.len()).collect();
        order.sort_by(|a, b| {
            rows[*a]
                .tokens_per_s_gpu
                .total_cmp(&rows[*b].tokens_per_s_gpu)
        });
        order.get((order.len().max(1) - 1) / 2).copied()
    })
}

/// Compares our counts of parameters and FLOP with the table's own figures.
pub(crate) fn formulas(rows: &[Throughput]) -> Value {
    let exact = rows
        .iter()
        .filter(|row| (shape(row).parameters() - row.n_params).abs() < 0.5)
        .count();
    let mfu_error = |row: &Throughput| {
        let peak = catalog_peak(&row.gpu) * if row.precision == "fp8" { 2.0 } else { 1.0 };
        let ours = 100.0 * row.tokens_per_s * shape(row).flops_per_token()
            / (f64::from(row.n_gpus) * peak);
        (ours / row.mfu_pct - 1.0).abs()
    };
    let worst = rows.iter().map(mfu_error).fold(0.0, f64::max);
    json!({
        "rows": rows.len(),
        "params_exact": format!("{exact}/{}", rows.len()),
        "mfu_max_rel_error": worst,
    })
}

/// Dense 16-bit FLOP/s by the data sheets, as the table uses it.
fn catalog_peak(gpu: &str) -> f64 {
    if gpu.starts_with("h100") {
        989.5e12
    } else {
        312e12
    }
}

/// The speed at a given share of the peak.
fn at_mfu(row: &Throughput, mfu_pct: f64) -> f64 {
    let peak = catalog_peak(&row.gpu) * if row.precision == "fp8" { 2.0 } else { 1.0 };
    mfu_pct / 100.0 * peak / shape(row).flops_per_token()
}

fn figures(intervals: &[[f64; 3]], rows: &[Throughput]) -> Value {
    let errors = errors_pct(
        &intervals.iter().map(|found| found[1]).collect::<Vec<f64>>(),
        rows,
    );
    json!({
        "median_abs_pct_error": median(&errors),
        "p90_abs_pct_error": quantile(&errors, 0.9),
        "interval90_coverage": covered(intervals, rows),
    })
}

/// Errors of two rules of thumb: each row at one share of the peak, or at the usual one of its GPU.
fn baselines(rows: &[Throughput]) -> Value {
    let flat: Vec<f64> = rows.iter().map(|row| at_mfu(row, 40.0)).collect();
    let by_gpu = |row: &Throughput| -> f64 {
        let same: Vec<f64> = rows
            .iter()
            .filter(|other| other.gpu == row.gpu)
            .map(|other| other.mfu_pct)
            .collect();
        at_mfu(row, median(&same))
    };
    let per_gpu: Vec<f64> = rows.iter().map(by_gpu).collect();
    let baseline = |predicted: &[f64]| {
        let errors = errors_pct(predicted, rows);
        json!({"median_abs_pct_error": median(&errors), "p90_abs_pct_error": quantile(&errors, 0.9)})
    };
    json!({"mfu_40_pct": baseline(&flat), "median_mfu_of_the_gpu": baseline(&per_gpu)})
}

/// Computes the keys of `throughput`, with baselines and cross-validation on the same rows.
pub(crate) fn judge(rows: &[Throughput]) -> Result<Value, String> {
    let mut all = figures(&predicted(Model::shipped(), rows)?, rows);
    all["rows"] = json!(rows.len());
    all["new_gpu_one_shot_median_pct"] = json!(new_gpu_one_shot(rows)?);
    all["baselines"] = baselines(rows);
    let by_cell = |row: &Throughput| format!("{} {} {}", row.gpu, row.model, row.seq_len);
    let by_model = |row: &Throughput| format!("{} {}", row.gpu, row.model);
    all["cross_validated"] = json!({
        "by_gpu_model_and_sequence": figures(&cross_validated(rows, by_cell)?, rows),
        "by_gpu_and_model": figures(&cross_validated(rows, by_model)?, rows),
    });
    Ok(all)
}
