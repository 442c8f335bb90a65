//! An experiment from what people already have. Writes nothing.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use bakeoff_domain::finding::escaped;
use bakeoff_planner::import::{self, Import, Known, Unreadable};
use bakeoff_planner::predict::Calibration;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::plans::prices_in;
use crate::plumbing::auth::Caller;
use crate::plumbing::extract::Strict;
use crate::plumbing::heavy::{self, aside};
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::imports::ImportView;
use bakeoff_service::app::App;
use bakeoff_service::document;

/// Documents, and names of models, that one import reads.
const DOCUMENTS_MAX: usize = 10;

/// What an experiment is made from.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(crate) struct NewImport {
    /// 1 to 10: arguments of an SDK estimator or ModelTrainer, a CreateTrainingJob body or a description of a job, a
    /// model's `config.json`, a configuration of DeepSpeed, Axolotl, LLaMA-Factory, TRL or accelerate, a W&B run's
    /// `config.yaml` and `wandb-metadata.json` (as JSON); a text is the name of a model, such as `"Qwen/Qwen2.5-7B"`.
    #[schema(value_type = Vec<Value>)]
    documents: Vec<Value>,
    /// Answers to the questions of an earlier import of the same documents, by their pointers.
    #[serde(default)]
    #[schema(value_type = Object)]
    answers: BTreeMap<String, Value>,
}

fn unreadable(errors: Vec<Unreadable>) -> Problem {
    let errors = errors.into_iter().map(|error| FieldError {
        pointer: error.pointer,
        detail: error.why,
        fix: error.fix,
        rule: "import".to_owned(),
    });
    Problem::invalid(errors.collect())
}

/// Make an experiment from what you have
///
/// Takes what the documents say, proposes what they do not (instance types that hold the model at the same batch, the length of a
/// trial, metrics by framework, a budget), and asks what only a person knows, all at once. Nothing is written or started: send
/// `spec` to `/v1/plans` and `/v1/experiments`.
#[utoipa::path(post, path = "/v1/imports", operation_id = "importExperiment", tag = "plans", request_body = NewImport,
    responses((status = 200, description = "The experiment, and what is open", body = ImportView), Problems))]
pub(crate) async fn import(
    State(app): State<App>,
    caller: Caller,
    Strict(new): Strict<NewImport>,
) -> Result<Response, Problem> {
    if new.documents.len() > DOCUMENTS_MAX {
        return Err(unreadable(vec![Unreadable {
            pointer: "/documents".to_owned(),
            why: format!("there are {} documents", new.documents.len()),
            fix: format!("send at most {DOCUMENTS_MAX}, of one training job"),
        }]));
    }
    let looked = aside(move || (import::region(&new.documents, &new.answers), new));
    let (region, new) = looked.await?;
    let region = region.unwrap_or_else(|| app.settings.home().to_owned());
    let prices = prices_in(&app, caller.project, &region).await?;
    let now = app.clock.now();
    let made = aside(move || {
        answered(Known {
            documents: &new.documents,
            answers: &new.answers,
            prices: &prices,
            home: &region,
            calibration: &Calibration::shipped(),
            stamp: &now.format("%Y-%m-%d-%H-%M-%S-%3f").to_string(),
        })
    });
    let made = made.await?.map_err(unreadable)?;
    heavy::json(ImportView::from(made)).await
}

/// The import, unless an answer is no field of an experiment, or no value of one.
fn answered(known: Known<'_>) -> Result<Import, Vec<Unreadable>> {
    let made = import::import(known)?;
    match document::wrong_answer(&made.spec, made.is_complete, known.answers) {
        Some(wrong) => Err(vec![Unreadable {
            pointer: format!("/answers/{}", escaped(&wrong.pointer)),
            why: wrong.message,
            fix: wrong.fix,
        }]),
        None => Ok(made),
    }
}
