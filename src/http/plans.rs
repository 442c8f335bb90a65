//! Before a dollar is spent: plans of experiments, and the linter for documents of every kind.
//! Nothing is written.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use bakeoff_domain::catalog;
use bakeoff_domain::finding::{Finding, Severity};
use bakeoff_domain::money::price;
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint::{Kind, rules};
use bakeoff_planner::preview::Preview;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::Caller;
use super::extract::{Params, Raw, json, parse};
use super::heavy::{self, BODY_ASIDE_FROM, aside};
use super::page::{self, Page};
use super::problem::{Problem, Problems};
use crate::app::App;
use crate::{document, intake};

/// Plan an experiment
///
/// What would happen, with nothing written: findings, fit, advice, the exact CreateTrainingJob
/// body, predicted speed, hours and dollars with 90 % intervals, the worst case, and who cannot
/// win. What the linter finds is in the answer, not an error.
#[utoipa::path(post, path = "/v1/plans", operation_id = "createPlan", tag = "plans", request_body = ExperimentSpec,
    responses((status = 200, description = "The plan", body = Preview), Problems))]
pub(super) async fn plan(
    State(app): State<App>,
    caller: Caller,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let (spec, unknown) = parse::<ExperimentSpec>(body).await?;
    if !unknown.is_empty() {
        return Err(Problem::invalid(unknown));
    }
    let loaded = intake::load(&app, caller.project, spec).await?;
    heavy::json(aside(move || loaded.preview()).await?).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct LintParams {
    /// What the document is; found out from its members when absent.
    kind: Option<Kind>,
    /// Answer with the document mended, as far as patches go.
    #[serde(default)]
    fix: bool,
}

/// What the linter has to say of a document.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct LintView {
    kind: Kind,
    /// Nothing in it stops a job.
    passed: bool,
    findings: Vec<Finding>,
    /// The document with every patch applied, when asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Object)]
    mended: Option<serde_json::Value>,
}

/// Lint a document
///
/// An experiment, a workload, an instance profile, an external run, a raw CreateTrainingJob body,
/// or the arguments of the SageMaker SDK's estimators.
#[utoipa::path(post, path = "/v1/lint", operation_id = "lint", tag = "plans", params(LintParams),
    request_body(content = serde_json::Value, description = "The document"),
    responses((status = 200, description = "Its findings", body = LintView), Problems))]
pub(super) async fn lint(
    State(app): State<App>,
    caller: Caller,
    Params(params): Params<LintParams>,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let json = if body.len() < BODY_ASIDE_FROM {
        json(&body)?
    } else {
        aside(move || json(&body)).await??
    };
    let region = json
        .get("region")
        .and_then(serde_json::Value::as_str)
        .unwrap_or(&app.settings.region)
        .to_owned();
    let types: Vec<String> = catalog::all()
        .iter()
        .map(|kind| kind.instance_type.clone())
        .collect();
    let tariffs = app.store.tariffs(caller.project, &region, &types).await?;
    let prices = price::all_in_force(&tariffs.prices, &region, app.clock.now());
    let view = aside(move || {
        let (kind, findings) = document::check(&json, params.kind, &prices)?;
        Some(LintView {
            kind,
            passed: findings
                .iter()
                .all(|finding| finding.severity < Severity::Refused),
            mended: params.fix.then(|| document::mend(&json, kind, &prices)),
            findings,
        })
    });
    let view = view.await?.ok_or_else(|| {
        let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        page::parameter(
            "kind",
            format!(
                "nothing says what this document is; name it: {}",
                kinds.join(", ")
            ),
        )
    })?;
    heavy::json(view).await
}

/// List lint rules
#[utoipa::path(get, path = "/v1/lint/rules", operation_id = "listLintRules", tag = "plans",
    responses((status = 200, description = "All of them", body = Page<rules::Rule>), Problems))]
pub(super) async fn rules(_caller: Caller) -> Json<Page<rules::Rule>> {
    Json(Page {
        items: rules::all().to_vec(),
        next_page_token: None,
    })
}
