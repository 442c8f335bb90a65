//! CloudWatch: GetMetricData and ListMetrics, implemented once on JSON values; CBOR is converted to
//! and from them. The Rust SDK speaks only rpc-v2-cbor, boto3 awsJson1_0.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use ciborium::Value as Cbor;
use serde_json::{Map, Value, json};

use super::setup;
use super::{after, before};
use crate::account::epoch::epoch;
use crate::account::faults::CallFault;
use crate::account::refusal::{Refusal, invalid};
use crate::output::metrics::{self, Request};
use crate::world::World;
use crate::world::region::Region;

const NAMESPACE: &str = "/aws/sagemaker/TrainingJobs";
const QUERIES_MAX: usize = 500;

pub(super) fn call(region: &Region, operation: &str, body: &Value) -> Result<Value, Refusal> {
    region.with_time(|world, now| {
        if world.throttles(operation, now) {
            return Err(Refusal {
                code: "ThrottlingException",
                message: "Rate exceeded".to_owned(),
            });
        }
        match operation {
            "GetMetricData" => get_metric_data(world, body, now),
            "ListMetrics" => Ok(list_metrics(world, body)),
            other => Err(invalid(format!(
                "the simulated region does not know {other}"
            ))),
        }
    })
}

fn get_metric_data(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<Value, Refusal> {
    let queries = body["MetricDataQueries"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if queries.is_empty() || queries.len() > QUERIES_MAX {
        return Err(Refusal {
            code: "ValidationError",
            message: format!(
                "The collection MetricDataQueries must contain between 1 and {QUERIES_MAX} members."
            ),
        });
    }
    let (start, end) = (moment(&body["StartTime"])?, moment(&body["EndTime"])?);
    if start >= end {
        return Err(Refusal {
            code: "ValidationError",
            message: "The parameter StartTime must be less than the parameter EndTime.".to_owned(),
        });
    }
    let page = page(world, body, now)?;
    // On a first page, PartialData means no more than that the rest is on the second.
    let is_partial = page.part == SeriesPart::Whole
        && world.happens(world.faults.partial_metrics, "partial_metrics");
    let newest_first = body["ScanBy"].as_str() != Some("TimestampAscending");
    let mut results = Vec::with_capacity(queries.len());
    for query in queries {
        let mut points = metrics::series(world, &request(query, start, end), page.as_of);
        let is_failed = page.part != SeriesPart::Second
            && world.happens(world.faults.failed_series, "failed_series");
        if newest_first {
            points.reverse();
        }
        let middle = points.len() / 2;
        match page.part {
            SeriesPart::Whole | SeriesPart::First if is_failed => points.clear(),
            SeriesPart::Whole => {}
            SeriesPart::First => points.truncate(middle),
            SeriesPart::Second => drop(points.drain(..middle)),
        }
        if is_partial {
            points.truncate(points.len() / 2);
        }
        results.push(json!({
            "Id": query["Id"],
            "Label": query["MetricStat"]["Metric"]["MetricName"],
            "StatusCode": match page.part {
                _ if is_failed => "InternalError",
                SeriesPart::First => "PartialData",
                SeriesPart::Whole if is_partial => "PartialData",
                SeriesPart::Whole | SeriesPart::Second => "Complete",
            },
            "Timestamps": points.iter().map(|(at, _)| epoch(*at)).collect::<Vec<_>>(),
            "Values": points.iter().map(|(_, value)| *value).collect::<Vec<_>>(),
        }));
    }
    let mut answer = json!({ "MetricDataResults": results, "Messages": [] });
    if page.part == SeriesPart::First {
        answer["NextToken"] = json!(format!(
            "after-{}-{}",
            page.as_of.timestamp_millis(),
            world.account
        ));
    }
    Ok(answer)
}

/// Counts these metrics: the caller cannot know whether they were read, and may book them.
fn count_unserved(world: &mut World, body: &Value) {
    for query in body["MetricDataQueries"].as_array().into_iter().flatten() {
        let value = query["MetricStat"]["Metric"]["Dimensions"][0]["Value"]
            .as_str()
            .unwrap_or("");
        *world
            .metrics_unserved
            .entry(metrics::job_of(value))
            .or_default() += 1;
    }
}

/// Which part of the series an answer contains.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SeriesPart {
    Whole,
    First,
    Second,
}

struct MetricPage {
    part: SeriesPart,
    /// Points published later are on neither page.
    as_of: DateTime<Utc>,
}

fn page(world: &mut World, body: &Value, now: DateTime<Utc>) -> Result<MetricPage, Refusal> {
    if let Some(token) = body["NextToken"].as_str() {
        // A token from another account is invalid.
        let own = token.strip_suffix(&format!("-{}", world.account));
        let millis = own.and_then(|token| token.strip_prefix("after-")?.parse().ok());
        let as_of = millis.and_then(DateTime::from_timestamp_millis);
        let refusal = || Refusal {
            code: "InvalidNextToken",
            message: "The next token is invalid".to_owned(),
        };
        return Ok(MetricPage {
            part: SeriesPart::Second,
            as_of: as_of.ok_or_else(refusal)?,
        });
    }
    let is_long = world.happens(world.faults.metric_pages, "metric_pages");
    Ok(MetricPage {
        part: if is_long {
            SeriesPart::First
        } else {
            SeriesPart::Whole
        },
        as_of: now,
    })
}

fn request(query: &Value, start: DateTime<Utc>, end: DateTime<Utc>) -> Request {
    let asked = &query["MetricStat"];
    let dimension = &asked["Metric"]["Dimensions"][0];
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    // Another namespace means another metric, and this region publishes only one namespace.
    let metric = if asked["Metric"]["Namespace"] == NAMESPACE {
        text(&asked["Metric"]["MetricName"])
    } else {
        String::new()
    };
    Request {
        metric,
        dimension: text(&dimension["Name"]),
        value: text(&dimension["Value"]),
        period_seconds: asked["Period"].as_i64().unwrap_or(60),
        start,
        end,
    }
}

fn moment(value: &Value) -> Result<DateTime<Utc>, Refusal> {
    let parsed = match value {
        Value::Number(number) => number.as_f64().and_then(|seconds| {
            let scale =
                DateTime::UNIX_EPOCH.checked_add_signed(bakeoff_domain::clock::seconds(seconds));
            scale.filter(|_| seconds > 0.0)
        }),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    parsed.ok_or_else(|| Refusal {
        code: "ValidationError",
        message: "StartTime and EndTime are required".to_owned(),
    })
}

fn list_metrics(world: &World, body: &Value) -> Value {
    let wanted = body["MetricName"].as_str();
    let filters = body["Dimensions"].as_array().map_or(&[][..], Vec::as_slice);
    let mut found = Vec::new();
    for job in &world.jobs {
        let hosts = (1..=job.count).map(|n| ("Host", format!("{}/algo-{n}", job.name)));
        for (dimension, value) in hosts.chain([("TrainingJobName", job.name.clone())]) {
            let names: Vec<&str> = if dimension == "Host" {
                bakeoff_domain::sagemaker::metrics::HOST_METRICS.to_vec()
            } else {
                let definitions =
                    job.request["AlgorithmSpecification"]["MetricDefinitions"].as_array();
                definitions
                    .into_iter()
                    .flatten()
                    .filter_map(|definition| definition["Name"].as_str())
                    .collect()
            };
            let matches = filters.iter().all(|filter| {
                filter["Name"] == dimension
                    && (filter["Value"].is_null() || filter["Value"] == value.as_str())
            });
            for name in names
                .into_iter()
                .filter(|name| matches && wanted.is_none_or(|wanted| wanted == *name))
            {
                found.push(json!({
                    "Namespace": NAMESPACE, "MetricName": name, "Dimensions": [{ "Name": dimension, "Value": value }],
                }));
            }
        }
    }
    json!({ "Metrics": found })
}

/// Smithy rpc-v2-cbor. Errors carry `x-amzn-query-error`, because the service is in
/// query-compatible mode.
pub(super) async fn cbor(
    State(region): State<Region>,
    Path(operation): Path<String>,
    body: Bytes,
) -> Response {
    let fault = region.with(World::call_fault);
    let asked = ciborium::from_reader::<Cbor, _>(body.as_ref()).map(to_json);
    if fault.is_some_and(CallFault::is_before)
        && let Ok(asked) = &asked
    {
        region.with(|world| count_unserved(world, asked));
    }
    if let Some(answer) = before(fault).await {
        return answer;
    }
    let answer = match asked {
        Ok(asked) => setup::authorized(&region, "GraniteServiceVersion20100801", &operation)
            .and_then(|()| call(&region, &operation, &asked))
            .inspect_err(|_| {
                // The caller does not even learn that it was refused.
                if fault.is_some() {
                    region.with(|world| count_unserved(world, &asked));
                }
            }),
        Err(error) => Err(Refusal {
            code: "SerializationException",
            message: error.to_string(),
        }),
    };
    let protocol = [
        ("smithy-protocol", "rpc-v2-cbor"),
        (header::CONTENT_TYPE.as_str(), "application/cbor"),
    ];
    let answer = match answer {
        Ok(value) => (protocol, encode(&value)).into_response(),
        Err(refusal) => {
            let body = json!({ "__type": refusal.code, "message": refusal.message });
            let code = format!("{};Sender", refusal.code);
            (
                StatusCode::BAD_REQUEST,
                protocol,
                [("x-amzn-query-error", code)],
                encode(&body),
            )
                .into_response()
        }
    };
    after(fault, answer).await
}

fn to_json(value: Cbor) -> Value {
    match value {
        Cbor::Text(text) => Value::String(text),
        Cbor::Bool(flag) => Value::Bool(flag),
        Cbor::Float(number) => json!(number),
        Cbor::Integer(number) => i64::try_from(number).map_or(Value::Null, |number| json!(number)),
        // Tag 1 is a timestamp in seconds.
        Cbor::Tag(_, inner) => to_json(*inner),
        Cbor::Array(items) => Value::Array(items.into_iter().map(to_json).collect()),
        Cbor::Map(entries) => {
            let text = |key: Cbor| key.into_text().unwrap_or_default();
            Value::Object(
                entries
                    .into_iter()
                    .map(|(key, value)| (text(key), to_json(value)))
                    .collect::<Map<_, _>>(),
            )
        }
        _ => Value::Null,
    }
}

fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Writing to memory cannot fail.
    drop(ciborium::into_writer(&from_json(value, ""), &mut bytes));
    bytes
}

fn from_json(value: &Value, key: &str) -> Cbor {
    match value {
        Value::Null => Cbor::Null,
        Value::Bool(flag) => Cbor::Bool(*flag),
        Value::Number(number) if key == "Timestamps" => Cbor::Tag(
            1,
            Box::new(Cbor::Float(number.as_f64().unwrap_or(f64::NAN))),
        ),
        Value::Number(number) => Cbor::Float(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Cbor::Text(text.clone()),
        Value::Array(items) => Cbor::Array(items.iter().map(|item| from_json(item, key)).collect()),
        Value::Object(entries) => Cbor::Map(
            entries
                .iter()
                .map(|(key, value)| (Cbor::Text(key.clone()), from_json(value, key)))
                .collect(),
        ),
    }
}
