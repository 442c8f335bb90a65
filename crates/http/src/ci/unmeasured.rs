//! Commits that a delivery tells of and that are not measured: kept, listed, and shown beside the commit, so that a check
//! that is required there ends.

use axum::Json;
use axum::extract::State;
use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::ids::TemplateId;
use chrono::{DateTime, Utc};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::ci::deliveries::SignedDelivery;
use crate::ci::no_such;
use crate::plumbing::auth::Caller;
use crate::plumbing::extract::{Id, Params};
use crate::plumbing::page;
use crate::plumbing::problem::{FieldError, Problem, Problems};
use bakeoff_api::ci::CiNotMeasured;
use bakeoff_api::page::Page;
use bakeoff_process::ids;
use bakeoff_service::app::App;
use bakeoff_store::StoreError;
use bakeoff_store::ci::Template;
use bakeoff_store::ci::unmeasured::NewUnmeasured;

/// Keeps a delivery that starts nothing, and has it shown from a moment on, if at all. Nothing is shown where runs are
/// left to `bakeoff gate`.
pub(crate) async fn note(
    app: &App,
    template: TemplateId,
    told: &SignedDelivery,
    outcome: Unmeasured,
    reason: &str,
    shown_at: Option<DateTime<Utc>>,
) -> Result<(), StoreError> {
    if !told.trigger.has_commit() {
        return Ok(());
    }
    let target = app.store.target_of(template).await?;
    let is_left_to_gate = target.is_some_and(|target| target.gate_only);
    let new = NewUnmeasured {
        id: ids::fresh(),
        template,
        delivery: &told.id,
        sender: told.sender,
        event: told.event,
        trigger: &told.trigger,
        outcome,
        reason,
        shown_at: shown_at.filter(|_| !is_left_to_gate),
    };
    app.store.note_unmeasured(&new, app.clock.now()).await
}

/// Keeps a delivery that was refused, with the reason that its sender has got.
pub(crate) async fn note_refusal(
    app: &App,
    template: TemplateId,
    told: &SignedDelivery,
    problem: &Problem,
    shown_at: Option<DateTime<Utc>>,
) {
    let reason = match problem.errors.first() {
        Some(first) if first.fix.is_empty() => format!("{}: {}", first.pointer, first.detail),
        Some(first) => format!("{}: {}; {}", first.pointer, first.detail, first.fix),
        None => problem.detail.clone(),
    };
    let noted = note(app, template, told, Unmeasured::Refused, &reason, shown_at);
    if let Err(error) = noted.await {
        tracing::warn!(%error, %template, "a refused delivery was not kept");
    }
}

/// The refusal of a webhook of another repository than the template's.
pub(crate) fn of_another_repository(
    template: &Template,
    told: &SignedDelivery,
    own: &str,
) -> Problem {
    let named = told.trigger.repository.as_ref();
    let named = named.map_or("no repository", |repository| repository.name.as_str());
    Problem::invalid(vec![FieldError {
        pointer: "/repository".to_owned(),
        detail: format!("this template measures {own}, and the webhook names {named}"),
        fix: format!(
            "make a template for it, or have an admin name it in settings.repository (PUT /v1/ci-templates/{})",
            template.id
        ),
        rule: "ci-repository".to_owned(),
    }])
}

/// Refuses a webhook of another repository than the one that the settings state, or else the first one.
pub(crate) async fn check_repository(
    app: &App,
    template: &Template,
    told: &SignedDelivery,
) -> Result<(), Problem> {
    let repository = told.trigger.repository.as_ref();
    if let Some(stated) = &template.settings.repository {
        return if template.settings.takes_repository(repository) {
            Ok(())
        } else {
            Err(of_another_repository(template, told, stated))
        };
    }
    let bound = app.store.repository_of(template.id, told.sender).await?;
    match (bound, repository) {
        (Some(bound), Some(named)) if bound.id != named.id => {
            Err(of_another_repository(template, told, &bound.name))
        }
        (None | Some(_), _) => Ok(()),
    }
}

#[derive(Debug, Clone, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct UnmeasuredParams {
    /// Items per page, 1 to 500; 50 when absent.
    page_size: Option<u32>,
    /// `next_page_token` of the page before.
    page_token: Option<String>,
}

/// List commits that are not measured
///
/// Deliveries of commits that started nothing, newest first, with the reason and what is shown of it beside the commit: a
/// branch that the template does not name, a fork, another repository, something that the template needs and the event
/// does not say. They are kept for 30 days.
#[utoipa::path(get, path = "/v1/ci-templates/{template_id}/unmeasured", operation_id = "listUnmeasured", tag = "webhooks",
    params(("template_id" = TemplateId, Path), UnmeasuredParams),
    responses((status = 200, description = "One page", body = Page<CiNotMeasured>), Problems))]
pub(crate) async fn list(
    State(app): State<App>,
    caller: Caller,
    Id(id): Id<TemplateId>,
    Params(params): Params<UnmeasuredParams>,
) -> Result<Json<Page<CiNotMeasured>>, Problem> {
    let size = page::size(params.page_size)?;
    let filter = format!("unmeasured {id}");
    let before = page::read_token(params.page_token.as_deref(), &filter)?;
    let found = app.store.template_version(caller.project, id, None).await?;
    if found.is_none() {
        return Err(no_such(id));
    }
    let limit = i64::try_from(size + 1).unwrap_or(i64::MAX);
    let rows = app
        .store
        .unmeasured(caller.project, id, before, limit)
        .await?;
    Ok(Json(page::cut(
        rows,
        size,
        &filter,
        |row| row.id,
        CiNotMeasured::from,
    )))
}
