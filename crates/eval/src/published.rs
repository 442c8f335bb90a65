//! Judges predictions on runs that others published: other codes, chips and methods than those of
//! the fitted tables. Each row is put into the product's own words (model, profile, instance type)
//! and predicted by the path that a plan takes.

use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::ModelShape;
use bakeoff_domain::catalog::{self, InstanceType};
use bakeoff_domain::spec::{CpuOffload, ParallelLibrary, Precision, ProfileSpec};
use bakeoff_planner::predict::{self, Calibration, Case, EFFECTS, Effects, Model};
use bakeoff_planner::setup::Setup;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::least_squares;
use crate::table::{median, share, truth};

/// A row of `throughput_published/table.csv`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Published {
    pub(crate) source: String,
    gpu: String,
    n_gpus: u32,
    nodes: u32,
    pub(crate) params_b: f64,
    layers: u32,
    hidden: u32,
    heads: u32,
    kv_heads: Option<u32>,
    vocab: u32,
    seq_len: u32,
    global_batch: Option<f64>,
    micro_batch: Option<f64>,
    precision: String,
    method: String,
    parallelism: String,
    #[serde(deserialize_with = "truth")]
    activation_checkpointing: bool,
    pub(crate) measured_tokens_per_s: f64,
    note: String,
}

/// A row in the product's words.
#[derive(Debug, Clone)]
pub(crate) struct Worded {
    model: ModelShape,
    profile: ProfileSpec,
    precision: Precision,
    instance: InstanceType,
    count: u32,
}

impl Worded {
    pub(crate) fn setup(&self) -> Setup<'_> {
        Setup {
            model: &self.model,
            profile: &self.profile,
            precision: self.precision,
            cluster: Cluster {
                instance: &self.instance,
                count: self.count,
            },
        }
    }
}

/// The number that follows a word in a text: 8 of `TP8 PP4` for `TP`.
pub(crate) fn degree(text: &str, word: &str) -> Option<u32> {
    let after = text.split_once(word)?.1;
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The instance that has these accelerators, so many each. Where a source used fewer per machine
/// than the type has, it is that share of an instance.
pub(crate) fn instance(gpu: &str, each: u32) -> Option<InstanceType> {
    let same = || {
        catalog::all()
            .iter()
            .filter(|one| one.accelerator.as_deref() == Some(gpu))
    };
    let network = |one: &&InstanceType| one.network_gbps.unwrap_or(0.0);
    let by_network = |a: &&InstanceType, b: &&InstanceType| network(a).total_cmp(&network(b));
    if let Some(whole) = same()
        .filter(|one| one.accelerator_count == each)
        .max_by(by_network)
    {
        return Some(whole.clone());
    }
    let larger = same().max_by_key(|one| one.accelerator_count)?;
    let share = f64::from(each) / f64::from(larger.accelerator_count.max(1));
    Some(InstanceType {
        accelerator_count: each,
        memory_gib: larger.memory_gib.map(|gib| gib * share),
        network_gbps: larger.network_gbps.map(|gbps| gbps * share),
        ..larger.clone()
    })
}

/// The shape whose parameters are the stated ones: a plain MLP, or a gated one as wide as that takes.
pub(crate) fn shape(row: &Published) -> ModelShape {
    let plain = ModelShape {
        layers: row.layers,
        hidden: row.hidden,
        heads: row.heads,
        kv_heads: row.kv_heads.filter(|heads| *heads != row.heads),
        vocabulary: row.vocab,
        tied_embeddings: true,
        sequence_length: row.seq_len,
        lora_rank: (row.method == "lora").then(|| degree(&row.note, "rank ").unwrap_or(16)),
        ..ModelShape::default()
    };
    let stated = row.params_b * 1e9;
    if (plain.parameters() / stated - 1.0).abs() < 0.01
        && row.kv_heads.is_none_or(|heads| heads == row.heads)
    {
        return plain;
    }
    let [layers, hidden] = [row.layers, row.hidden].map(f64::from);
    let of_width = |tied_embeddings: bool| {
        let narrow = ModelShape {
            intermediate: Some(0),
            tied_embeddings,
            ..plain.clone()
        };
        let width = (stated - narrow.parameters()) / (3.0 * layers * hidden);
        ModelShape {
            intermediate: Some(width.max(1.0).round() as u32),
            ..narrow
        }
    };
    let (tied, untied) = (of_width(true), of_width(false));
    // A gated MLP is usually 2.7 to 3.5 times as wide as the model.
    let is_usual = |shape: &ModelShape| {
        (2.2..4.5).contains(&(f64::from(shape.intermediate.unwrap_or(0)) / hidden))
    };
    if is_usual(&untied) || !is_usual(&tied) {
        untied
    } else {
        tied
    }
}

/// The library that a source's words mean: DeepSpeed where they speak of ZeRO, and FSDP or plain data
/// parallelism otherwise.
pub(crate) fn library(words: &str) -> ParallelLibrary {
    if words.contains("ZeRO") || words.contains("DeepSpeed") {
        ParallelLibrary::Deepspeed
    } else {
        ParallelLibrary::Torchrun
    }
}

/// A precision by its name in the tables.
pub(crate) fn precision(name: &str) -> Option<Precision> {
    match name {
        "bf16" => Some(Precision::Bf16),
        "fp16" => Some(Precision::Fp16),
        "fp32" => Some(Precision::Fp32),
        "fp8" => Some(Precision::Fp8),
        _ => None,
    }
}

/// Puts a row into the product's words; `None` where they do not suffice.
pub(crate) fn worded(row: &Published) -> Option<Worded> {
    let how = row.parallelism.as_str();
    let tensor = degree(how, "TP").unwrap_or(1);
    let pipeline = degree(how, "PP").unwrap_or(1);
    let replicas = f64::from(row.n_gpus) / f64::from(tensor * pipeline);
    let micro_batch = row.micro_batch.unwrap_or(1.0).max(1.0);
    let accumulation = row.global_batch.map_or(1.0, |batch| {
        (batch / (micro_batch * replicas)).round().max(1.0)
    });
    let is_sharded = how.contains("FSDP") || how.contains("full shard");
    let zero_stage = match degree(how, "ZeRO-").or_else(|| degree(how, "ZeRO")) {
        Some(stage) => stage as u8,
        None if how.contains("HSDP") => 2,
        None if is_sharded => 3,
        // Megatron's distributed optimiser.
        None if row.source == "nemo_fp8" => 1,
        None => 0,
    };
    Some(Worded {
        model: shape(row),
        profile: ProfileSpec {
            micro_batch_per_gpu: micro_batch as u32,
            gradient_accumulation_steps: accumulation as u32,
            zero_stage,
            cpu_offload: if how.contains("CPU offload") {
                CpuOffload::OptimizerAndParameters
            } else {
                CpuOffload::None
            },
            activation_checkpointing: row.activation_checkpointing,
            activation_offload: how.contains("activations offloaded"),
            chunked_cross_entropy: row.note.contains("chunked"),
            library: library(how),
            tensor_parallel_degree: tensor,
            pipeline_parallel_degree: pipeline,
            ..ProfileSpec::of_batch(1, 1)
        },
        precision: precision(&row.precision)?,
        instance: instance(&row.gpu, row.n_gpus.div_ceil(row.nodes.max(1)))?,
        count: row.nodes,
    })
}

/// Standard deviations of the prior of an effect, of what one source's code differs by, and of its
/// rows about that.
const EFFECT_SD: f64 = 0.30;
// Less than what a user's code may differ by: it is what the shipped effects were fitted with.
const SOURCE_SD: f64 = 0.30;
const ROW_SD: f64 = predict::UNFITTED;

/// How far a row is from the law, and which effects it has.
struct Residual {
    has: [f64; EFFECTS],
    log: f64,
}

/// Learns the effects from rows, given the law: Gaussian, with a factor of its own for each source,
/// so that a source with many rows does not speak for all.
pub(crate) fn effects(model: &Model, rows: &[Published]) -> Effects {
    let law = Calibration::new(
        &Model {
            effects: Effects::default(),
            ..model.clone()
        },
        0.0,
    );
    let mut precision = [[0.0; EFFECTS]; EFFECTS];
    let mut pull = [0.0; EFFECTS];
    for (index, row) in precision.iter_mut().enumerate() {
        row[index] = 1.0 / (EFFECT_SD * EFFECT_SD);
    }
    for source in sources(rows) {
        let own = rows.iter().filter(|row| row.source == source);
        let known: Vec<Residual> = own
            .filter_map(|row| {
                let worded = worded(row)?;
                let case = Case::new(worded.setup())?;
                let [_, expected, _] = law.tokens_per_second(&case);
                Some(Residual {
                    has: case.effects,
                    log: (row.measured_tokens_per_s / expected).ln(),
                })
            })
            .collect();
        let count = known.len() as f64;
        let shared = SOURCE_SD.powi(2) / (ROW_SD.powi(2) + count * SOURCE_SD.powi(2));
        // By Woodbury: the inverse of the rows' covariance is (1 − shared · 11ᵀ) / ROW_SD².
        let product = |left: &dyn Fn(&Residual) -> f64, right: &dyn Fn(&Residual) -> f64| {
            let sum = |of: &dyn Fn(&Residual) -> f64| known.iter().map(of).sum::<f64>();
            (sum(&|row| left(row) * right(row)) - shared * sum(left) * sum(right)) / ROW_SD.powi(2)
        };
        for (a, (row, pull)) in precision.iter_mut().zip(&mut pull).enumerate() {
            for (b, value) in row.iter_mut().enumerate() {
                *value += product(&|one| one.has[a], &|one| one.has[b]);
            }
            *pull += product(&|one| one.has[a], &|one| one.log);
        }
    }
    let covariance = least_squares::inverse(precision);
    Effects {
        mean: covariance.map(|row| row.iter().zip(&pull).map(|(a, b)| a * b).sum()),
        covariance,
    }
}

/// The sources of rows, each once.
pub(crate) fn sources(rows: &[Published]) -> Vec<&str> {
    let mut all: Vec<&str> = rows.iter().map(|row| row.source.as_str()).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// How predictions of some rows turned out.
#[derive(Default)]
struct Scores {
    errors_pct: Vec<f64>,
    /// With their signs: above zero, the prediction is too fast.
    signed_pct: Vec<f64>,
    held: Vec<bool>,
    width_factors: Vec<f64>,
}

impl Scores {
    fn add(&mut self, [low, expected, high]: [f64; 3], measured: f64) {
        self.errors_pct
            .push(100.0 * (expected / measured - 1.0).abs());
        self.signed_pct.push(100.0 * (expected / measured - 1.0));
        self.held.push((low..=high).contains(&measured));
        self.width_factors.push((high / low).sqrt());
    }

    fn coverage(&self) -> f64 {
        share(&self.held, |held| *held)
    }

    fn figures(&self) -> Value {
        json!({
            "median_abs_pct_error": median(&self.errors_pct), "bias_pct": median(&self.signed_pct),
            "coverage90": self.coverage(),
        })
    }
}

/// The row with the median speed of each accelerator.
fn middle(rows: &[Told<'_>]) -> usize {
    let each = |(row, _): &Told<'_>| row.measured_tokens_per_s / f64::from(row.n_gpus.max(1));
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| each(&rows[*a]).total_cmp(&each(&rows[*b])));
    order[(order.len() - 1) / 2]
}

/// Computes the keys of `published`: each source is predicted with effects learnt without it, and
/// then once more with one of its rows measured.
pub(crate) fn judge(rows: &[Published]) -> Value {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    let mut not_expressible = 0;
    let mut by_source = Map::new();
    for source in sources(rows) {
        let own = rows.iter().filter(|row| row.source == source);
        let all = own.clone().count();
        let own: Vec<Told> = own.filter_map(told).collect();
        not_expressible += all - own.len();
        if own.is_empty() {
            continue;
        }
        let calibration = without(source, rows);
        let first = score(&calibration, &own, None);
        let mut figures = first.figures();
        figures["rows"] = json!(own.len());
        if own.len() >= 3 {
            let second = after_one_run(calibration, &own);
            figures["after_one_run"] = second.figures();
            after.push(second);
        }
        by_source.insert(source.to_owned(), figures);
        before.push(first);
    }
    let mean = |scores: &[Scores], of: &dyn Fn(&Scores) -> f64| {
        scores.iter().map(of).sum::<f64>() / scores.len().max(1) as f64
    };
    let widths: Vec<f64> = before
        .iter()
        .flat_map(|one| one.width_factors.clone())
        .collect();
    json!({
        "rows": rows.len(),
        "sources": before.len(),
        "median_abs_pct_error": mean(&before, &|one| median(&one.errors_pct)),
        "coverage90_by_source": mean(&before, &Scores::coverage),
        "median_half_width_factor": median(&widths),
        "not_expressible": not_expressible,
        "after_one_run_median_abs_pct_error": mean(&after, &|one| median(&one.errors_pct)),
        "after_one_run_coverage90": mean(&after, &Scores::coverage),
        "by_source": by_source,
    })
}

/// A row with its words.
type Told<'a> = (&'a Published, Worded);

fn told(row: &Published) -> Option<Told<'_>> {
    let worded = worded(row)?;
    Case::new(worded.setup())?;
    Some((row, worded))
}

/// The product's calibration with effects that were not learnt from a source.
fn without(source: &str, rows: &[Published]) -> Calibration {
    let shipped = Model::shipped();
    let is_fitted = |source: &str| predict::published_sources().iter().any(|one| one == source);
    let effects = if is_fitted(source) {
        let others = rows
            .iter()
            .filter(|row| is_fitted(&row.source) && row.source != source);
        effects(shipped, &others.cloned().collect::<Vec<_>>())
    } else {
        shipped.effects
    };
    let model = Model {
        effects,
        ..shipped.clone()
    };
    Calibration::new(&model, predict::IMPLEMENTATION)
}

/// Scores predictions of all rows but one.
fn score(calibration: &Calibration, own: &[Told<'_>], except: Option<usize>) -> Scores {
    let mut scores = Scores::default();
    for (index, (row, worded)) in own.iter().enumerate() {
        if let Some(case) = Case::new(worded.setup()).filter(|_| Some(index) != except) {
            scores.add(
                calibration.tokens_per_second(&case),
                row.measured_tokens_per_s,
            );
        }
    }
    scores
}

/// Scores the others once the middle row is known.
fn after_one_run(mut calibration: Calibration, own: &[Told<'_>]) -> Scores {
    let known = middle(own);
    if let Some((row, case)) = own
        .get(known)
        .and_then(|(row, worded)| Some((row, Case::new(worded.setup())?)))
    {
        calibration.learn(&case, row.measured_tokens_per_s);
    }
    score(&calibration, own, Some(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(source: &str, parallelism: &str, factor: f64) -> Published {
        let mut row = Published {
            source: source.to_owned(),
            gpu: "NVIDIA A100 SXM 80GB".to_owned(),
            n_gpus: 8,
            nodes: 1,
            params_b: 6.74,
            layers: 32,
            hidden: 4096,
            heads: 32,
            kv_heads: Some(32),
            vocab: 32_000,
            seq_len: 4096,
            global_batch: Some(64.0),
            micro_batch: Some(2.0),
            precision: "bf16".to_owned(),
            method: "full".to_owned(),
            parallelism: parallelism.to_owned(),
            activation_checkpointing: true,
            measured_tokens_per_s: 0.0,
            note: String::new(),
        };
        let worded = worded(&row).unwrap();
        let law = Calibration::new(
            &Model {
                effects: Effects::default(),
                ..Model::shipped().clone()
            },
            0.0,
        );
        let case = Case::new(worded.setup()).unwrap();
        row.measured_tokens_per_s = law.tokens_per_second(&case)[1] * factor;
        row
    }

    #[test]
    fn a_slow_code_is_no_effect_and_an_effect_is_seen_within_a_code() {
        let slow_code = [
            row("a", "FSDP", 0.6),
            row("a", "FSDP", 0.6),
            row("b", "FSDP", 1.1),
        ];
        assert!(
            effects(Model::shipped(), &slow_code)
                .mean
                .iter()
                .all(|mean| mean.abs() < 1e-9)
        );
        let mut rows = slow_code.to_vec();
        rows.extend([row("a", "TP8 PP1", 0.3), row("a", "TP4 PP1", 0.3)]);
        let found = effects(Model::shipped(), &rows);
        assert!((-0.69..-0.55).contains(&found.mean[0]), "{:?}", found.mean);
        assert!(found.covariance[0][0] < EFFECT_SD.powi(2) / 4.0);
        // One row of a source says as much as its prior leaves it.
        let alone = effects(Model::shipped(), &[row("c", "TP8 PP1", 0.5)]);
        assert!((-0.4..-0.2).contains(&alone.mean[0]), "{:?}", alone.mean);
    }

    #[test]
    fn a_row_is_put_into_the_products_words() {
        let megatron = worded(&row("m", "TP4 PP2 DP1 ZeRO1", 1.0)).unwrap();
        let profile = &megatron.profile;
        assert_eq!(
            (
                profile.tensor_parallel_degree,
                profile.pipeline_parallel_degree,
                profile.zero_stage,
                profile.gradient_accumulation_steps
            ),
            (4, 2, 1, 32)
        );
        assert!((megatron.model.parameters() / 6.74e9 - 1.0).abs() < 0.005);
        let one_gpu = worded(&Published {
            n_gpus: 1,
            ..row("t", "single GPU", 1.0)
        })
        .unwrap();
        assert_eq!(one_gpu.setup().cluster.accelerators(), 1);
        assert_eq!(
            worded(&Published {
                gpu: "abacus".into(),
                ..row("x", "FSDP", 1.0)
            })
            .map(|_| ()),
            None
        );
    }
}
