//! What the answers are worth: each against what the region says its full runs would have taken.

use serde_json::{Value, json};

use bakeoff_demo::http::{get, pages, post};
use bakeoff_demo::stack::Stack;

/// Worse than the best by more than this is wrong, percent.
const WRONG_PERCENT: f64 = 5.0;

/// A candidate as it really is.
pub(super) struct Truth {
    candidate: String,
    /// What the objective minimises: dollars or hours of the full run.
    value: f64,
    /// The same as predicted, but for a factor that all candidates share.
    predicted: f64,
    usd: f64,
    hours: f64,
    tokens_per_second: f64,
    /// Dollars of its trial, run to the end, and what its plan said of them: low, expected, high.
    trial_usd: f64,
    planned_usd: Option<[f64; 3]>,
    keeps_limits: bool,
    /// Whether the experiment's budget let it run.
    could_run: bool,
}

impl Truth {
    fn json(&self) -> Value {
        json!({
            "candidate": self.candidate, "usd": self.usd, "hours": self.hours, "trial_usd": self.trial_usd,
            "planned_usd": self.planned_usd,
            "tokens_per_second": self.tokens_per_second, "keeps_limits": self.keeps_limits,
        })
    }
}

/// One experiment's answer, beside the truth.
pub(super) struct Answer {
    pub(super) number: u32,
    pub(super) conclusion: String,
    headline: String,
    chosen: Option<String>,
    /// The 90 % interval of the chosen full run's dollars.
    interval: Option<(f64, f64)>,
    pub(super) truths: Vec<Truth>,
    /// Candidates that its budget could not pay for, or that the linter refused.
    pub(super) refused: usize,
    pub(super) started: usize,
    pub(super) spent_usd: f64,
    pub(super) losers_usd: f64,
    /// What it says that all trials, each run to its end, would have cost, and its 90 % interval.
    receipt_usd: Option<f64>,
    receipt_interval: Option<(f64, f64)>,
    billed_usd: f64,
    budget_usd: f64,
    /// For each trial: what became of it, and why.
    trials: Vec<Value>,
    ranked: Value,
    not_ranked: Value,
}

impl Answer {
    pub(super) fn read(
        stack: &Stack,
        record: &Value,
        id: &str,
        number: u32,
    ) -> Result<Self, String> {
        let base = format!("{}/v1/experiments/{id}", stack.url);
        let experiment = get(&base, &stack.api_key)?;
        let answer = get(&format!("{base}/recommendation"), &stack.api_key)?;
        let trials = pages(&format!("{base}/trials"), &stack.api_key)?;
        let may_start = |trial: &&Value| {
            let plan = &trial["plan"];
            let is_impossible = plan["refused"] == true && !is_refused_by_budget(trial);
            !is_impossible && plan["incomparable"].is_null()
        };
        let contenders: Vec<&Value> = trials.iter().filter(may_start).collect();
        let first = &answer["ranked"][0];
        let number_of = |value: &Value| value.as_f64().unwrap_or(f64::NAN);
        let interval = first["odds"]["cost_usd_low"]
            .as_f64()
            .zip(first["odds"]["cost_usd_high"].as_f64());
        let has_attempt = |trial: &&Value| {
            trial["attempts"]
                .as_array()
                .is_some_and(|all| !all.is_empty())
        };
        Ok(Self {
            number,
            conclusion: answer["conclusion"].as_str().unwrap_or("none").to_owned(),
            headline: answer["headline"].as_str().unwrap_or_default().to_owned(),
            chosen: first["candidate"].as_str().map(str::to_owned),
            interval,
            truths: truths(stack, &experiment["spec"], &contenders)?,
            refused: trials
                .iter()
                .filter(|trial| trial["state"] == "refused")
                .count(),
            started: trials.iter().filter(has_attempt).count(),
            spent_usd: number_of(&answer["spend"]["usd"]),
            losers_usd: number_of(&answer["spend"]["losers_usd"]),
            receipt_usd: answer["spend"]["full_usd"].as_f64(),
            receipt_interval: answer["spend"]["full_usd_90"][0]
                .as_f64()
                .zip(answer["spend"]["full_usd_90"][1].as_f64()),
            billed_usd: billed_usd(record, &trials),
            budget_usd: number_of(&experiment["budget_usd"]),
            trials: trials.iter().map(summary).collect(),
            ranked: answer["ranked"].clone(),
            not_ranked: answer["not_ranked"].clone(),
        })
    }

    /// The best within the limits: of what its budget let run, or, where something is bought, of all.
    fn best(&self) -> Option<&Truth> {
        let counts = |truth: &&Truth| truth.keeps_limits && (truth.could_run || self.is_buy());
        let within = self.truths.iter().filter(counts);
        within.min_by(|a, b| a.value.total_cmp(&b.value))
    }

    /// Candidates that its budget let run.
    pub(super) fn could_run(&self) -> usize {
        self.truths.iter().filter(|truth| truth.could_run).count()
    }

    /// How much worse than the best the chosen one is, percent; infinite where nothing is chosen, or
    /// one that breaks a limit which others keep; `None` where nothing keeps to the limits.
    pub(super) fn regret(&self) -> Option<f64> {
        self.best()?;
        self.chosen()
            .map_or(Some(f64::INFINITY), |chosen| self.regret_of(chosen))
    }

    /// The same of what the predictions alone would have chosen.
    pub(super) fn regret_unmeasured(&self) -> Option<f64> {
        let all = self.truths.iter().filter(|truth| truth.could_run);
        self.regret_of(all.min_by(|a, b| a.predicted.total_cmp(&b.predicted))?)
    }

    fn regret_of(&self, chosen: &Truth) -> Option<f64> {
        let best = self.best()?;
        if !chosen.keeps_limits {
            return Some(f64::INFINITY);
        }
        Some((chosen.value / best.value - 1.0) * 100.0)
    }

    fn chosen(&self) -> Option<&Truth> {
        let name = self.chosen.as_ref()?;
        self.truths.iter().find(|truth| truth.candidate == *name)
    }

    pub(super) fn is_buy(&self) -> bool {
        self.conclusion == "clear"
    }

    pub(super) fn is_wrong(&self) -> bool {
        match self.regret() {
            Some(regret) => regret > WRONG_PERCENT,
            // Nothing keeps to the limits, but one was to be bought.
            None => self.is_buy(),
        }
    }

    /// Dollars of all its trials, were each run to its end.
    pub(super) fn everything_usd(&self) -> f64 {
        let all = self.truths.iter().filter(|truth| truth.could_run);
        all.map(|truth| truth.trial_usd).sum()
    }

    /// Whether the receipt's interval holds the truth, and its error as a share of the truth: above zero, it says too much.
    /// `None` without a receipt.
    pub(super) fn receipt(&self) -> Option<(bool, f64)> {
        let (said, (low, high)) = self.receipt_usd.zip(self.receipt_interval)?;
        let truth = self.everything_usd();
        (truth > 0.0).then(|| ((low..=high).contains(&truth), said / truth - 1.0))
    }

    /// What the receipt says, where there is one, and the truth.
    pub(super) fn receipt_beside_truth(&self) -> (f64, f64) {
        self.receipt_usd
            .map_or((0.0, 0.0), |said| (said, self.everything_usd()))
    }

    /// Of each trial's planned dollars: whether the interval holds the truth, and the error as a share of it.
    pub(super) fn planned_errors(&self) -> Vec<(bool, f64)> {
        let planned = self.truths.iter().filter_map(|truth| {
            let [low, expected, high] = truth.planned_usd?;
            let holds = (low..=high).contains(&truth.trial_usd);
            Some((holds, expected / truth.trial_usd - 1.0))
        });
        planned.collect()
    }

    /// Whether it was billed, or says it spent, more than its budget.
    pub(super) fn is_over_budget(&self) -> bool {
        self.billed_usd.max(self.spent_usd) > self.budget_usd + 0.005
    }

    /// Whether the stated interval of the chosen run's dollars holds the truth.
    pub(super) fn holds_truth(&self) -> bool {
        let chosen = self.interval.zip(self.chosen());
        chosen.is_some_and(|((low, high), truth)| (low..=high).contains(&truth.usd))
    }

    /// One line on what was chosen, and what would have been best.
    pub(super) fn brief(&self) -> String {
        let chosen = self.chosen().map_or(f64::NAN, |truth| truth.value);
        let best = self.best();
        format!(
            "workload {}: {} {} at {chosen:.1}; best {} at {:.1}: {}",
            self.number,
            self.conclusion,
            self.chosen.as_deref().unwrap_or("nothing"),
            best.map_or("nothing", |truth| truth.candidate.as_str()),
            best.map_or(f64::NAN, |truth| truth.value),
            self.headline,
        )
    }

    /// Everything that is known of it.
    pub(super) fn details(&self) -> Value {
        let truths: Vec<Value> = self.truths.iter().map(Truth::json).collect();
        json!({
            "workload": self.number, "conclusion": self.conclusion, "headline": self.headline, "chosen": self.chosen,
            "regret_pct": self.regret().filter(|regret| regret.is_finite()), "interval": self.interval,
            "receipt_usd": self.receipt_usd, "everything_usd": self.everything_usd(),
            "spent_usd": self.spent_usd, "losers_usd": self.losers_usd, "billed_usd": self.billed_usd,
            "budget_usd": self.budget_usd, "truths": truths, "trials": self.trials, "ranked": self.ranked,
            "not_ranked": self.not_ranked,
        })
    }
}

/// Whether it was refused for want of budget, by the linter or later.
fn is_refused_by_budget(trial: &Value) -> bool {
    let findings = trial["plan"]["findings"].as_array().into_iter().flatten();
    let mut refusals = findings.filter(|finding| finding["severity"] == "refused");
    trial["state"] == "refused" && refusals.all(|finding| finding["rule"] == "budget-below-trial")
}

fn summary(trial: &Value) -> Value {
    let plan = &trial["plan"];
    let findings = plan["findings"].as_array().into_iter().flatten();
    let rules: Vec<&Value> = findings
        .filter(|finding| finding["severity"] == "refused")
        .map(|finding| &finding["rule"])
        .collect();
    json!({
        "candidate": plan["candidate"], "attempts": trial["attempts"], "state": trial["state"], "reason": trial["reason"], "refused": rules,
        "incomparable": plan["incomparable"]["rule"], "skipped": plan["skipped"],
        "predicted": plan["forecast"]["tokens_per_second"], "profile": plan["request"]["hyperparameters"],
    })
}

/// What the region billed for the jobs of some trials.
fn billed_usd(record: &Value, trials: &[Value]) -> f64 {
    let jobs = record["jobs"].as_array().into_iter().flatten();
    let is_of = |job: &&Value| trials.iter().any(|trial| trial["id"] == job["trial"]);
    let amounts = jobs
        .filter(is_of)
        .flat_map(|job| [&job["micro_usd"], &job["storage_micro_usd"]]);
    micro(amounts.filter_map(Value::as_i64).sum())
}

/// A training to ask the region about: that of a trial, or with its full run's steps.
fn asked(plan: &Value, steps: Option<u64>) -> Value {
    let request = &plan["request"];
    let mut hyperparameters = request["hyperparameters"].clone();
    if let Some(steps) = steps {
        hyperparameters["max_steps"] = json!(steps.to_string());
    }
    json!({
        "image": request["image"], "hyperparameters": hyperparameters, "instance_type": plan["instance_type"],
        "instance_count": plan["instance_count"],
    })
}

fn full_steps(plan: &Value, workload: &Value) -> Option<u64> {
    let sequence = workload["model"]["sequence_length"].as_u64()?;
    let step = plan["global_batch"].as_u64()? * sequence;
    Some(workload["total_tokens"].as_u64()?.div_ceil(step.max(1)))
}

/// What the region says of each contender.
fn truths(stack: &Stack, spec: &Value, contenders: &[&Value]) -> Result<Vec<Truth>, String> {
    let runs: Vec<Value> = contenders
        .iter()
        .map(|trial| &trial["plan"])
        .flat_map(|plan| {
            [
                asked(plan, full_steps(plan, &spec["workload"])),
                asked(plan, None),
            ]
        })
        .collect();
    let told = post(
        &format!("{}/_sim/truth", stack.region_url),
        "",
        &json!(runs),
    )?;
    let told = told.as_array().cloned().unwrap_or_default();
    let objective = &spec["objective"];
    let deadline = objective["full_run_deadline_hours"].as_f64();
    let minimizes_time = objective["minimize"] == "time";
    let each = contenders.iter().zip(told.chunks(2)).map(|(trial, told)| {
        let [full, own] = told else {
            return Err("the region left a truth out".to_owned());
        };
        let figure = |run: &Value, key: &str| {
            run[key]
                .as_f64()
                .ok_or_else(|| format!("the region does not know {run}"))
        };
        let (hours, usd) = (figure(full, "hours")?, figure(full, "usd")?);
        let plan = &trial["plan"];
        let forecast = plan["forecast"]["tokens_per_second"]["expected"].as_f64();
        let price = plan["price"]["usd_per_hour"].as_f64();
        Ok(Truth {
            candidate: trial["plan"]["candidate"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            value: if minimizes_time { hours } else { usd },
            predicted: if minimizes_time {
                1.0
            } else {
                price.unwrap_or(f64::NAN)
            } / forecast.unwrap_or(f64::NAN),
            usd,
            hours,
            tokens_per_second: figure(full, "tokens_per_second")?,
            trial_usd: figure(own, "usd")?,
            planned_usd: planned_usd(plan),
            keeps_limits: deadline.is_none_or(|deadline| hours <= deadline),
            could_run: trial["state"] != "refused",
        })
    });
    each.collect()
}

/// What a plan says of its trial's dollars.
fn planned_usd(plan: &Value) -> Option<[f64; 3]> {
    let told = &plan["forecast"]["trial_usd"];
    let [low, expected, high] = ["low", "expected", "high"].map(|key| told[key].as_f64());
    Some([low?, expected?, high?])
}

#[expect(clippy::cast_precision_loss, reason = "dollars of a run")]
fn micro(micro_usd: i64) -> f64 {
    micro_usd as f64 / 1e6
}
