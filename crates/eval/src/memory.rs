//! Fits and evaluates the memory model on measured runs.

use bakeoff_planner::predict::fit::{self, Coefficients, Layout, Verdict};
use serde_json::{Value, json};

use crate::least_squares::{self, Prior};
use crate::table::{Memory, leave_out, median, quantile, share};

/// Residual (in logarithms) at which a row counts as an outlier.
const SCALE: f64 = 0.05;
/// The least that an out-of-memory row must need beyond its card, in logarithms.
const BEYOND: f64 = 0.03;
/// Centres from counting bytes (ZeRO, Korthikanti), each with room for real framework behaviour.
const PRIORS: [Prior; 9] = [
    Prior {
        centre: 4.0,
        sigma: 0.15,
    },
    Prior {
        centre: 16.0,
        sigma: 0.15,
    },
    Prior {
        centre: 4.0,
        sigma: 0.30,
    },
    Prior {
        centre: 2.5,
        sigma: 0.40,
    },
    Prior {
        centre: 1.0,
        sigma: 0.15,
    },
    Prior {
        centre: 1.0,
        sigma: 0.50,
    },
    Prior {
        centre: 6.0,
        sigma: 0.20,
    },
    Prior {
        centre: 0.1,
        sigma: 0.50,
    },
    Prior {
        centre: 0.1,
        sigma: 0.50,
    },
];

fn layout(row: &Memory) -> Layout {
    Layout {
        layers: row.n_layers,
        hidden: row.d_model,
        heads: row.n_heads,
        vocabulary: row.vocab,
        sequence_length: row.seq_len,
        tensor: row.tp,
        pipeline: row.pp,
        replicas: row.dp,
        zero_stage: row.zero_stage,
        micro_batch: row.micro_batch,
        global_batch: row.global_batch,
        layer_parameters: 12.0 * row.d_model * row.d_model,
        recomputes: row.act_ckpt,
        recomputes_attention: row.act_ckpt,
        splits_sequence: false,
        has_own_head: false,
    }
}

/// GiB that a job can use of the row's GPU, whose name ends in its memory size: `a100_80gb`.
fn card(row: &Memory) -> Result<f64, String> {
    let reported = row
        .gpu
        .rsplit('_')
        .next()
        .and_then(|tail| tail.strip_suffix("gb")?.parse::<f64>().ok());
    let reported = reported
        .ok_or_else(|| format!("memory_bigscience: the memory of {} is not known", row.gpu))?;
    Ok(fit::usable_gib(None, reported))
}

fn need(row: &Memory, card: f64, coefficients: &Coefficients) -> f64 {
    fit::megatron(&layout(row), card, coefficients)
        .iter()
        .map(|term| term.gib)
        .sum()
}

/// Fits the coefficients to the rows.
pub(crate) fn fit(rows: &[Memory]) -> Result<Coefficients, String> {
    let cards: Vec<f64> = rows.iter().map(card).collect::<Result<_, _>>()?;
    let found = least_squares::fit(&PRIORS, |theta| {
        let coefficients = Coefficients::from_array(theta.map(f64::exp));
        let residual = |(row, card): (&Memory, &f64)| {
            let need = need(row, *card, &coefficients);
            match row.mem_gb.filter(|_| !row.oom) {
                Some(measured) => (fit::reported(need, *card) / measured).ln() / SCALE,
                None => ((need / card).ln() - BEYOND).min(0.0) / SCALE,
            }
        };
        rows.iter().zip(&cards).map(residual).collect()
    });
    Ok(Coefficients::from_array(found.theta.map(f64::exp)))
}

/// What a row needs, and the card it has, in GiB.
struct Case {
    need: f64,
    card: f64,
}

fn cases(coefficients: &Coefficients, rows: &[Memory]) -> Result<Vec<Case>, String> {
    rows.iter()
        .map(|row| {
            let card = card(row)?;
            Ok(Case {
                need: need(row, card, coefficients),
                card,
            })
        })
        .collect()
}

fn figures(cases: &[Case], rows: &[Memory]) -> Value {
    let pairs: Vec<(&Case, &Memory)> = cases.iter().zip(rows).collect();
    let (out, ran): (Vec<_>, Vec<_>) = pairs.iter().copied().partition(|(_, row)| row.oom);
    let is = |case: &Case, wanted: Verdict| fit::verdict_of(case.need, case.card) == wanted;
    let errors: Vec<f64> = ran
        .iter()
        .filter_map(|(case, row)| {
            Some(100.0 * (fit::reported(case.need, case.card) / row.mem_gb? - 1.0).abs())
        })
        .collect();
    json!({
        "median_abs_pct_error": median(&errors),
        "p90_abs_pct_error": quantile(&errors, 0.9),
        "oom_called_fits": out.iter().filter(|(case, _)| is(case, Verdict::Fits)).count(),
        "false_oom_pct": 100.0 * share(&ran, |(case, _)| is(case, Verdict::DoesNotFit)),
        "uncertain_pct": 100.0 * share(&pairs, |(case, _)| is(case, Verdict::Uncertain)),
    })
}

fn cross_validated(rows: &[Memory], group: impl Fn(&Memory) -> String) -> Result<Value, String> {
    let mut all: Vec<Case> = rows
        .iter()
        .map(|_| Case {
            need: 0.0,
            card: 0.0,
        })
        .collect();
    for (others, own) in leave_out(rows, group) {
        let coefficients = fit(&others)?;
        let held_out: Vec<Memory> = own.iter().map(|index| rows[*index].clone()).collect();
        for (index, case) in own.iter().zip(cases(&coefficients, &held_out)?) {
            all[*index] = case;
        }
    }
    Ok(figures(&all, rows))
}

/// The baseline: 16 bytes per parameter, divided by tensor and pipeline parallelism.
fn naive(rows: &[Memory]) -> Value {
    let gib = |row: &Memory| 16.0 * row.params_b_calc * 1e9 / (row.tp * row.pp) / 1_073_741_824.0;
    let ran: Vec<&Memory> = rows.iter().filter(|row| !row.oom).collect();
    let errors: Vec<f64> = ran
        .iter()
        .filter_map(|row| Some(100.0 * (gib(row) / row.mem_gb? - 1.0).abs()))
        .collect();
    let fits = |row: &Memory| card(row).is_ok_and(|card| gib(row) <= card);
    json!({
        "median_abs_pct_error": median(&errors),
        "p90_abs_pct_error": quantile(&errors, 0.9),
        "oom_called_fits": rows.iter().filter(|row| row.oom && fits(row)).count(),
        "false_oom_pct": 100.0 * share(&ran, |row| !fits(row)),
        "uncertain_pct": 0.0,
    })
}

/// Computes the keys of `memory`, with the baseline and cross-validation on the same rows.
pub(crate) fn judge(rows: &[Memory]) -> Result<Value, String> {
    let mut all = figures(&cases(&Coefficients::shipped(), rows)?, rows);
    all["rows"] = json!(rows.len());
    all["oom_rows"] = json!(rows.iter().filter(|row| row.oom).count());
    all["baselines"] = json!({"16_bytes_a_parameter": naive(rows)});
    let by_shape = |row: &Memory| format!("{} {}", row.n_layers, row.d_model);
    let by_layout = |row: &Memory| format!("{} {} {}", row.tp, row.pp, row.dp);
    all["cross_validated"] = json!({
        "by_section": cross_validated(rows, |row| row.section.clone())?,
        "by_shape": cross_validated(rows, by_shape)?,
        "by_layout": cross_validated(rows, by_layout)?,
    });
    Ok(all)
}
