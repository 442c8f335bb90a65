//! Webhooks that come in: CI's own trigger, GitHub's and GitLab's. Nothing of a body is read before its signature was
//! verified, and each delivery counts once.

use axum::extract::State;
use axum::http::{HeaderMap, header};
use bakeoff_domain::ci::unmeasured::Unmeasured;
use bakeoff_domain::ci::{DeliveryContent, Sender, github, gitlab, template};
use bakeoff_domain::ids::TemplateId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta};
use hmac::Mac;
use serde_json::Value;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::ci::deliveries::SignedDelivery;
use crate::ci::runs::{Answer, ignored, start, told};
use crate::ci::unmeasured;
use crate::plumbing::extract::{Id, Raw, Webhook, parse};
use crate::plumbing::heavy::aside;
use crate::plumbing::problem::{Problem, Problems};
use bakeoff_api::ci::{CiStarted, CiTrigger};
use bakeoff_process::clock::real_now;
use bakeoff_service::app::App;
use bakeoff_service::auth::secrets::{ci_secret, mac};
use bakeoff_store::ci::Template;
use bakeoff_store::to_json;

/// How old a signed delivery of GitLab's may be (Standard Webhooks).
const SKEW_MAX: TimeDelta = TimeDelta::minutes(5);
/// Signatures in one header that are looked at: one of each secret that counts, and some of other versions.
const SIGNATURES_MAX: usize = 8;

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.filter(|value| !value.is_empty())
}

fn required<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Problem> {
    let missing = || Problem::unproven(&format!("missing header {name}"));
    header(headers, name).ok_or_else(missing)
}

fn refused() -> Problem {
    Problem::unproven("unknown template, or the signature does not match the body")
}

/// The template, if a delivery proves to know its secret; `is_proof` is asked of each secret that counts. A stranger
/// cannot tell a template that is not there from a wrong signature.
async fn verified(
    app: &App,
    id: TemplateId,
    is_proof: impl Fn(&[u8; 32]) -> bool,
) -> Result<Template, Problem> {
    let template = app.store.template(id).await?;
    let newest = template
        .as_ref()
        .map_or(1, |template| template.secret_version);
    let until = template
        .as_ref()
        .and_then(|template| template.previous_secret_until);
    let has_previous = newest > 1 && until.is_some_and(|until| app.clock.now() < until);
    let counts = [Some(newest), has_previous.then(|| newest - 1)];
    let is_proven = counts
        .into_iter()
        .flatten()
        .any(|version| is_proof(&ci_secret(&app.settings.secret_key, id, version)));
    template.filter(|_| is_proven).ok_or_else(refused)
}

/// Whether a signature is the body's HMAC-SHA256: `sha256=` and hexadecimal digits.
fn is_signed(signature: &str, key: &[u8], body: &[u8]) -> bool {
    let digits = signature.strip_prefix("sha256=");
    let given = digits.and_then(|digits| hex::decode(digits).ok());
    given.is_some_and(|given| mac(key, body).verify_slice(&given).is_ok())
}

/// Start an experiment from CI
///
/// Headers: `X-Bakeoff-Template` (the template's id) and `X-Bakeoff-Signature-256` (`sha256=`
/// followed by the HMAC-SHA256 of the raw body with the template's secret). The body's
/// `delivery_id` counts once: a redelivery starts nothing. A commit that has a run with the same inputs joins it, whoever
/// told of it, unless the body says `repeat`. What the template does not take in is refused, and so is a
/// trigger that lacks something that the template takes in.
#[utoipa::path(post, path = "/v1/webhooks/ci", operation_id = "triggerFromCi", tag = "webhooks", security(()),
    params(("X-Bakeoff-Template" = String, Header), ("X-Bakeoff-Signature-256" = String, Header)),
    request_body = CiTrigger,
    responses((status = 202, description = "Started, now or by this delivery before", body = CiStarted), Problems))]
pub(crate) async fn bakeoff(State(app): State<App>, headers: HeaderMap, Raw(body): Raw) -> Answer {
    let id = required(&headers, "x-bakeoff-template")?
        .parse()
        .map_err(|_| refused())?;
    let signature = required(&headers, "x-bakeoff-signature-256")?;
    let template = verified(&app, id, |secret| {
        is_signed(signature, hex::encode(secret).as_bytes(), &body)
    })
    .await?;
    let (trigger, errors) = parse::<CiTrigger>(body).await?;
    start(&app, template, told(trigger, errors)?).await
}

/// Start an experiment from GitHub
///
/// As GitHub sends it, with the template's secret: `ping`, `push` and `pull_request`; `X-Hub-Signature-256` is
/// verified over the raw body, JSON or form. Deleted branches, other branches than the template's, and pull requests of
/// forks start nothing; the reason is shown beside the commit (`GET /v1/ci-templates/{template_id}/unmeasured`). Another
/// repository than the template's is refused (422). A commit is measured once, whatever tells of it.
#[utoipa::path(post, path = "/v1/webhooks/github/{template_id}", operation_id = "triggerFromGithub", tag = "webhooks", security(()),
    params(("template_id" = TemplateId, Path), ("X-GitHub-Event" = String, Header), ("X-Hub-Signature-256" = String, Header)),
    request_body = serde_json::Value,
    responses((status = 202, description = "Started, now or by this delivery before", body = CiStarted),
        (status = 200, description = "Taken, and nothing started; `ignored` says why", body = CiStarted), Problems))]
pub(crate) async fn github(
    State(app): State<App>,
    Id(id): Id<TemplateId>,
    headers: HeaderMap,
    webhook: Webhook,
) -> Answer {
    let body = &webhook.body;
    let event = required(&headers, "x-github-event")?;
    let signature = required(&headers, "x-hub-signature-256")?;
    let template = verified(&app, id, |secret| {
        is_signed(signature, hex::encode(secret).as_bytes(), body)
    })
    .await?;
    let is_form = header(&headers, header::CONTENT_TYPE.as_str())
        .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    let read = body.clone();
    let payload = aside(move || payload_in(&read, is_form)).await??;
    // The id in the header is not signed; the body is, and it tells the moment of its event.
    let delivery = format!("sha256:{}", hex::encode(Sha256::digest(body)));
    heard(
        &app,
        template,
        Sender::Github,
        delivery,
        github::heard(event, &payload),
    )
    .await
}

/// Start an experiment from GitLab
///
/// As GitLab sends it: pushes, tags and merge requests, with the template's secret as its secret token
/// (`X-Gitlab-Token`), or with its signing token (`webhook-signature`), which is preferred when both are there. Deleted
/// branches, other branches than the template's, and merge requests of forks start nothing.
#[utoipa::path(post, path = "/v1/webhooks/gitlab/{template_id}", operation_id = "triggerFromGitlab", tag = "webhooks", security(()),
    params(("template_id" = TemplateId, Path), ("X-Gitlab-Token" = Option<String>, Header), ("webhook-id" = Option<String>, Header),
        ("webhook-timestamp" = Option<String>, Header), ("webhook-signature" = Option<String>, Header),
        ("Idempotency-Key" = Option<String>, Header)),
    request_body = serde_json::Value,
    responses((status = 202, description = "Started, now or by this delivery before", body = CiStarted),
        (status = 200, description = "Taken, and nothing started; `ignored` says why", body = CiStarted), Problems))]
pub(crate) async fn gitlab(
    State(app): State<App>,
    Id(id): Id<TemplateId>,
    headers: HeaderMap,
    webhook: Webhook,
) -> Answer {
    let body = &webhook.body;
    let (template, delivery) = from_gitlab(&app, id, &headers, body).await?;
    let read = body.clone();
    let payload = aside(move || payload_of(&read)).await??;
    let delivery = match delivery {
        "" => format!("sha256:{}", hex::encode(Sha256::digest(body))),
        named => named.chars().take(200).collect(),
    };
    heard(
        &app,
        template,
        Sender::Gitlab,
        delivery,
        gitlab::heard(&payload),
    )
    .await
}

/// The template of a delivery that proves to know its secret, and the delivery's id, if it has one.
async fn from_gitlab<'a>(
    app: &App,
    id: TemplateId,
    headers: &'a HeaderMap,
    body: &[u8],
) -> Result<(Template, &'a str), Problem> {
    if let Some(signature) = header(headers, "webhook-signature") {
        let (delivery, sent) = (
            required(headers, "webhook-id")?,
            required(headers, "webhook-timestamp")?,
        );
        if !is_fresh(sent) {
            return Err(Problem::unproven(
                "webhook-timestamp is more than five minutes off",
            ));
        }
        let signed = [delivery.as_bytes(), b".", sent.as_bytes(), b".", body].concat();
        let is_proof = |secret: &[u8; 32]| is_standard(signature, secret, &signed);
        Ok((verified(app, id, is_proof).await?, delivery))
    } else {
        let token = required(headers, "x-gitlab-token")?;
        let is_proof =
            |secret: &[u8; 32]| bool::from(hex::encode(secret).as_bytes().ct_eq(token.as_bytes()));
        let delivery =
            header(headers, "idempotency-key").or(header(headers, "x-gitlab-event-uuid"));
        let template = verified(app, id, is_proof).await?;
        Ok((template, delivery.unwrap_or_default()))
    }
}

/// A payload, in a form or not.
fn payload_in(body: &[u8], is_form: bool) -> Result<Value, Problem> {
    if !is_form {
        return payload_of(body);
    }
    let payload = form_urlencoded::parse(body).find(|(name, _)| name == "payload");
    let (_, payload) = payload.ok_or_else(|| Problem::malformed("the form has no payload"))?;
    payload_of(payload.as_bytes())
}

/// A payload: unlike a document of ours it is not stored, and somebody may write about NUL characters in it.
fn payload_of(body: &[u8]) -> Result<Value, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::malformed(error.to_string()))
}

fn is_fresh(sent: &str) -> bool {
    let sent = sent
        .parse()
        .ok()
        .and_then(|seconds| DateTime::from_timestamp(seconds, 0));
    sent.is_some_and(|sent| (real_now() - sent).abs() <= SKEW_MAX)
}

/// Whether one of the signatures, `v1,` and base64 each, is that of what is signed (Standard Webhooks 1.0.0). It is
/// computed once, however many are sent: nobody has proven anything yet.
fn is_standard(signatures: &str, key: &[u8], signed: &[u8]) -> bool {
    let own = mac(key, signed).finalize().into_bytes();
    signatures.split(' ').take(SIGNATURES_MAX).any(|one| {
        let given = one.strip_prefix("v1,").map(|text| STANDARD.decode(text));
        given.is_some_and(|given| given.is_ok_and(|given| bool::from(given.ct_eq(own.as_slice()))))
    })
}

/// Starts what somebody else's webhook tells of, if it tells of a commit. A commit that is not measured is kept, and its
/// reason is shown beside it.
async fn heard(
    app: &App,
    template: Template,
    sender: Sender,
    id: String,
    heard: Result<DeliveryContent, String>,
) -> Answer {
    let (event, trigger, refused) = match heard.map_err(Problem::malformed)? {
        DeliveryContent::Ignored(why) => return Ok(ignored(why)),
        DeliveryContent::Refused(event, trigger, why) => (event, trigger, Some(why)),
        DeliveryContent::Trigger(event, trigger) => (event, trigger, None),
    };
    let told = SignedDelivery {
        id,
        sender,
        event,
        trigger,
        is_repeat: false,
    };
    if let Err(problem) = unmeasured::check_repository(app, &template, &told).await {
        // The commit is not one of the repository that statuses are sent to.
        unmeasured::note_refusal(app, template.id, &told, &problem, None).await;
        return Err(problem);
    }
    if let Some(why) = unmeasured_because(app, &template, &told, refused).await? {
        return Ok(ignored(why));
    }
    start(app, template, told).await
}

/// Why the commit of a webhook is not measured, which is kept and shown; `refused`: if its event says so by itself.
async fn unmeasured_because(
    app: &App,
    template: &Template,
    told: &SignedDelivery,
    refused: Option<String>,
) -> Result<Option<String>, Problem> {
    let (settings, trigger, now) = (&template.settings, &told.trigger, app.clock.now());
    if let Some(why) = settings.ignores(told.event, trigger) {
        let delay = settings.ignored_shown_after(told.event, trigger);
        let (outcome, shown_at) = (Unmeasured::Ignored, Some(now + delay));
        unmeasured::note(app, template.id, told, outcome, &why, shown_at).await?;
        return Ok(Some(why));
    }
    let unsaid = template::unsaid(&to_json(&template.spec)?, trigger);
    let unsaid = unsaid
        .map(|name| format!("this template needs ${{ci.{name}}}, which this event does not say"));
    let Some(why) = refused.or(unsaid) else {
        return Ok(None);
    };
    let reason = format!("{why}; bakeoff gate can measure it");
    let (outcome, shown_at) = (Unmeasured::Refused, Some(now));
    unmeasured::note(app, template.id, told, outcome, &reason, shown_at).await?;
    Ok(Some(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of GitHub's documentation ("Validating webhook deliveries") and of Standard Webhooks 1.0.0.
    #[test]
    fn published_signatures_hold_and_no_others() {
        let digest = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        let (key, body) = (b"It's a Secret to Everybody", b"Hello, World!");
        let signature = format!("sha256={digest}");
        assert!(is_signed(&signature, key, body));
        assert!(!is_signed(&signature, key, b"Hello, World"));
        assert!(!is_signed(&signature, b"another", body));
        for forged in [
            "",
            "sha256=",
            digest,
            "sha256=zz",
            "sha1=00",
            &signature[..40],
        ] {
            assert!(!is_signed(forged, key, body), "{forged}");
        }
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = br#"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}"#;
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert!(is_standard(
            &format!("v1a,x v1,AAAA {signature}"),
            &key,
            signed
        ));
        assert!(!is_standard(
            signature,
            &key,
            b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265331.{}"
        ));
        assert!(!is_standard(&signature.replace("v1", "v2"), &key, signed));
    }

    /// Whoever does not know the secret guesses, shortens, or sends what another has signed. `BAKEOFF_FORGERIES` says how
    /// many, in thousands.
    #[test]
    fn no_forgery_is_taken() {
        let secret = ci_secret(&[7; 32], TemplateId(uuid::Uuid::from_u128(1)), 1);
        let other = ci_secret(&[7; 32], TemplateId(uuid::Uuid::from_u128(2)), 1);
        let key = hex::encode(secret);
        let asked = std::env::var("BAKEOFF_FORGERIES").ok();
        let thousands: u32 = asked.map_or(40, |text| text.parse().expect("thousands"));
        for number in 0..thousands * 500 {
            let body = format!("{{\"delivery_id\": \"{number}\"}}");
            let guess = hex::encode(
                mac(&number.to_le_bytes(), body.as_bytes())
                    .finalize()
                    .into_bytes(),
            );
            let others = hex::encode(
                mac(hex::encode(other).as_bytes(), body.as_bytes())
                    .finalize()
                    .into_bytes(),
            );
            for forged in [guess, others] {
                assert!(!is_signed(
                    &format!("sha256={forged}"),
                    key.as_bytes(),
                    body.as_bytes()
                ));
            }
        }
    }
}
