//! The wire: which operation is requested, in which protocol. What the operations do is in their
//! own files.

mod cloudwatch;
pub(crate) mod describe;
pub(crate) mod events;
mod iam;
mod kinds;
mod listing;
mod logs;
mod processing;
mod query;
pub(crate) mod rules;
pub(crate) mod s3;
mod sagemaker;
mod scheduler;
mod setup;
pub(crate) mod sns;
mod sts;

use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use bakeoff_domain::clock;
use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

use self::query::Form;
use crate::account::billing::Rate;
use crate::account::faults::{CallFault, Faults};
use crate::account::price_list;
use crate::account::refusal::{Refusal, invalid};
use crate::output::checkpoints;
use crate::output::metrics;
use crate::world::World;
use crate::world::region::Region;
use crate::world::truth::{self, TrainingQuery};

pub(crate) fn router(region: Region) -> Router {
    Router::new()
        .route("/", post(aws))
        .route(
            "/service/GraniteServiceVersion20100801/operation/{operation}",
            post(cloudwatch::cbor),
        )
        .route("/BatchGetMetrics", post(iterations))
        .route("/endpoints/{name}/invocations", post(kinds::invoke))
        .route("/schedules/{name}", any(scheduler::schedule))
        .route("/_sim/record", get(record))
        .route("/_sim/requests/{name}", get(request))
        .route("/_sim/points/{name}", get(points))
        .route("/_sim/prices", post(change_price))
        .route("/_sim/truth", post(judge))
        .route("/_sim/advance", post(advance))
        .route("/_sim/faults", post(set_faults))
        .route("/_sim/account", post(sts::set_account))
        .route("/_sim/setup", post(setup::set))
        .route("/_sim/sns", post(sign))
        .route(sns::CONFIRM_PATH, get(confirm))
        .route(sns::CERTIFICATE_PATH, get(sns::certificate))
        .layer(axum::middleware::from_fn_with_state(
            region.clone(),
            setup::signed,
        ))
        .with_state(region)
}

async fn record(State(region): State<Region>) -> Response {
    axum::Json(region.with_time(|world, now| world.record(now))).into_response()
}

/// The body with which a job was created, as received; of an endpoint, those of its configuration and its model.
async fn request(State(region): State<Region>, Path(name): Path<String>) -> Response {
    region
        .with(|world| {
            let training = world.job(&name).map(|job| job.request.clone());
            let all = training.or_else(|| Some(world.processing_job(&name)?.request.clone()));
            let all = all.or_else(|| {
                let job = world.transforms.iter().find(|job| job.name == name)?;
                Some(job.request.clone())
            });
            let all = all.or_else(|| {
                let job = world.tunings.iter().find(|job| job.name == name)?;
                Some(job.request.clone())
            });
            all.or_else(|| world.endpoints.request(&world.account, &name))
        })
        .map_or_else(
            || StatusCode::NOT_FOUND.into_response(),
            |body| axum::Json(body).into_response(),
        )
}

/// How many points CloudWatch has for each metric that a job defines, and their sum.
async fn points(State(region): State<Region>, Path(name): Path<String>) -> Response {
    let now = region.now();
    region.with(|world| match world.job(&name) {
        Some(job) => axum::Json(metrics::published(job, now)).into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    })
}

/// What full runs would really take; null for one that cannot be.
async fn judge(
    State(region): State<Region>,
    axum::Json(asked): axum::Json<Vec<TrainingQuery>>,
) -> Response {
    let all = region.with(|world| {
        let each = asked.iter().map(|asked| truth::truth(world, asked));
        each.collect::<Vec<_>>()
    });
    axum::Json(all).into_response()
}

#[derive(Deserialize)]
struct Advance {
    /// At most microseconds count.
    seconds: f64,
}

async fn advance(State(region): State<Region>, Query(by): Query<Advance>) -> StatusCode {
    let moved = region.advance(clock::seconds(by.seconds.max(0.0)));
    if moved {
        checkpoints::write_due(&region);
    }
    if moved {
        StatusCode::NO_CONTENT
    } else {
        StatusCode::CONFLICT
    }
}

/// Replaces the faults; those left out no longer happen.
async fn set_faults(
    State(region): State<Region>,
    axum::Json(faults): axum::Json<Faults>,
) -> StatusCode {
    region.with(|world| world.faults = faults);
    StatusCode::NO_CONTENT
}

/// A message for SNS to sign.
#[derive(Deserialize)]
struct Unsigned {
    topic: String,
    kind: String,
    message: String,
}

async fn sign(
    State(region): State<Region>,
    headers: HeaderMap,
    axum::Json(new): axum::Json<Unsigned>,
) -> Response {
    let host = headers
        .get(header::HOST)
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    axum::Json(sns::envelope(
        &format!("http://{host}"),
        &new.topic,
        &new.kind,
        &new.message,
        region.now(),
    ))
    .into_response()
}

async fn confirm(State(region): State<Region>) -> StatusCode {
    region.with(|world| world.subscriptions += 1);
    StatusCode::OK
}

/// STS and IAM speak the query protocol, which names its operation in a form; all others use JSON.
async fn aws(State(region): State<Region>, headers: HeaderMap, body: Bytes) -> Response {
    if headers.contains_key("x-amz-target") {
        aws_json(State(region), headers, body).await
    } else {
        aws_query(&region, &body).await
    }
}

async fn aws_query(region: &Region, body: &Bytes) -> Response {
    let fault = region.with(World::call_fault);
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let form = Form::of(body);
    let operation = form.get("Action");
    let now = region.now();
    let is_known = operation == sts::OPERATION || iam::OPERATIONS.contains(&operation);
    let answer = region.with(|world| {
        if !is_known {
            let message = "the simulated region does not know this operation";
            return query::error(400, "InvalidAction", message);
        }
        if world.throttles(operation, now) {
            return query::error(400, "Throttling", "Rate exceeded");
        }
        if operation == sts::OPERATION {
            sts::caller(&world.account)
        } else {
            iam::call(&world.setup, &world.account, operation, &form)
        }
    });
    after(fault, answer).await
}

/// `X-Amz-Target: <service>.<operation>` with a JSON body.
async fn aws_json(State(region): State<Region>, headers: HeaderMap, body: Bytes) -> Response {
    let target = headers
        .get("x-amz-target")
        .and_then(|value| value.to_str().ok())
        .unwrap_or("");
    let (service, operation) = target.split_once('.').unwrap_or_default();
    let fault = region.with(World::call_fault);
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let answer = call(&region, service, operation, &body);
    let content_type = if service == "GraniteServiceVersion20100801" {
        "application/x-amz-json-1.0"
    } else {
        "application/x-amz-json-1.1"
    };
    let (status, value) = match answer {
        Ok(value) => (StatusCode::OK, value),
        Err(refusal) => (
            status_of(&refusal),
            json!({ "__type": refusal.code, "message": refusal.message }),
        ),
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "a request id is for logs, not part of the world"
    )]
    let id = uuid::Uuid::now_v7().to_string();
    let headers = [
        (header::CONTENT_TYPE.as_str(), content_type.to_owned()),
        ("x-amzn-requestid", id),
    ];
    after(fault, (status, headers, value.to_string()).into_response()).await
}

fn call(region: &Region, service: &str, operation: &str, body: &[u8]) -> Result<Value, Refusal> {
    let body: Value = serde_json::from_slice(body).map_err(|error| Refusal {
        code: "SerializationException",
        message: error.to_string(),
    })?;
    setup::authorized(region, service, operation)?;
    // A job's output is in S3 before anybody is told that it has completed; the answer is of a moment later than now.
    if matches!(
        operation,
        "DescribeProcessingJob" | "DescribeTransformJob" | "DescribeHyperParameterTuningJob"
    ) {
        checkpoints::write_outputs(region, region.now() + TimeDelta::seconds(30));
    }
    match service {
        "SageMaker" => sagemaker::call(region, operation, body),
        "GraniteServiceVersion20100801" => cloudwatch::call(region, operation, &body),
        "Logs_20140328" => logs::call(region, operation, &body),
        "ServiceQuotasV20190624" => list_quotas(region, operation, &body),
        "AmazonEC2ContainerRegistry_V20150921" if operation == "BatchGetImage" => {
            Ok(setup::batch_get_image(region, &body))
        }
        "AWSPriceListService" => get_products(region, operation, &body),
        other => Err(invalid(format!("this region has no service {other}"))),
    }
}

/// A price change at AWS.
#[derive(Deserialize)]
struct NewPrice {
    instance_type: String,
    micro_usd: i64,
    effective_from: DateTime<Utc>,
}

async fn change_price(
    State(region): State<Region>,
    axum::Json(new): axum::Json<NewPrice>,
) -> StatusCode {
    let rate = Rate {
        effective_from: new.effective_from,
        micro_usd: new.micro_usd,
    };
    region.with(|world| world.rates.change(&new.instance_type, rate));
    StatusCode::NO_CONTENT
}

fn get_products(region: &Region, operation: &str, body: &Value) -> Result<Value, Refusal> {
    let now = region.now();
    region.with(|world| {
        if world.throttles(operation, now) {
            return Err(Refusal {
                code: "ThrottlingException",
                message: "Rate exceeded".to_owned(),
            });
        }
        match operation {
            "GetProducts" => price_list::get_products(&world.rates, body, now),
            other => Err(invalid(format!(
                "the simulated region does not know {other}"
            ))),
        }
    })
}

/// SageMaker Metrics: BatchGetMetrics, restJson1.
async fn iterations(State(region): State<Region>, axum::Json(body): axum::Json<Value>) -> Response {
    let fault = region.with(World::call_fault);
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let now = region.now();
    let answer = region.with(|world| {
        if world.throttles("BatchGetMetrics", now) {
            return None;
        }
        let queries = body["MetricQueries"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        Some(
            queries
                .iter()
                .map(|query| metrics::iterations(world, query, now))
                .collect::<Vec<_>>(),
        )
    });
    let answer = if let Some(results) = answer {
        axum::Json(json!({ "MetricQueryResults": results })).into_response()
    } else {
        let body = axum::Json(json!({ "message": "Rate exceeded" }));
        (
            StatusCode::TOO_MANY_REQUESTS,
            [("x-amzn-errortype", "ThrottlingException")],
            body,
        )
            .into_response()
    };
    after(fault, answer).await
}

fn list_quotas(region: &Region, operation: &str, body: &Value) -> Result<Value, Refusal> {
    let now = region.now();
    region.with(|world| {
        if world.throttles(operation, now) {
            return Err(Refusal {
                code: "TooManyRequestsException",
                message: "Rate exceeded".to_owned(),
            });
        }
        match operation {
            "ListServiceQuotas" => Ok(world.quotas.list(body)),
            other => Err(invalid(format!(
                "the simulated region does not know {other}"
            ))),
        }
    })
}

/// Longer than any client waits.
const HANG: Duration = Duration::from_secs(40);
const SLOW: Duration = Duration::from_millis(300);

#[expect(clippy::disallowed_methods, reason = "a fault takes real time")]
async fn wait(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Closes the connection without a reply: the task that serves it ends, and nothing is printed.
fn reset() -> ! {
    std::panic::resume_unwind(Box::new("the connection is reset, as asked"))
}

/// Applies a fault that prevents a call from being carried out.
async fn before(fault: Option<CallFault>) -> Option<Response> {
    match fault? {
        CallFault::ServerError => {
            let body =
                json!({ "__type": "InternalFailure", "message": "An internal failure occurred" });
            Some((StatusCode::INTERNAL_SERVER_ERROR, body.to_string()).into_response())
        }
        CallFault::HangBefore => {
            wait(HANG).await;
            reset()
        }
        CallFault::ResetBefore => reset(),
        CallFault::ExpiredCredentials => Some(refuse(
            "ExpiredTokenException",
            "The security token included in the request is expired",
        )),
        CallFault::UnknownCode => Some(refuse(
            "SomethingNewException",
            "A rule that nobody has heard of yet",
        )),
        CallFault::HangAfter | CallFault::ResetAfter | CallFault::Truncate | CallFault::Slow => {
            None
        }
    }
}

/// A refusal for every protocol at once: the headers carry the code for clients that do not read it
/// from the body.
fn refuse(code: &'static str, message: &str) -> Response {
    let body = json!({ "__type": code, "message": message });
    let headers = [
        ("x-amzn-errortype", code.to_owned()),
        ("x-amzn-query-error", format!("{code};Sender")),
    ];
    (StatusCode::BAD_REQUEST, headers, body.to_string()).into_response()
}

/// Applies a fault that spoils the answer to a call that was carried out.
async fn after(fault: Option<CallFault>, answer: Response) -> Response {
    match fault {
        Some(CallFault::HangAfter) => {
            wait(HANG).await;
            reset()
        }
        Some(CallFault::ResetAfter) => reset(),
        Some(CallFault::Slow) => {
            wait(SLOW).await;
            answer
        }
        Some(CallFault::Truncate) => truncated(answer).await,
        Some(
            CallFault::ServerError
            | CallFault::HangBefore
            | CallFault::ResetBefore
            | CallFault::ExpiredCredentials
            | CallFault::UnknownCode,
        )
        | None => answer,
    }
}

/// Sends the headers and the first half of the body, then breaks off.
async fn truncated(answer: Response) -> Response {
    let (parts, body) = answer.into_parts();
    let whole = axum::body::to_bytes(body, usize::MAX)
        .await
        .unwrap_or_default();
    let half = whole.slice(..whole.len() / 2);
    let cut = std::io::Error::other("cut off, as asked");
    let chunks = futures::stream::iter([Ok(half), Err(cut)]);
    let mut parts = parts;
    parts
        .headers
        .insert(header::CONTENT_LENGTH, whole.len().into());
    Response::from_parts(parts, Body::from_stream(chunks))
}

fn status_of(refusal: &Refusal) -> StatusCode {
    if refusal.code == "InternalFailure" {
        StatusCode::INTERNAL_SERVER_ERROR
    } else {
        StatusCode::BAD_REQUEST
    }
}
