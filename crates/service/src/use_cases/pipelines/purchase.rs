//! Before a step buys: whether the answers that it acts on may be bought without a person, and what a person has
//! chosen instead. The rule is [`bakeoff_domain::ranking::purchase`]'s; this loads what it needs.

use std::collections::BTreeMap;

use bakeoff_domain::event::WaitingPurchase;
use bakeoff_domain::ids::ExperimentId;
use bakeoff_domain::pipeline::purchase::{PURCHASE_WAIT, names_candidate, winners_of};
use bakeoff_domain::pipeline::reference;
use bakeoff_domain::ranking::purchase::{
    Conditions, Purchase, PurchaseChoice, RowName, find, may_buy,
};
use bakeoff_domain::ranking::recommendation::Ranked;
use bakeoff_domain::spec::PurchaseOption;
use bakeoff_domain::spec::pipeline::StepSpec;
use serde_json::Value;

use super::not_ready::NotReady;
use super::outputs::winner;
use crate::app::App;
use crate::read;
use bakeoff_store::pipelines::purchases::{Decision, PurchaseQuestion};
use bakeoff_store::pipelines::{Pipeline, Step};

/// A step's answer to the question whether it may buy.
#[derive(Debug)]
pub enum Guard {
    /// It may, with these outputs of the steps before it, and this row for a full run that names none.
    Passed {
        outputs: BTreeMap<String, Value>,
        row: Option<Box<Ranked>>,
    },
    /// A person must be asked.
    Asks {
        experiment: ExperimentId,
        waiting: WaitingPurchase,
    },
}

/// An answer that a step acts on.
struct Acted {
    experiment: ExperimentId,
    /// The comparison of this pipeline, if it is one.
    step: Option<String>,
    /// What stands in its outputs, or what a reference stands for.
    written: Option<(String, Option<PurchaseOption>)>,
}

/// Whether a step may act on the answers that it refers to.
pub async fn guard(
    app: &App,
    pipeline: &Pipeline,
    place: usize,
    steps: &[Step],
    outputs: &BTreeMap<String, Value>,
) -> Result<Guard, NotReady> {
    let Some(step) = pipeline.spec.steps.get(place) else {
        return Err(NotReady::Never("the step is gone".to_owned()));
    };
    let (mut outputs, mut row) = (outputs.clone(), None);
    let acted = acted_on(pipeline, step, steps, &outputs);
    if acted.is_empty() {
        return Ok(Guard::Passed { outputs, row });
    }
    let questions = app.store.purchase_questions(pipeline.id).await?;
    for one in acted {
        let asker = Asker {
            app,
            pipeline,
            step,
            place,
        };
        let bought = match asker.judge(&one, &questions).await? {
            Judged::Buys(bought) => *bought,
            Judged::Asks(waiting) => {
                return Ok(Guard::Asks {
                    experiment: one.experiment,
                    waiting,
                });
            }
        };
        if let Some(name) = &one.step {
            let chosen = winner(app, pipeline.project_id, &bought).await?;
            if let Some(of) = outputs.get_mut(name).and_then(Value::as_object_mut) {
                of.insert("winner".to_owned(), chosen);
            }
        }
        if step.full_run.is_some() && one.is_of_run(step, &outputs) {
            row = Some(Box::new(bought));
        }
    }
    Ok(Guard::Passed { outputs, row })
}

impl Acted {
    /// Whether it is the answer that the step's full run is of.
    fn is_of_run(&self, step: &StepSpec, outputs: &BTreeMap<String, Value>) -> bool {
        experiment_of_run(step, outputs) == Some(self.experiment)
    }
}

/// The experiment whose full run a step is; what cannot be read is told when the step is prepared.
fn experiment_of_run(step: &StepSpec, outputs: &BTreeMap<String, Value>) -> Option<ExperimentId> {
    let body = step.full_run.as_ref()?;
    let id = reference::resolve(body.get("experiment_id")?, outputs).ok()?;
    id.as_str()?.parse().ok()
}

/// The answers that no person has chosen from in the spec.
fn acted_on(
    pipeline: &Pipeline,
    step: &StepSpec,
    steps: &[Step],
    outputs: &BTreeMap<String, Value>,
) -> Vec<Acted> {
    let winners = winners_of(&pipeline.spec, step).into_iter();
    let mut all: Vec<Acted> = winners
        .filter_map(|name| {
            let own = steps.iter().find(|one| one.name == name)?;
            let winner = outputs.get(&name).and_then(|of| of.get("winner"));
            Some(Acted {
                experiment: own.experiment_id?,
                written: winner.and_then(row_name),
                step: Some(name),
            })
        })
        .collect();
    let open = step.full_run.as_ref().filter(|body| !names_candidate(body));
    let Some((body, experiment)) = open.zip(experiment_of_run(step, outputs)) else {
        return all;
    };
    if !all.iter().any(|one| one.experiment == experiment) {
        let own = steps
            .iter()
            .find(|one| one.experiment_id == Some(experiment));
        let body = reference::resolve(body, outputs).ok();
        all.push(Acted {
            experiment,
            written: body.as_ref().and_then(row_name),
            step: own.map(|one| one.name.clone()),
        });
    }
    all
}

/// The row that an object with a candidate and a purchase option names.
fn row_name(value: &Value) -> Option<(String, Option<PurchaseOption>)> {
    let text = |name: &str| value.get(name).and_then(Value::as_str);
    let option = text("purchase_option").and_then(PurchaseOption::parse);
    Some((text("candidate")?.to_owned(), option))
}

enum Judged {
    Buys(Box<Ranked>),
    Asks(WaitingPurchase),
}

struct Asker<'a> {
    app: &'a App,
    pipeline: &'a Pipeline,
    step: &'a StepSpec,
    place: usize,
}

impl Asker<'_> {
    async fn judge(
        &self,
        acted: &Acted,
        questions: &[PurchaseQuestion],
    ) -> Result<Judged, NotReady> {
        let id = acted.experiment;
        let now = self.app.clock.now();
        let store = &self.app.store;
        let experiment = store.experiment(self.pipeline.project_id, id).await?;
        let experiment =
            experiment.ok_or_else(|| NotReady::Never(format!("there is no experiment {id}")))?;
        if experiment.ended_at.is_none() {
            let why = format!("the answer of {id} is not final yet");
            return Err(NotReady::Later(why));
        }
        let answer = read::recommendation(store, &experiment, now).await?;
        let asked = || questions.iter().filter(|one| one.experiment_id == id);
        for question in asked() {
            match &question.decision {
                Decision::Open => {}
                Decision::Approved {
                    candidate,
                    purchase_option,
                } => {
                    let name = RowName {
                        candidate,
                        purchase_option: Some(*purchase_option),
                    };
                    let row = find(&answer, name).map_err(NotReady::Never)?;
                    return Ok(Judged::Buys(Box::new(row.clone())));
                }
                Decision::Refused { by, reason } => {
                    let why = reason.as_deref().unwrap_or("no reason was given");
                    let why = format!("{by} refused to buy of the answer of {id}: {why}");
                    return Err(NotReady::Never(why));
                }
            }
        }
        let wanted = match &acted.written {
            Some((candidate, option)) => PurchaseChoice::Written(RowName {
                candidate,
                purchase_option: *option,
            }),
            None => PurchaseChoice::First(None),
        };
        let conditions = Conditions {
            wanted,
            at_least: self.step.condition.as_ref().map(|one| one.at_least),
        };
        match may_buy(&answer, &conditions) {
            Purchase::Bought(row) => Ok(Judged::Buys(Box::new(row.clone()))),
            Purchase::Refused { why } => Err(NotReady::Never(why)),
            Purchase::WaitsForPerson { why } => {
                let mut own = asked().filter(|one| one.place == self.place);
                if own.any(|one| one.asked_at + PURCHASE_WAIT <= now) {
                    let days = PURCHASE_WAIT.num_days();
                    let why = format!("no person has decided within {days} days: {why}");
                    return Err(NotReady::Never(why));
                }
                Ok(Judged::Asks(self.waits(answer.ranked.first(), why)))
            }
        }
    }

    fn waits(&self, first: Option<&Ranked>, reason: String) -> WaitingPurchase {
        WaitingPurchase {
            pipeline_id: self.pipeline.id,
            step: self.step.name.clone(),
            candidate: first.map_or_else(String::new, |row| row.candidate.clone()),
            reason,
        }
    }
}
