//! What differs between codes, between types for one code, and between machines of one type, in a
//! region that lives (`--lively`): no two scripts are equally good on the same hardware, they
//! evaluate, save and wait for data, and no two allocations are equally fast. The sizes of these
//! differences follow published runs where there are any, and are assumed otherwise. Without
//! `--lively`, all of this is absent.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use bakeoff_domain::catalog::{self, InstanceType};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::machines::curve::{Curve, Habits, Pause, Stall, WarmUp};
use crate::machines::physics::{self, Script, Training};
use crate::machines::timeline::CHECKPOINT_SECONDS;

/// How fast codes are, as multiples of the plain law. Their middle is that of published runs: a median MFU of 0.49 over
/// nine sources on the A100 (BLOOM, Megatron, llm.c and others) and of 0.35 over five on the H100 in bf16, where `decisions`
/// reached 0.41 and 0.28 with a middle of 1.
const CODE_FACTORS: Range<f64> = 0.75..2.0;
/// Standard deviation of the logarithm of an allocation's speed: between systems with the same
/// accelerators 1.3 to 3.6 % (MLPerf Training, llama2_70b_lora).
const HOST_SD: f64 = 0.02;
/// Standard deviations of what a code does well or badly on one generation of accelerators, and on one
/// type: the ratio of two types differs by 0.16 in published runs outside a fitted table, and by 0.063
/// within one generation. One type in ten is twice as odd.
const GENERATION_SD: f64 = 0.104;
const TYPE_SD: f64 = 0.045;
const ODD_TYPES: f64 = 0.1;
const ODDER: f64 = 2.0;
/// What Hopper reaches of the plain law: its share of the peak is 0.73 of an A100's in MosaicML's
/// table (llm-foundry: medians of 40.4 and 55.3 % MFU), where the plain law says 0.85.
const HOPPER: f64 = 0.86;
const HOPPER_GENERATION: &str = "Hopper";
/// The same for each thing in use that can be done well or badly, such as offloading.
const FEATURE_SD: f64 = 0.10;
/// Share of the allocations that become slower, and by how much within a day.
const DRIFTING: f64 = 0.10;
const LOST_IN_A_DAY: f64 = 0.05;

/// How long a stall lasts, and the share of the speed that is left in it.
const STALL_SECONDS: Range<f64> = 20.0..180.0;
const STALL_SHARE: Range<f64> = 0.1..0.6;

/// One seed's region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lively {
    pub(crate) seed: u64,
}

/// The machines that a job gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Allocation {
    pub(crate) seed: u64,
    /// Seconds that the job may run.
    pub(crate) horizon: f64,
}

/// What a code is like on a type, whichever machine it gets.
#[derive(Debug, Clone)]
struct Character {
    /// Its speed over what the law says.
    factor: f64,
    habits: Habits,
    stalls_per_hour: f64,
}

impl Lively {
    fn dice(self, of: impl Hash) -> StdRng {
        let mut hasher = DefaultHasher::new();
        (self.seed, of).hash(&mut hasher);
        StdRng::seed_from_u64(hasher.finish())
    }

    /// The script of a job.
    pub(crate) fn script(
        self,
        image: &str,
        hyper: &BTreeMap<String, String>,
        instance: &InstanceType,
        law: Training,
        Allocation { seed, horizon }: Allocation,
    ) -> Script {
        let character = self.character(image, hyper, instance, &law);
        let (habits, host) = character.on_host(seed, horizon);
        Script {
            training: Some(Training {
                tokens_per_second: law.tokens_per_second * character.factor * host,
                loss_offset: loss_offset(hyper, &law, seed),
                ..law
            }),
            curve: Curve::of(&habits, horizon),
        }
    }

    /// The same on the usual machines: their mean speed, stalls and drift.
    pub(crate) fn usual(
        self,
        image: &str,
        hyper: &BTreeMap<String, String>,
        instance: &InstanceType,
        law: Training,
    ) -> Script {
        let character = self.character(image, hyper, instance, &law);
        let habits = Habits {
            lost_in_a_day: DRIFTING * LOST_IN_A_DAY / 2.0,
            ..character.habits
        };
        let stalled = character.stalls_per_hour * mean(STALL_SECONDS) / 3600.0;
        let left = 1.0 - stalled * (1.0 - mean(STALL_SHARE));
        let training = Training {
            tokens_per_second: law.tokens_per_second * character.factor * left,
            ..law
        };
        let work = training.steps * training.tokens_per_step / training.tokens_per_second;
        Script {
            training: Some(training),
            curve: Curve::of(&habits, 2.0 * work),
        }
    }

    /// What a code does well or badly on a type, as a logarithm of speed.
    fn of_type(
        self,
        image: &str,
        hyper: &BTreeMap<String, String>,
        instance: &InstanceType,
    ) -> f64 {
        let generation = self.dice((
            "generation",
            image,
            catalog::generation(&instance.instance_type),
        ));
        let mut kind = self.dice(("type", image, &instance.instance_type));
        let odd = if kind.random_bool(ODD_TYPES) {
            ODDER
        } else {
            1.0
        };
        let features: f64 = physics::features(hyper)
            .into_iter()
            .map(|feature| FEATURE_SD * normal(self.dice((feature, image))))
            .sum();
        let hopper = if catalog::generation(&instance.instance_type) == HOPPER_GENERATION {
            HOPPER.ln()
        } else {
            0.0
        };
        features + GENERATION_SD * normal(generation) + odd * TYPE_SD * normal(kind) + hopper
    }

    /// The character of the code in an image. `training` is what the law says of it.
    fn character(
        self,
        image: &str,
        hyper: &BTreeMap<String, String>,
        instance: &InstanceType,
        training: &Training,
    ) -> Character {
        let mut code = self.dice(("code", image));
        let factor = code.random_range(CODE_FACTORS.start.ln()..CODE_FACTORS.end.ln());
        let warm_up = WarmUp {
            seconds: 60.0 * 10_f64.powf(code.random_range(0.0..1.0)),
            share: code.random_range(0.3..0.8),
        };
        let evaluation_share = code.random_range(0.01..0.08);
        let gigabytes_per_second = code.random_range(1.0..4.0);
        let stalls_per_hour = code.random_range(0.0..1.0);
        let factor = (factor + self.of_type(image, hyper, instance)).exp();
        let step_seconds = training.tokens_per_step / (training.tokens_per_second * factor);
        let every = evaluation_steps(hyper) * step_seconds;
        let evaluation = number(hyper, "eval_seconds").unwrap_or(every * evaluation_share);
        let state_bytes = 14.0 * training.trained;
        let saving = 2.0 + state_bytes / (gigabytes_per_second * 1e9);
        let save_every = number(hyper, "save_steps")
            .map_or(CHECKPOINT_SECONDS - saving, |steps| steps * step_seconds);
        Character {
            factor,
            habits: Habits {
                warm_up,
                pauses: vec![
                    Pause {
                        every_seconds: every + evaluation,
                        seconds: evaluation,
                    },
                    Pause {
                        every_seconds: saving + save_every,
                        seconds: saving,
                    },
                ],
                stalls: Vec::new(),
                lost_in_a_day: 0.0,
            },
            stalls_per_hour,
        }
    }
}

impl Character {
    /// The habits of the code on one allocation, and that allocation's speed over the usual.
    fn on_host(&self, seed: u64, horizon: f64) -> (Habits, f64) {
        let mut dice = StdRng::seed_from_u64(seed ^ 0x1157);
        let lost_in_a_day = if dice.random_bool(DRIFTING) {
            dice.random_range(0.0..LOST_IN_A_DAY)
        } else {
            0.0
        };
        let mut stalls = Vec::new();
        let mut at = 0.0;
        loop {
            let draw: f64 = dice.random_range(f64::EPSILON..1.0);
            at += -draw.ln() * 3600.0 / self.stalls_per_hour.max(1e-3);
            if at >= horizon {
                break;
            }
            let seconds = dice.random_range(STALL_SECONDS);
            stalls.push(Stall {
                at,
                seconds,
                share: dice.random_range(STALL_SHARE),
            });
            at += seconds;
        }
        let habits = Habits {
            stalls,
            lost_in_a_day,
            ..self.habits.clone()
        };
        (habits, (HOST_SD * normal(dice)).exp())
    }
}

/// The script's own `eval_steps`; 200 without one.
fn evaluation_steps(hyper: &BTreeMap<String, String>) -> f64 {
    number(hyper, "eval_steps").unwrap_or(200.0)
}

fn number(hyper: &BTreeMap<String, String>, key: &str) -> Option<f64> {
    let text = hyper.get(key)?.trim_matches('"');
    text.parse().ok().filter(|number: &f64| *number >= 1.0)
}

/// What batch, precision and seed add to the loss: larger batches take more tokens to the same loss,
/// and fp16 loses a little.
fn loss_offset(hyper: &BTreeMap<String, String>, law: &Training, seed: u64) -> f64 {
    let batch = 0.01 * (law.tokens_per_step / 131_072.0).log2();
    let precision = if hyper.contains_key("fp16") {
        0.01
    } else {
        0.0
    };
    batch + precision + 0.004 * normal(StdRng::seed_from_u64(seed ^ 0x1055))
}

fn mean(range: Range<f64>) -> f64 {
    f64::midpoint(range.start, range.end)
}

/// A draw of the standard normal distribution (Box and Muller).
pub(crate) fn normal(mut dice: StdRng) -> f64 {
    let (a, b): (f64, f64) = (
        dice.random_range(f64::EPSILON..1.0),
        dice.random_range(0.0..std::f64::consts::TAU),
    );
    (-2.0 * a.ln()).sqrt() * b.cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: Lively = Lively { seed: 7 };

    fn law() -> Training {
        Training {
            tokens_per_second: 50_000.0,
            tokens_per_step: 131_072.0,
            first_step: 0.0,
            steps: 20_000.0,
            parameters: 7e9,
            trained: 7e9,
            loss_offset: 0.0,
        }
    }

    fn instance(name: &str) -> &'static InstanceType {
        catalog::find(name).unwrap()
    }

    fn seconds(script: &Script) -> f64 {
        script.curve.wall_for(script.work_seconds().unwrap())
    }

    fn usual(image: &str, kind: &str) -> f64 {
        let none = BTreeMap::new();
        seconds(&REGION.usual(image, &none, instance(kind), law()))
    }

    /// What a decision is judged by is the mean of what the machines do.
    #[test]
    fn the_truth_is_the_mean_of_many_allocations() {
        let none = BTreeMap::new();
        let horizon = 6.0 * 86_400.0;
        let on = |seed: u64| {
            let kind = instance("ml.p5.48xlarge");
            let allocation = Allocation { seed, horizon };
            seconds(&REGION.script("code", &none, kind, law(), allocation))
        };
        let took: Vec<f64> = (0..200).map(on).collect();
        let mean = took.iter().sum::<f64>() / 200.0;
        let off = mean / usual("code", "ml.p5.48xlarge") - 1.0;
        assert!(off.abs() < 0.01, "{off}");
        let variance = took
            .iter()
            .map(|one| (one / mean - 1.0).powi(2))
            .sum::<f64>()
            / 200.0;
        assert!((0.015..0.03).contains(&variance.sqrt()), "{variance}");
    }

    #[test]
    fn codes_differ_by_up_to_twice_and_types_of_a_generation_by_a_little() {
        let ratios = |one: &str, other: &str| -> f64 {
            let all = (0..200).map(|code| {
                let image = format!("code-{code}");
                (usual(&image, one) / usual(&image, other)).ln()
            });
            let all: Vec<f64> = all.collect();
            let mean = all.iter().sum::<f64>() / 200.0;
            (all.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / 200.0).sqrt()
        };
        let kin = ratios("ml.p5.48xlarge", "ml.p5en.48xlarge");
        assert!((0.05..0.10).contains(&kin), "{kin}");
        let others = ratios("ml.p5.48xlarge", "ml.p4d.24xlarge");
        assert!((0.13..0.20).contains(&others), "{others}");
        let codes: Vec<f64> = (0..200)
            .map(|code| usual(&format!("code-{code}"), "ml.p5.48xlarge"))
            .collect();
        let (least, most) = codes
            .iter()
            .fold((f64::INFINITY, 0.0_f64), |(least, most), one| {
                (least.min(*one), most.max(*one))
            });
        assert!((3.0..9.0).contains(&(most / least)), "{least} {most}");
    }

    #[test]
    fn a_seed_is_one_region() {
        let elsewhere = Lively { seed: 8 };
        let none = BTreeMap::new();
        let other = elsewhere.usual("code", &none, instance("ml.p5.48xlarge"), law());
        assert_ne!(
            usual("code", "ml.p5.48xlarge").to_bits(),
            seconds(&other).to_bits()
        );
        assert_eq!(
            usual("code", "ml.p5.48xlarge").to_bits(),
            usual("code", "ml.p5.48xlarge").to_bits()
        );
    }
}
