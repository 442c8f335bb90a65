//! The reference tables, row by row, and the few statistics that evaluation needs.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A row of `throughput_mosaic/table.csv`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Throughput {
    pub(crate) model: String,
    pub(crate) n_params: f64,
    pub(crate) n_layers: u32,
    pub(crate) d_model: u32,
    pub(crate) n_heads: u32,
    pub(crate) vocab: u32,
    pub(crate) seq_len: u32,
    pub(crate) gpu: String,
    pub(crate) n_gpus: u32,
    pub(crate) precision: String,
    pub(crate) sharding: String,
    #[serde(deserialize_with = "truth")]
    pub(crate) act_ckpt: bool,
    pub(crate) micro_batch: f64,
    pub(crate) grad_accum: f64,
    pub(crate) tokens_per_s: f64,
    pub(crate) tokens_per_s_gpu: f64,
    pub(crate) mfu_pct: f64,
}

/// A row of `memory_bigscience/table.csv`.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Memory {
    pub(crate) section: String,
    pub(crate) gpu: String,
    pub(crate) params_b_calc: f64,
    pub(crate) n_layers: f64,
    pub(crate) d_model: f64,
    pub(crate) n_heads: Option<f64>,
    pub(crate) vocab: f64,
    pub(crate) seq_len: f64,
    pub(crate) dp: f64,
    pub(crate) tp: f64,
    pub(crate) pp: f64,
    pub(crate) zero_stage: u8,
    pub(crate) micro_batch: f64,
    pub(crate) global_batch: Option<f64>,
    #[serde(deserialize_with = "truth")]
    pub(crate) act_ckpt: bool,
    pub(crate) mem_gb: Option<f64>,
    #[serde(deserialize_with = "truth")]
    pub(crate) oom: bool,
}

/// Python writes `True`.
pub(crate) fn truth<'de, D: serde::Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let text = String::deserialize(from)?;
    text.to_lowercase()
        .parse()
        .map_err(serde::de::Error::custom)
}

/// Reads the rows; `None` if the table does not exist.
pub(crate) fn read<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
) -> Result<Option<Vec<T>>, String> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(None);
    }
    let mut reader =
        csv::Reader::from_path(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let rows: Result<Vec<T>, csv::Error> = reader.deserialize().collect();
    rows.map(Some)
        .map_err(|error| format!("{}: {error}", path.display()))
}

/// Linear interpolation between order statistics, as in numpy; 0 for an empty slice.
pub(crate) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let place = share * (sorted.len().max(1) - 1) as f64;
    let below = place.floor() as usize;
    let (low, high) = (
        sorted.get(below),
        sorted.get(below + 1).or(sorted.get(below)),
    );
    let (low, high) = (
        low.copied().unwrap_or(f64::NAN),
        high.copied().unwrap_or(f64::NAN),
    );
    low + (high - low) * place.fract()
}

pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// The share of items that satisfy a predicate; 0 for an empty slice.
pub(crate) fn share<T>(items: &[T], holds: impl Fn(&T) -> bool) -> f64 {
    if items.is_empty() {
        0.0
    } else {
        items.iter().filter(|item| holds(item)).count() as f64 / items.len() as f64
    }
}

/// Leaves out each group in turn: yields the rows of the others, and the indices of its own rows.
pub(crate) fn leave_out<T: Clone>(
    rows: &[T],
    group: impl Fn(&T) -> String,
) -> Vec<(Vec<T>, Vec<usize>)> {
    let keys: Vec<String> = rows.iter().map(group).collect();
    let mut distinct = keys.clone();
    distinct.sort();
    distinct.dedup();
    distinct
        .iter()
        .map(|left_out| {
            let others = rows
                .iter()
                .zip(&keys)
                .filter(|(_, key)| *key != left_out)
                .map(|(row, _)| row.clone());
            let own = keys
                .iter()
                .enumerate()
                .filter(|(_, key)| *key == left_out)
                .map(|(index, _)| index);
            (others.collect(), own.collect())
        })
        .collect()
}
