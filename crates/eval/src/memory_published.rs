//! Judges memory verdicts on runs that others published: which fitted, which ran out of memory, and
//! how much they took. Nothing in the product was fitted to them.

use bakeoff_domain::catalog::InstanceType;
use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::spec::{CpuOffload, OptimizerStates, ProfileSpec};
use bakeoff_planner::predict::fit::{self, Fit, Term, Verdict};
use bakeoff_planner::setup::Setup;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::published::{Published, degree, instance, library, precision, shape};
use crate::table::{median, share, truth};

/// A row of `memory_published/table.csv`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Row {
    gpu: String,
    usable_gib: f64,
    n_gpus: u32,
    nodes: u32,
    params_b: f64,
    seq_len: u32,
    micro_batch: f64,
    precision: String,
    method: String,
    zero_stage: u8,
    tensor: u32,
    pipeline: u32,
    #[serde(deserialize_with = "truth")]
    activation_checkpointing: bool,
    cpu_offload: String,
    outcome: String,
    measured_gib: Option<f64>,
    measured_kind: String,
    note: String,
}

/// The verdict on a row by the product's path; `None` where its words do not suffice.
fn judged(row: &Row, shapes: &[Published]) -> Option<Fit> {
    let model = ModelShape {
        sequence_length: row.seq_len,
        lora_rank: (row.method == "lora").then(|| degree(&row.note, "rank ").unwrap_or(16)),
        ..shape_of(row, shapes)
    };
    let profile = ProfileSpec {
        micro_batch_per_gpu: row.micro_batch as u32,
        gradient_accumulation_steps: row.pipeline.max(1),
        zero_stage: row.zero_stage,
        cpu_offload: match row.cpu_offload.as_str() {
            "none" => CpuOffload::None,
            "optimizer" => CpuOffload::Optimizer,
            _ => CpuOffload::OptimizerAndParameters,
        },
        activation_checkpointing: row.activation_checkpointing,
        optimizer_states: if row.note.contains("8 B/param") {
            OptimizerStates::Bf16
        } else {
            OptimizerStates::Mixed
        },
        chunked_cross_entropy: row.note.contains("chunked"),
        library: library(&row.note),
        tensor_parallel_degree: row.tensor,
        pipeline_parallel_degree: row.pipeline,
        ..ProfileSpec::of_batch(1, 1)
    };
    let each = row.n_gpus.div_ceil(row.nodes.max(1));
    // A card that no SageMaker type has is its memory here.
    let known = instance(&row.gpu, each).or_else(|| instance("NVIDIA A10G", each))?;
    let machine = InstanceType {
        accelerator: Some(row.gpu.clone()),
        accelerator_memory_gib: Some(row.usable_gib / fit::usable_gib(Some(&row.gpu), 1.0)),
        ..known
    };
    Some(fit::fit(Setup {
        model: &model,
        profile: &profile,
        precision: precision(&row.precision)?,
        cluster: Cluster {
            instance: &machine,
            count: row.nodes,
        },
    }))
}

/// The shape of a model that the table names and sizes only: that of the same model among the
/// published speeds, or else one of the usual proportions.
fn shape_of(row: &Row, shapes: &[Published]) -> ModelShape {
    let same = shapes
        .iter()
        .find(|known| (known.params_b / row.params_b - 1.0).abs() < 0.005);
    if let Some(known) = same {
        return shape(known);
    }
    // Depth over width is about 1 to 128; the vocabulary is that of Llama 2.
    let hidden = (row.params_b * 1e9 * 128.0 / 12.0).cbrt();
    let hidden = (hidden / 128.0).round().max(1.0) * 128.0;
    ModelShape {
        layers: (row.params_b * 1e9 / (12.0 * hidden * hidden))
            .round()
            .max(1.0) as u32,
        hidden: hidden as u32,
        heads: (hidden / 128.0) as u32,
        kv_heads: None,
        intermediate: None,
        vocabulary: 50_000,
        tied_embeddings: true,
        sequence_length: row.seq_len,
        lora_rank: None,
        ..ModelShape::default()
    }
}

/// What the source's way of measuring counts of the estimate: PyTorch's own figures leave out the
/// context and what its allocator holds unused.
fn counted(row: &Row, fit: &Fit) -> f64 {
    let is_allocated = ["alloc", "active", "peak"]
        .iter()
        .any(|kind| row.measured_kind.contains(kind));
    let left_out = |term: &&Term| {
        is_allocated && (term.name.starts_with("CUDA") || term.name.ends_with("slack"))
    };
    fit.accelerator_gib
        - fit
            .terms
            .iter()
            .filter(left_out)
            .map(|term| term.gib)
            .sum::<f64>()
}

/// Computes the keys of `memory_published`.
pub(crate) fn judge(rows: &[Row], shapes: &[Published]) -> Value {
    let known: Vec<(&Row, Fit)> = rows
        .iter()
        .filter_map(|row| Some((row, judged(row, shapes)?)))
        .collect();
    let (ran, out): (Vec<&(&Row, Fit)>, Vec<_>) =
        known.iter().partition(|(row, _)| row.outcome == "ran");
    let is = |wanted: Verdict| move |one: &&&(&Row, Fit)| one.1.verdict == wanted;
    let errors: Vec<f64> = ran
        .iter()
        .filter_map(|(row, fit)| Some(100.0 * (counted(row, fit) / row.measured_gib? - 1.0).abs()))
        .collect();
    json!({
        "rows": rows.len(),
        "oom_rows": out.len(),
        "not_expressible": rows.len() - known.len(),
        "refused_that_ran": ran.iter().filter(is(Verdict::DoesNotFit)).count(),
        "oom_called_fits": out.iter().filter(is(Verdict::Fits)).count(),
        "uncertain_pct": 100.0 * share(&known, |(_, fit)| fit.verdict == Verdict::Uncertain),
        "median_abs_pct_error": median(&errors),
    })
}
