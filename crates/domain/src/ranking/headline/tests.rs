//! The headline against the table and the odds that it speaks of.

use rust_decimal::Decimal;

use super::*;
use crate::ids::TrialId;
use crate::money::Usd;
use crate::money::price::PriceStatus;
use crate::ranking::outcome::Target;

/// Cases of the property, each drawn anew.
const CASES: u64 = 100_000;

fn odds(p_best: f64) -> RunOdds {
    RunOdds {
        hours_low: 1.0,
        hours_high: 2.0,
        cost_usd_low: Usd(Decimal::from(1)),
        cost_usd_high: Usd(Decimal::from(2)),
        p_best,
        p_pareto: None,
        p_within_budget: None,
        p_within_deadline: Some(0.46),
        expected_regret_percent: 0.0,
        p_worse_by_5_percent: 0.0,
    }
}

fn row(candidate: &str, usd: u64, hours: f64, p_best: f64) -> Ranked {
    Ranked {
        rank: 1,
        trial_id: TrialId(uuid::Uuid::nil()),
        candidate: candidate.to_owned(),
        instance_type: format!("ml.{candidate}"),
        instance_count: 1,
        purchase_option: PurchaseOption::OnDemand,
        tokens_per_second: 1.0,
        tokens_per_second_half_width: 0.1,
        stepping_share: None,
        usd_per_million_tokens: Usd(Decimal::from(usd)),
        projected_tokens: None,
        projected_hours: hours,
        waiting_hours: None,
        projected_cost_usd: Usd(Decimal::from(usd)),
        projected_cost_usd_max: Usd(Decimal::from(usd)),
        price: String::new(),
        price_status: PriceStatus::Listed,
        saves_usd: None,
        return_on_trials: None,
        pareto: true,
        feasible: true,
        odds: Some(odds(p_best)),
    }
}

fn unmeasured(candidate: &str, reason: &str, p_best: Option<f64>) -> NotRanked {
    NotRanked {
        trial_id: TrialId(uuid::Uuid::nil()),
        candidate: candidate.to_owned(),
        instance_type: format!("ml.{candidate}"),
        purchase_option: PurchaseOption::OnDemand,
        reason: reason.to_owned(),
        fix: None,
        odds: p_best.map(odds),
    }
}

const TOKENS: Tokens = Tokens {
    trial: 1,
    total: 1,
    target: None,
};

fn objective(minimize: Minimize) -> ObjectiveSpec {
    ObjectiveSpec {
        minimize,
        full_run_budget_usd: None,
        full_run_deadline_hours: None,
        target_loss: None,
    }
}

fn said(conclusion: Conclusion, ranked: &[Ranked], not_ranked: &[NotRanked]) -> String {
    headline(
        conclusion,
        ranked,
        not_ranked,
        &objective(Minimize::Cost),
        TOKENS,
    )
}

#[test]
fn each_kind_of_answer_has_its_sentence() {
    let (p5, p4) = (row("p5", 900, 14.5, 0.96), row("p4", 1100, 40.0, 0.04));
    let table = [p5.clone(), p4.clone()];
    assert_eq!(
        said(Conclusion::Clear, &table, &[]),
        "Buy ml.p5 on demand (p5): the cheapest comparable full run, $900.00 in 14.5 h (projected)."
    );
    assert_eq!(
        said(
            Conclusion::Clear,
            &table,
            &[unmeasured(
                "p5e",
                "refused: no known price for ml.p5e: its cost cannot be bounded",
                None
            )]
        ),
        "Buy ml.p5 on demand (p5): the cheapest comparable full run, $900.00 in 14.5 h (projected). Not considered: ml.p5e (p5e): no known \
         price for ml.p5e."
    );
    assert_eq!(
        said(Conclusion::Leading, &table, &[]),
        "Lean towards ml.p5 on demand (p5): 96 % likely to be the cheapest comparable full run, $900.00 in 14.5 h (projected)."
    );
    // Parked by a quota of 0: it is not the measured one that is likely to be bought.
    let parked = unmeasured("p5", "it has not run: its quota is 0", Some(0.96));
    assert_eq!(
        said(
            Conclusion::Leading,
            &[row("p5en", 993, 14.0, 0.04)],
            &[parked]
        ),
        "Probably ml.p5 (p5), not measured yet: 96 % likely to be the cheapest comparable full run. Of what was measured, ml.p5en on demand \
         (p5en) comes first: $993.00 in 14.0 h (projected)."
    );
    // Every row beyond the deadline, and a cheaper one below.
    let mut late = [row("p5en", 985, 13.53, 0.4), row("p5e", 807, 13.64, 0.35)];
    for row in &mut late {
        row.feasible = false;
    }
    assert_eq!(
        said(Conclusion::Leading, &late, &[]),
        "No measured candidate is projected to meet the full run's limits; ml.p5en on demand (p5en) comes closest, $985.00 in 13.5 h \
         (projected); 46 % likely to keep to them."
    );
    assert_eq!(
        said(
            Conclusion::Leading,
            &[row("a", 900, 14.0, 0.5), row("b", 890, 15.0, 0.5)],
            &[]
        ),
        "Lean towards ml.a on demand (a): $900.00 in 14.0 h (projected), 50 % likely to be the cheapest comparable full run; another is \
         projected lower."
    );
    assert_eq!(
        said(
            Conclusion::Clear,
            &[row("a", 900, 14.0, 0.5), row("b", 899, 15.0, 0.5)],
            &[]
        ),
        "Buy ml.a on demand (a): $900.00 in 14.0 h (projected), about as good as the cheapest comparable full run."
    );
    assert_eq!(
        said(Conclusion::Infeasible, &table, &[]),
        "No candidate meets the full run's limits; the closest is ml.p5 on demand (p5), $900.00 in 14.5 h (projected)."
    );
    assert_eq!(
        said(Conclusion::NotEnoughEvidence, &[], &[]),
        "Not enough evidence to recommend an instance."
    );
    let target = Target {
        loss: 2.5,
        is_validation: true,
        trials: 2,
        reached_by: 0,
        least: None,
    };
    let tokens = Tokens {
        target: Some(target),
        ..TOKENS
    };
    assert_eq!(
        headline(
            Conclusion::Leading,
            &table,
            &[],
            &objective(Minimize::Time),
            tokens
        ),
        "Lean towards ml.p5 on demand (p5): 96 % likely to be the fastest comparable full run, $900.00 in 14.5 h (projected). Validation \
         loss 2.5 was not reached, so this is for all tokens."
    );
}

/// Draws of a linear congruential generator: the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }

    fn probability(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1001)).unwrap_or_default()) / 1000.0
    }
}

/// A table and what is not in it, drawn anew.
fn drawn(draw: &mut Draw, conclusion: Conclusion) -> (Vec<Ranked>, Vec<NotRanked>) {
    let mut ranked: Vec<Ranked> = (0..=draw.below(4))
        .map(|place| {
            let hours = f64::from(u32::try_from(draw.below(50)).unwrap()) + 1.0;
            let usd = 100 + draw.below(20);
            let mut one = row(&format!("r{place}"), usd, hours, draw.probability());
            one.feasible = draw.below(4) > 0;
            one
        })
        .collect();
    // Clear is said only of what keeps to its limits.
    ranked[0].feasible |= conclusion == Conclusion::Clear;
    let not_ranked = (0..draw.below(3))
        .map(|place| match draw.below(2) {
            0 => unmeasured(
                &format!("u{place}"),
                "it has not run",
                Some(draw.probability()),
            ),
            _ => unmeasured(&format!("u{place}"), "refused: no known price for it", None),
        })
        .collect();
    (ranked, not_ranked)
}

/// Whether the first sentence states the right odds: those of the likeliest unmeasured choice if it beats the first.
fn states_odds(
    sentence: &str,
    conclusion: Conclusion,
    ranked: &[Ranked],
    not_ranked: &[NotRanked],
) -> bool {
    let own = ranked[0].odds.as_ref().unwrap().p_best;
    let rivals = not_ranked
        .iter()
        .filter_map(|row| Some((row, row.odds.as_ref()?.p_best)));
    let rival = rivals
        .filter(|(_, p)| *p > own)
        .max_by(|one, other| one.1.total_cmp(&other.1));
    match rival {
        Some((row, p)) if conclusion == Conclusion::Leading => {
            sentence.contains(&row.instance_type) && sentence.contains(&percent(p))
        }
        // Open between two, the likelier one's odds are said.
        _ if sentence.starts_with("Open between") => {
            let likeliest = ranked
                .iter()
                .filter_map(|row| Some(row.odds.as_ref()?.p_best));
            sentence.contains(&percent(likeliest.fold(0.0, f64::max)))
        }
        _ => !sentence.contains("likely to be") || sentence.contains(&percent(own)),
    }
}

/// No superlative contradicts the table, not even a row that breaks a limit; a candidate beyond its limits never
/// leads unqualified; an unmeasured favourite is named first, with its odds; so is whatever lacks a price.
#[test]
fn no_headline_says_more_than_its_table() {
    let mut draw = Draw(7);
    for case in 0..CASES {
        let minimize = match draw.below(3) {
            0 => Minimize::Cost,
            1 => Minimize::Time,
            _ => Minimize::UsdPerMillionTokens,
        };
        let conclusion = match draw.below(2) {
            0 => Conclusion::Clear,
            _ => Conclusion::Leading,
        };
        let (ranked, not_ranked) = drawn(&mut draw, conclusion);
        let text = headline(
            conclusion,
            &ranked,
            &not_ranked,
            &objective(minimize),
            TOKENS,
        );
        let first = &ranked[0];
        let flat = match minimize {
            Minimize::UsdPerMillionTokens => "): the comparable full run".to_owned(),
            Minimize::Cost | Minimize::Time => {
                format!("): the {} comparable full run", superlative(minimize))
            }
        };
        let is_flat = text.contains(&flat);
        let leads = text.starts_with("Buy ") || text.starts_with("Lean towards ");
        let sentence = text.split(". ").next().unwrap_or_default();
        let mut refused = not_ranked.iter().filter(|row| row.odds.is_none());
        let is_least = |row: &Ranked| measure(row, minimize) >= measure(first, minimize);
        let is_true = (!is_flat || is_best_of_table(first, &ranked, minimize))
            && (!is_flat || text.contains("within the limits") || ranked.iter().all(is_least))
            && (!leads || first.feasible)
            && (!is_flat
                || conclusion != Conclusion::Clear
                || first.odds.as_ref().unwrap().p_best >= SURE)
            && (!text.contains("ahead as projected") || ranked.iter().skip(1).any(is_least))
            && !(text.starts_with("Lean towards") && likelier_row(first, &ranked).is_some())
            && states_odds(sentence, conclusion, &ranked, &not_ranked)
            && refused.all(|row| text.contains(&row.instance_type))
            && text.ends_with('.')
            && text.len() < 440;
        assert!(is_true, "case {case}: {text}\n{ranked:#?}\n{not_ranked:#?}");
    }
}
