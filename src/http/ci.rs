//! CI: stored experiment templates, and the signed webhook that starts an experiment from one. The
//! signature is HMAC-SHA256 over the raw body; a delivery id counts once, so a redelivery starts
//! nothing.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use bakeoff_domain::ids::TemplateId;
use bakeoff_domain::spec::ExperimentSpec;
use hmac::Mac;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::Admin;
use super::extract::{Raw, Strict, parse};
use super::heavy::aside;
use super::problem::{FieldError, Problem, Problems};
use super::specs::name_error;
use crate::api::specs::{CiStarted, CreatedTemplate};
use crate::app::App;
use crate::auth::secrets::mac;
use crate::store::StoreError;
use crate::store::requests::{Once, Template};
use crate::{ids, intake};

/// A template to store.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct NewTemplate {
    name: String,
    spec: ExperimentSpec,
}

/// The body of a CI webhook.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub(super) struct CiTrigger {
    /// Unique for each delivery, 1 to 255 characters. It is part of the signed body, so nobody can
    /// replay the body under another id.
    delivery_id: String,
    /// Becomes the workload's code version.
    commit: String,
    #[serde(default)]
    branch: Option<String>,
}

fn secret(app: &App, id: TemplateId) -> String {
    let derived = mac(
        &app.settings.secret_key,
        format!("ci-template/{id}").as_bytes(),
    );
    hex::encode(derived.finalize().into_bytes())
}

/// Create a CI template
///
/// The spec is validated now, not when CI runs.
#[utoipa::path(post, path = "/v1/ci-templates", operation_id = "createCiTemplate", tag = "webhooks", request_body = NewTemplate,
    responses((status = 201, description = "Stored; the secret is shown this once", body = CreatedTemplate), Problems))]
pub(super) async fn create_template(
    State(app): State<App>,
    Admin(caller): Admin,
    Strict(new): Strict<NewTemplate>,
) -> Result<(StatusCode, Json<CreatedTemplate>), Problem> {
    if let Some(error) = name_error(&new.name) {
        return Err(Problem::invalid(vec![error]));
    }
    let loaded = intake::load(&app, caller.project, new.spec).await?;
    // Stored with its references filled in; a trigger sets the workload's code version.
    let spec = match aside(move || loaded.prepare()).await? {
        Ok(prepared) => prepared.resolved.into_spec(),
        Err(findings) => {
            let errors = findings.iter().map(|finding| {
                let error = FieldError::from(finding);
                FieldError {
                    pointer: format!("/spec{}", error.pointer),
                    ..error
                }
            });
            return Err(Problem::invalid(errors.collect()));
        }
    };
    let id = TemplateId(ids::fresh());
    app.store
        .insert_template(caller.project, id, &new.name, &spec, app.clock.now())
        .await?;
    let created = CreatedTemplate {
        id,
        name: new.name,
        secret: secret(&app, id),
    };
    Ok((StatusCode::CREATED, Json(created)))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Problem> {
    let value = headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .filter(|value| !value.is_empty());
    value.ok_or_else(|| Problem::unauthenticated(&format!("missing header {name}")))
}

/// Verifies the signature first: an unsigned body is not even parsed.
async fn verified(app: &App, headers: &HeaderMap, body: &[u8]) -> Result<Template, Problem> {
    let refused =
        || Problem::unauthenticated("unknown template, or the signature does not match the body");
    let id: TemplateId = header(headers, "x-bakeoff-template")?
        .parse()
        .map_err(|_| refused())?;
    let signature = header(headers, "x-bakeoff-signature-256")?;
    let given = signature
        .strip_prefix("sha256=")
        .and_then(|digits| hex::decode(digits).ok())
        .ok_or_else(refused)?;
    // The secret can be derived for any id, so the order of these checks reveals nothing to a
    // stranger.
    mac(secret(app, id).as_bytes(), body)
        .verify_slice(&given)
        .map_err(|_| refused())?;
    app.store.template(id).await?.ok_or_else(refused)
}

/// Start an experiment from CI
///
/// Headers: `X-Bakeoff-Template` (the template's id) and `X-Bakeoff-Signature-256` (`sha256=`
/// followed by the HMAC-SHA256 of the raw body with the template's secret). The body's
/// `delivery_id` counts once: a redelivery starts nothing.
#[utoipa::path(post, path = "/v1/webhooks/ci", operation_id = "triggerFromCi", tag = "webhooks", security(()),
    params(("X-Bakeoff-Template" = String, Header), ("X-Bakeoff-Signature-256" = String, Header)),
    request_body = CiTrigger,
    responses((status = 202, description = "Started, now or by this delivery before", body = CiStarted), Problems))]
pub(super) async fn trigger(
    State(app): State<App>,
    headers: HeaderMap,
    Raw(body): Raw,
) -> Result<(StatusCode, Json<CiStarted>), Problem> {
    let template = verified(&app, &headers, &body).await?;
    let (trigger, mut errors) = parse::<CiTrigger>(body).await?;
    let delivery = trigger.delivery_id.as_str();
    if !(1..=255).contains(&delivery.len()) {
        errors.push(FieldError {
            pointer: "/delivery_id".to_owned(),
            detail: "must have 1 to 255 characters".to_owned(),
            fix: "use the CI run's own id".to_owned(),
            rule: "delivery-id".to_owned(),
        });
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors));
    }
    let started = |experiment_id, duplicate| {
        Ok((
            StatusCode::ACCEPTED,
            Json(CiStarted {
                experiment_id,
                duplicate,
            }),
        ))
    };
    if let Some(id) = app.store.delivered(template.id, delivery).await? {
        return started(id, true);
    }
    let spec = with_commit(template.spec, &trigger);
    let loaded = intake::load(&app, template.project_id, spec).await?;
    let prepared = aside(move || loaded.prepare()).await?;
    let prepared = prepared
        .map_err(|findings| Problem::invalid(findings.iter().map(FieldError::from).collect()))?;
    let once = Once::Delivery {
        template: template.id,
        delivery,
    };
    match prepared.start(&app, template.project_id, &once).await {
        Ok(()) => started(prepared.id, false),
        Err(StoreError::Conflict { constraint }) if constraint == "ci_deliveries_pkey" => {
            let id = app.store.delivered(template.id, delivery).await?;
            id.map_or_else(
                || Err(Problem::unavailable("try again")),
                |id| started(id, true),
            )
        }
        Err(error) => Err(error.into()),
    }
}

fn with_commit(mut spec: ExperimentSpec, trigger: &CiTrigger) -> ExperimentSpec {
    let short: String = trigger.commit.chars().take(12).collect();
    spec.name = format!("{}@{short}", spec.name).chars().take(100).collect();
    if let Some(workload) = &mut spec.workload {
        workload.code_version.clone_from(&trigger.commit);
    }
    if let Some(branch) = &trigger.branch {
        spec.notes.push(format!("started by CI from {branch}"));
    }
    spec
}
