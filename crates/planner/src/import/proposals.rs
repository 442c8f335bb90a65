//! What nobody has said, and can be proposed: types beside the job's own, how each trains the same batch, how long a
//! trial is, and what all of it may cost.

use std::collections::BTreeSet;

use bakeoff_domain::catalog::cluster::Cluster;
use bakeoff_domain::catalog::model::{ModelShape, is_sound};
use bakeoff_domain::catalog::{self, InstanceType, regions};
use bakeoff_domain::money::cost;
use bakeoff_domain::money::price::Price;
use bakeoff_domain::number::real;
use bakeoff_domain::spec::{Precision, ProfileSpec};
use serde_json::{Value, json};

use super::Known;
use super::draft::{Ask, Draft, StatedValue};
use super::hyperparameters::Hyperparameters;
use super::material::Material;
use super::own_cluster::{OwnCluster, own_profile, own_type, replica_size, split_if_needed};
use crate::lint::job::{self, Job};
use crate::predict::strategy::{Question, advise};
use crate::setup::Setup;

/// Types that are proposed, the job's own among them.
const CANDIDATES_MAX: usize = 4;
/// What costs more an hour than this many times the job's own instances is not proposed.
const DEARER_MAX: f64 = 4.0;
const BATCH_PROPOSED: u64 = 64;
/// A trial takes at least this long on the fastest candidate: a measured speed needs a quarter of an hour, and it
/// may be faster than predicted.
const ON_FASTEST_SECONDS: f64 = 20.0 * 60.0;
/// What costs more per token than this many times the cheapest is no match for it.
const DEARER_PER_TOKEN_MAX: f64 = 3.0;
/// The fastest candidate is at most this many times as fast as the slowest: what is long enough for the one takes
/// hours on the other, and all trials have one limit.
const SPREAD_MAX: f64 = 6.0;
/// Beside its steps: start, download, evaluations, and a type that is half as fast as predicted.
const RUNTIME_FACTOR: f64 = 3.0;
const RUNTIME_LEAST: f64 = 3600.0;
/// Of the machines that most models are trained on.
const ACCELERATORS_USUAL: u64 = 8;
/// Volumes, and reading metrics.
const BUDGET_FACTOR: f64 = 1.02;

/// A type, and how it would train.
struct ProposedCandidate {
    cluster: Cluster<'static>,
    profile: ProfileSpec,
    /// Predicted.
    tokens_per_second: Option<f64>,
    usd_per_hour: Option<f64>,
    /// Of an estimated price, its upper end.
    usd_per_hour_max: Option<f64>,
    why: String,
}

impl ProposedCandidate {
    fn usd_per_million_tokens(&self) -> f64 {
        match (self.usd_per_hour, self.tokens_per_second) {
            (Some(usd), Some(speed)) if speed > 0.0 => usd / 3600.0 / speed * 1e6,
            _ => f64::INFINITY,
        }
    }
}

/// Prices of one region.
#[derive(Clone, Copy)]
struct Market<'a> {
    region: &'a str,
    prices: &'a [Price],
}

impl Market<'_> {
    fn price(&self, instance_type: &str) -> Option<&Price> {
        let here =
            |price: &&Price| price.region == self.region && price.instance_type == instance_type;
        self.prices.iter().find(here)
    }

    fn usd_per_hour(&self, cluster: Cluster<'_>) -> Option<f64> {
        let price = self.price(&cluster.instance.instance_type)?;
        Some(price.usd_per_hour.as_f64() * f64::from(cluster.count))
    }
}

/// Proposes what is left.
pub(super) fn propose(material: &Material, known: Known<'_>, draft: &mut Draft<'_>) {
    let told = Hyperparameters::of(material);
    let job = job::of_body(&material.body);
    let region = draft
        .get("/region")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let market = Market {
        region: &region,
        prices: known.prices,
    };
    let shape = described(draft);
    let own = own_type(&job);
    if own.is_none() && !job.groups.is_empty() {
        draft.leave_out(
            "ResourceConfig.InstanceType",
            "this type is not known here: it is not compared",
        );
    }
    let batch = global_batch(&told, own, replica_size(&job), draft);
    let script = script_formats(&told, shape.as_ref(), draft);
    let mut choices: Vec<ProposedCandidate> = own
        .into_iter()
        .map(|own| {
            let of = OwnCluster {
                cluster: own,
                batch,
            };
            ProposedCandidate {
                cluster: own,
                profile: own_profile(material, &told, of).with_formats_of(&script),
                tokens_per_second: None,
                usd_per_hour: None,
                usd_per_hour_max: None,
                why: "as it is".to_owned(),
            }
        })
        .collect();
    if let Some(shape) = &shape {
        let precision = draft
            .get("/workload/precision")
            .cloned()
            .map(serde_json::from_value);
        let precision = precision.and_then(Result::ok).unwrap_or(Precision::Bf16);
        let ask = |cluster: Cluster<'static>| Question {
            model: shape,
            precision,
            global_batch: batch,
            cluster,
            script: Some(&script),
            calibration: known.calibration,
        };
        for choice in &mut choices {
            let question = ask(choice.cluster);
            if let Some(profile) = split_if_needed(question, &choice.profile) {
                choice.why = format!(
                    "as its arguments say, the model would not fit: ZeRO {} is supposed, correct it if its script splits otherwise",
                    profile.zero_stage
                );
                choice.profile = profile;
            }
            choice.tokens_per_second = predicted(question, &choice.profile);
        }
        for other in others(ask, own, market) {
            if choices.len() < CANDIDATES_MAX && is_within_spread(&choices, &other) {
                choices.push(other);
            }
        }
    }
    price(&mut choices, market);
    candidates(&choices, &job, shape.is_some(), draft, material);
    let length = shape.as_ref().map_or(1, |shape| shape.sequence_length);
    lengths(&choices, &told, Sizes { batch, length }, draft);
    money(&choices, shape.as_ref(), draft);
}

/// The model, if its layers are known.
fn described(draft: &Draft<'_>) -> Option<ModelShape> {
    let shape = draft.get("/workload/model").cloned().unwrap_or_default();
    let shape: Option<ModelShape> = serde_json::from_value(with_answers(shape, draft)).ok();
    shape.filter(|shape| shape.is_described() && is_sound(shape))
}

/// How the script keeps its numbers: only a base that adapters leave frozen is loaded in 4 or 8 bits.
fn script_formats(
    told: &Hyperparameters<'_>,
    shape: Option<&ModelShape>,
    draft: &mut Draft<'_>,
) -> ProfileSpec {
    let mut script = ProfileSpec::of_batch(1, 1);
    let Some((bits, member)) = told.base_weight_bits() else {
        return script;
    };
    let is_adapted = shape.is_some_and(|shape| shape.lora_rank.is_some());
    match u8::try_from(bits) {
        Ok(bits @ (4 | 8)) if is_adapted => script.base_weight_bits = bits,
        Ok(4 | 8) if shape.is_none() => {}
        Ok(4 | 8) => draft.leave_out(
            &told.place(member),
            "nothing says the rank of its adapters, and only the frozen base of adapters is loaded so: give model.lora_rank \
             and each profile's base_weight_bits, or 16 bits are assumed",
        ),
        _ => draft.leave_out(
            &told.place(member),
            "weights are predicted as of 16, 8 or 4 bits: give each profile's base_weight_bits, or 16 are assumed",
        ),
    }
    script
}

/// The model with what was answered of its parts.
fn with_answers(mut shape: Value, draft: &Draft<'_>) -> Value {
    for part in ["sequence_length", "lora_rank"] {
        if let (Some(answer), Some(members)) = (
            draft.answer(&format!("/workload/model/{part}")),
            shape.as_object_mut(),
        ) {
            members.insert(part.to_owned(), answer.clone());
        }
    }
    shape
}

fn global_batch(
    told: &Hyperparameters<'_>,
    own: Option<Cluster<'_>>,
    own_replica: u64,
    draft: &mut Draft<'_>,
) -> u64 {
    // Of those that work on one micro-batch together, one counts.
    let gpus = own.map(|own| u64::from(own.accelerators()) / own_replica.max(1));
    let gpus = gpus.or_else(|| told.processes());
    let by_parts = || {
        let ((micro, name), gpus) = (told.micro_batch()?, gpus?);
        let steps = told.accumulation().map_or(1, |(steps, _)| steps);
        let batch = micro.saturating_mul(steps).saturating_mul(gpus);
        Some(StatedValue {
            value: batch.into(),
            from: format!(
                "{}: {micro} × {steps} steps × {gpus} accelerators",
                told.place(name)
            ),
        })
    };
    let whole = told.global_batch().map(|(batch, name)| StatedValue {
        value: batch.into(),
        from: told.place(name),
    });
    draft.take_or_ask("/workload/global_batch", whole.or_else(by_parts), || {
        let steps = told.accumulation().map_or(1, |(steps, _)| steps);
        let each = told.micro_batch().map(|(micro, _)| micro.saturating_mul(steps));
        let (proposal, why) = each.map_or_else(
            || (BATCH_PROPOSED, "nothing says it".to_owned()),
            |each| {
                let of_machine = each.saturating_mul(ACCELERATORS_USUAL);
                let why = format!("{each} on each accelerator, and nothing says on how many: {ACCELERATORS_USUAL} are assumed");
                (of_machine, why)
            },
        );
        Ask {
            question: "How many sequences does an optimiser step train, over all accelerators?",
            proposal: Some(proposal.into()),
            why: format!("{why}; only candidates of one batch learn the same"),
        }
    });
    let batch = draft.get("/workload/global_batch").and_then(Value::as_u64);
    batch.unwrap_or(BATCH_PROPOSED).max(1)
}

fn predicted(question: Question<'_>, profile: &ProfileSpec) -> Option<f64> {
    let case = crate::predict::Case::new(Setup {
        model: question.model,
        profile,
        precision: question.precision,
        cluster: question.cluster,
    })?;
    let [_, expected, _] = question.calibration.tokens_per_second(&case);
    Some(expected)
}

/// Whether a trial can be long enough for each of them, with this one, without taking hours on the slowest.
fn is_within_spread(choices: &[ProposedCandidate], other: &ProposedCandidate) -> bool {
    let all = choices.iter().chain([other]);
    let speeds: Vec<f64> = all.filter_map(|one| one.tokens_per_second).collect();
    let slowest = speeds.iter().copied().fold(f64::INFINITY, f64::min);
    speeds.iter().all(|speed| *speed <= slowest * SPREAD_MAX)
}

/// Other types that hold the model at the same batch, the cheapest per token first, one of each accelerator.
fn others<'a>(
    ask: impl Fn(Cluster<'static>) -> Question<'a>,
    own: Option<Cluster<'static>>,
    market: Market<'_>,
) -> Vec<ProposedCandidate> {
    let most = own.map_or(1, |own| own.count);
    let own_price = own.and_then(|own| market.usd_per_hour(own));
    let dearest = own_price.map_or(f64::INFINITY, |own| own * DEARER_MAX);
    let is_own = |instance: &InstanceType| {
        own.is_some_and(|own| own.instance.instance_type == instance.instance_type)
    };
    let is_here = |instance: &InstanceType| {
        let regions = regions::of(&instance.instance_type);
        regions.is_none_or(|regions| regions.contains(&market.region))
    };
    let choice = |instance: &'static InstanceType, count: u32| {
        let cluster = Cluster { instance, count };
        let usd_per_hour = market.usd_per_hour(cluster).filter(|usd| *usd <= dearest)?;
        let question = ask(cluster);
        let has_precision = match question.precision {
            Precision::Bf16 => instance.bf16_tflops.is_some(),
            Precision::Fp8 => instance.has_fp8(),
            Precision::Fp16 | Precision::Fp32 => true,
        };
        let advice = advise(question).ok().filter(|_| has_precision)?;
        Some(ProposedCandidate {
            cluster,
            profile: advice.profile,
            tokens_per_second: advice.tokens_per_second,
            usd_per_hour: Some(usd_per_hour),
            usd_per_hour_max: None,
            why: "it holds the model at the same batch".to_owned(),
        })
    };
    let counts = BTreeSet::from([1, most]);
    let mut found: Vec<ProposedCandidate> = catalog::all()
        .iter()
        .filter(|instance| !is_own(instance) && is_here(instance))
        .flat_map(|instance| {
            counts
                .iter()
                .filter_map(|count| choice(instance, *count))
                .collect::<Vec<_>>()
        })
        .filter(|choice| choice.usd_per_million_tokens().is_finite())
        .collect();
    found.sort_by(|one, other| {
        one.usd_per_million_tokens()
            .total_cmp(&other.usd_per_million_tokens())
    });
    let cheapest = found
        .first()
        .map_or(0.0, ProposedCandidate::usd_per_million_tokens);
    found.retain(|choice| choice.usd_per_million_tokens() <= cheapest * DEARER_PER_TOKEN_MAX);
    let mut seen = BTreeSet::new();
    found.retain(|choice| seen.insert(choice.cluster.instance.accelerator.as_deref()));
    found
}

fn candidates(
    choices: &[ProposedCandidate],
    job: &Job,
    has_shape: bool,
    draft: &mut Draft<'_>,
    material: &Material,
) {
    let environment = material.body.get("Environment").cloned();
    let options = if job.is_spot {
        json!(["spot"])
    } else {
        json!(["on_demand"])
    };
    let all: Vec<Value> = choices
        .iter()
        .map(|choice| {
            let mut profile = json!(choice.profile);
            if let (Some(environment), Some(members)) = (&environment, profile.as_object_mut()) {
                members.insert("environment".to_owned(), environment.clone());
            }
            json!({
                "name": name(choice),
                "instance_type": choice.cluster.instance.instance_type,
                "instance_count": choice.cluster.count,
                "purchase_options": options,
                "profile": profile,
            })
        })
        .collect();
    let told: Vec<String> = choices
        .iter()
        .map(|choice| {
            let dollars = choice.usd_per_million_tokens();
            let cost = if dollars.is_finite() {
                format!(", predicted ${dollars:.3} per million tokens")
            } else {
                ", nothing is predicted".to_owned()
            };
            format!(
                "{} × {} ({}{cost})",
                choice.cluster.count, choice.cluster.instance.instance_type, choice.why
            )
        })
        .collect();
    let is_found = !all.is_empty();
    // They follow from the model, which is asked for.
    if !is_found
        && draft.get("/workload/model/layers").is_none()
        && draft.answer("/workload/model").is_none()
    {
        return;
    }
    draft.ask(
        "/candidates",
        Ask {
            question: "Which instance types are compared?",
            proposal: is_found.then_some(Value::Array(all)),
            why: if is_found {
                told.join("; ")
            } else {
                let why = if has_shape {
                    "no type known here is predicted to hold the model on one instance"
                } else {
                    "without the model's shape none can be proposed"
                };
                format!("nothing names a type, and {why}")
            },
        },
    );
}

/// `g5-12xlarge`, `2x-p4d-24xlarge`.
fn name(choice: &ProposedCandidate) -> String {
    let plain = choice
        .cluster
        .instance
        .instance_type
        .trim_start_matches("ml.")
        .replace('.', "-");
    if choice.cluster.count == 1 {
        plain
    } else {
        format!("{}x-{plain}", choice.cluster.count)
    }
}

/// Sequences of a step, and tokens of a sequence.
#[derive(Clone, Copy)]
struct Sizes {
    batch: u64,
    length: u32,
}

fn lengths(
    choices: &[ProposedCandidate],
    told: &Hyperparameters<'_>,
    sizes: Sizes,
    draft: &mut Draft<'_>,
) {
    let of_step = sizes.batch.saturating_mul(u64::from(sizes.length)).max(1);
    let by_steps = told.steps().map(|(steps, member)| StatedValue {
        value: steps.saturating_mul(of_step).into(),
        from: format!("{}: {steps} steps of {of_step} tokens", told.place(member)),
    });
    draft.take_or_ask("/workload/total_tokens", by_steps, || Ask {
        question: "How many tokens does the full training run train on?",
        proposal: None,
        why: "it is what is bought in the end: tokens of the data × epochs".to_owned(),
    });
    trial_tokens(choices, of_step, draft);
}

/// How long a trial is predicted to take on each candidate, in words. `is_whole`: it is the whole training run.
fn minutes(all: &[f64], is_whole: bool) -> String {
    let shortest = all.iter().copied().fold(f64::INFINITY, f64::min);
    let longest = all.iter().copied().fold(0.0, f64::max);
    let of_slowest = if longest > shortest * 1.1 {
        format!(" on the fastest candidate, and {longest:.0} on the slowest")
    } else {
        String::new()
    };
    let what = if is_whole {
        ", which is the whole training run"
    } else {
        ""
    };
    format!("as predicted, {shortest:.0} minutes{of_slowest}{what}; a measured speed needs 15")
}

/// `of_step`: tokens of an optimiser step.
fn trial_tokens(choices: &[ProposedCandidate], of_step: u64, draft: &mut Draft<'_>) {
    let total = draft.get("/workload/total_tokens").and_then(Value::as_u64);
    let speeds = || choices.iter().filter_map(|choice| choice.tokens_per_second);
    let proposal = speeds().reduce(f64::max).map(|fastest| {
        let steps = (fastest * ON_FASTEST_SECONDS / real(of_step))
            .ceil()
            .max(50.0);
        let tokens = steps_of(steps).saturating_mul(of_step);
        total.map_or(tokens, |total| tokens.min(total))
    });
    let is_predicted = proposal.is_some();
    let proposal = proposal.or_else(|| Some(total? / 20));
    // It follows from what is asked already.
    if proposal.is_none() && draft.answer("/workload/trial_tokens").is_none() {
        return;
    }
    draft.ask(
        "/workload/trial_tokens",
        Ask {
            question: "How many tokens does a trial train on?",
            proposal: proposal.map(Into::into),
            why: if is_predicted {
                let tokens = real(proposal.unwrap_or_default());
                let all: Vec<f64> = speeds().map(|speed| tokens / speed / 60.0).collect();
                minutes(&all, total == proposal)
            } else {
                "nothing is predicted: a twentieth of the whole".to_owned()
            },
        },
    );
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a float saturates, and is at least 50"
)]
fn steps_of(steps: f64) -> u64 {
    steps as u64
}

fn price(choices: &mut [ProposedCandidate], market: Market<'_>) {
    for choice in choices {
        choice.usd_per_hour = market.usd_per_hour(choice.cluster);
        let price = market.price(&choice.cluster.instance.instance_type);
        choice.usd_per_hour_max =
            price.map(|price| price.ceiling().as_f64() * f64::from(choice.cluster.count));
    }
}

fn money(choices: &[ProposedCandidate], shape: Option<&ModelShape>, draft: &mut Draft<'_>) {
    // Both follow from the candidates.
    if choices.is_empty() && draft.answer("/candidates").is_none() {
        return;
    }
    let tokens = draft.get("/workload/trial_tokens").and_then(Value::as_u64);
    let slowest = choices
        .iter()
        .filter_map(|choice| choice.tokens_per_second)
        .reduce(f64::min);
    let seconds = tokens
        .zip(slowest)
        .map(|(tokens, speed)| (real(tokens) / speed * RUNTIME_FACTOR).max(RUNTIME_LEAST));
    // Whole hours are what people say.
    let hours = seconds.map_or(4.0, |seconds| (seconds / 3600.0).ceil());
    draft.ask(
        "/max_runtime_seconds",
        Ask {
            question: "After how many seconds does SageMaker end a trial's job?",
            proposal: Some(steps_of(hours * 3600.0).into()),
            why: "three times what the slowest candidate is predicted to take, at least an hour; it bounds what a trial can cost".to_owned(),
        },
    );
    let is_spot = draft
        .get("/candidates/0/purchase_options/0")
        .and_then(Value::as_str)
        == Some("spot");
    if is_spot {
        draft.ask(
            "/max_wait_seconds",
            Ask {
                question: "How long may a spot job take, waits included?",
                proposal: Some(steps_of(hours * 3600.0 * 2.0).into()),
                why: "twice its run time".to_owned(),
            },
        );
    }
    let hourly: f64 = choices
        .iter()
        .filter_map(|choice| choice.usd_per_hour_max)
        .sum();
    let all_priced = choices
        .iter()
        .all(|choice| choice.usd_per_hour_max.is_some());
    let runtime = draft.get("/max_runtime_seconds").and_then(Value::as_u64);
    let runtime = u32::try_from(runtime.unwrap_or_default()).unwrap_or(u32::MAX);
    // A job's weights, in and out.
    let weights = shape.map_or(0.0, |shape| shape.parameters() * 2.0);
    let transfer = cost::transfer_seconds(weights, 0.0);
    let billed = real(cost::longest_billed_seconds(runtime, transfer)) / 3600.0;
    let most = (hourly * billed * BUDGET_FACTOR / 5.0).ceil() * 5.0;
    draft.ask(
        "/budget_usd",
        Ask {
            question: "What may all trials together cost, in dollars?",
            proposal: (all_priced && hourly > 0.0).then(|| json!(most)),
            why: format!("each candidate to its last second, {billed:.1} h at up to ${hourly:.2} an hour together; a race spends less"),
        },
    );
}
