//! Before spending anything: plans of experiments, and the linter for documents of every kind.
//! Writes nothing.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use bakeoff_domain::catalog;
use bakeoff_domain::finding::Severity;
use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::price::{self, Price};
use bakeoff_domain::spec::ExperimentSpec;
use bakeoff_planner::lint::Kind;
use bakeoff_planner::rules;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::plumbing::auth::Caller;
use crate::plumbing::extract::{Params, Raw, json, parse};
use crate::plumbing::heavy::{self, BODY_ASIDE_FROM, aside};
use crate::plumbing::page;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::findings::{LintView, RuleView};
use bakeoff_api::page::Page;
use bakeoff_api::plans::PreviewView;
use bakeoff_service::app::App;
use bakeoff_service::document;
use bakeoff_service::use_cases::intake;
use bakeoff_store::money::prices::PricesOf;

/// Plan an experiment
///
/// Shows what would happen, without writing anything: findings, fit, advice, the exact
/// CreateTrainingJob body, predicted speed, hours and dollars with 90 % intervals, the worst case,
/// and candidates that cannot win. The linter's findings are part of the answer, not an error.
#[utoipa::path(post, path = "/v1/plans", operation_id = "createPlan", tag = "plans", request_body = ExperimentSpec,
    responses((status = 200, description = "The plan", body = PreviewView), Problems))]
pub(crate) async fn plan(
    State(app): State<App>,
    caller: Caller,
    Raw(body): Raw,
) -> Result<Response, Problem> {
    let (spec, unknown) = parse::<ExperimentSpec>(body).await?;
    if !unknown.is_empty() {
        return Err(Problem::invalid(unknown));
    }
    let loaded = intake::load(&app, caller.project, spec).await?;
    heavy::json(aside(move || PreviewView::from(loaded.preview())).await?).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct LintParams {
    /// Kind of the document; inferred from its fields when absent.
    kind: Option<Kind>,
    /// Return the document with all available patches applied.
    #[serde(default)]
    fix: bool,
}

/// Lint a document
///
/// Accepts an experiment, a workload, an instance profile, an external run, a raw CreateTrainingJob
/// body, or the arguments of the SageMaker SDK's estimators.
#[utoipa::path(post, path = "/v1/lint", operation_id = "lint", tag = "plans", params(LintParams),
    request_body(content = serde_json::Value, description = "The document"),
    responses((status = 200, description = "Its findings", body = LintView), Problems))]
pub(crate) async fn lint(
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
        .unwrap_or(app.settings.home())
        .to_owned();
    let prices = prices_in(&app, caller.project, &region).await?;
    let view = aside(move || linted(&json, &params, &prices)).await?;
    heavy::json(view.ok_or_else(kind_is_unclear)?).await
}

/// The prices in force in a region, of every training type.
pub(crate) async fn prices_in(
    app: &App,
    project: ProjectId,
    region: &str,
) -> Result<Vec<Price>, Problem> {
    let types: Vec<String> = catalog::all()
        .iter()
        .map(|kind| kind.instance_type.clone())
        .collect();
    let of = PricesOf::training(region, &types);
    let tariffs = app.store.tariffs(project, of).await?;
    Ok(price::all_in_force(
        &tariffs.prices,
        region,
        app.clock.now(),
    ))
}

/// `None` if the kind of the document is neither given nor recognisable.
fn linted(json: &serde_json::Value, params: &LintParams, prices: &[Price]) -> Option<LintView> {
    let (kind, findings) = document::check(json, params.kind, prices)?;
    Some(LintView {
        kind,
        passed: findings
            .iter()
            .all(|finding| finding.severity < Severity::Refused),
        fixed: params
            .fix
            .then(|| document::apply_fixes(json, kind, prices)),
        findings: findings.into_iter().map(Into::into).collect(),
    })
}

fn kind_is_unclear() -> Problem {
    let kinds: Vec<&str> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
    page::parameter(
        "kind",
        format!(
            "cannot tell what kind of document this is; name it: {}",
            kinds.join(", ")
        ),
    )
}

/// List lint rules
#[utoipa::path(get, path = "/v1/lint/rules", operation_id = "listLintRules", tag = "plans",
    responses((status = 200, description = "All of them", body = Page<RuleView>), Problems))]
pub(crate) async fn rules(_caller: Caller) -> Json<Page<RuleView>> {
    Json(Page {
        items: rules::all().iter().cloned().map(RuleView::from).collect(),
        next_page_token: None,
    })
}
