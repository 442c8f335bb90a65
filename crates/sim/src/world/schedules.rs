//! One-time schedules (EventBridge Scheduler): created, moved, deleted, and carried out at their time by the region
//! itself, whether or not a client is connected. A call that SageMaker refuses is repeated with growing waits until the
//! retry policy gives up. Rules: EventBridge Scheduler API and user guide; the waits between retries are assumed.

mod runs;

use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use crate::account::refusal::{Refusal, invalid};
use crate::jobs::model_packages::Call;

/// The first wait after a call that failed; it doubles up to [`WAIT_MAX`].
const WAIT: TimeDelta = TimeDelta::minutes(1);
const WAIT_MAX: TimeDelta = TimeDelta::minutes(8);
const RETRIES: u64 = 185;
const AGE_SECONDS: u64 = 86_400;
const TARGET: &str = "arn:aws:scheduler:::aws-sdk:sagemaker:";

/// A schedule that has not ended what it was made for.
#[derive(Debug)]
struct Schedule {
    account: String,
    name: String,
    request: Value,
    created_at: DateTime<Utc>,
    at: DateTime<Utc>,
    /// When its target is called next.
    next_at: DateTime<Utc>,
    /// Calls of its target that failed.
    failures: u64,
    last_failure: Option<String>,
}

/// All schedules, and what became of those that are over.
#[derive(Debug, Default)]
pub(crate) struct Schedules {
    all: Vec<Schedule>,
    over: Vec<Value>,
    moved: u64,
}

pub(crate) fn refused(code: &'static str, message: String) -> Refusal {
    Refusal { code, message }
}

fn missing(name: &str) -> Refusal {
    refused(
        "ResourceNotFoundException",
        format!("Schedule {name} does not exist."),
    )
}

/// The moment of an `at(…)` expression in UTC.
fn moment(body: &Value, now: DateTime<Utc>) -> Result<DateTime<Utc>, Refusal> {
    let text = body["ScheduleExpression"].as_str().unwrap_or_default();
    let at = text
        .strip_prefix("at(")
        .and_then(|rest| rest.strip_suffix(')'))
        .and_then(|text| NaiveDateTime::parse_from_str(text, "%Y-%m-%dT%H:%M:%S").ok());
    let zone = body["ScheduleExpressionTimezone"].as_str().unwrap_or("UTC");
    let at = at.filter(|_| zone == "UTC").map(|at| at.and_utc());
    let at = at.ok_or_else(|| invalid(format!("Invalid Schedule Expression {text}.")))?;
    if at < now {
        return Err(invalid(format!(
            "Invalid Schedule Expression {text}: it is in the past."
        )));
    }
    Ok(at)
}

/// Whether a request is well-formed, and what it calls is something that this region has.
fn check(name: &str, body: &Value) -> Result<(), Refusal> {
    let is_name = (1..=64).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !is_name {
        return Err(invalid(format!(
            "1 validation error detected: Value '{name}' at 'name' failed to satisfy constraint: Member must satisfy regular expression pattern: ^[0-9a-zA-Z-_.]+$"
        )));
    }
    if body["FlexibleTimeWindow"]["Mode"] != "OFF" {
        return Err(invalid("FlexibleTimeWindow.Mode must be OFF or FLEXIBLE"));
    }
    let token = body["ClientToken"].as_str().unwrap_or("token");
    let is_token = (1..=64).contains(&token.len())
        && token
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    if !is_token {
        return Err(invalid("Invalid ClientToken"));
    }
    let target = &body["Target"];
    let arn = target["Arn"].as_str().unwrap_or_default();
    let is_known = matches!(
        arn.strip_prefix(TARGET),
        Some("deleteEndpoint" | "stopTransformJob")
    );
    if !is_known || !target["RoleArn"].is_string() {
        return Err(invalid(format!(
            "Provided Arn is not in correct format or not supported: {arn}"
        )));
    }
    let input = target["Input"].as_str().unwrap_or_default();
    let input: Result<Value, _> = serde_json::from_str(input);
    if !input.is_ok_and(|input| input.is_object()) {
        return Err(invalid("Input must be a JSON object"));
    }
    let retries = target["RetryPolicy"]["MaximumRetryAttempts"].as_u64();
    let age = target["RetryPolicy"]["MaximumEventAgeInSeconds"].as_u64();
    if retries.is_some_and(|most| most > RETRIES)
        || age.is_some_and(|most| !(60..=AGE_SECONDS).contains(&most))
    {
        return Err(invalid("Invalid RetryPolicy"));
    }
    Ok(())
}

impl Schedules {
    pub(crate) fn create(&mut self, name: &str, call: Call<'_>) -> Result<Value, Refusal> {
        check(name, call.body)?;
        let at = moment(call.body, call.now)?;
        if let Ok(known) = self.find(name, call.account) {
            if known.request["ClientToken"] == call.body["ClientToken"] {
                return Ok(arn(name, call));
            }
            return Err(refused(
                "ConflictException",
                format!("Schedule {name} already exists."),
            ));
        }
        self.all.push(Schedule {
            account: call.account.to_owned(),
            name: name.to_owned(),
            request: call.body.clone(),
            created_at: call.now,
            at,
            next_at: at,
            failures: 0,
            last_failure: None,
        });
        Ok(arn(name, call))
    }

    pub(crate) fn update(&mut self, name: &str, call: Call<'_>) -> Result<Value, Refusal> {
        check(name, call.body)?;
        let at = moment(call.body, call.now)?;
        let found = self.find(name, call.account)?;
        found.request = call.body.clone();
        (found.at, found.next_at, found.failures) = (at, at, 0);
        self.moved += 1;
        Ok(arn(name, call))
    }

    pub(crate) fn get(&mut self, name: &str, call: Call<'_>) -> Result<Value, Refusal> {
        let found = self.find(name, call.account)?;
        let mut told = found.request.clone();
        if let Some(told) = told.as_object_mut() {
            told.remove("ClientToken");
        }
        told["Name"] = json!(name);
        told["GroupName"] = json!("default");
        told["State"] = json!("ENABLED");
        told["Arn"] = arn(name, call)["ScheduleArn"].clone();
        Ok(told)
    }

    pub(crate) fn delete(&mut self, name: &str, call: Call<'_>) -> Result<Value, Refusal> {
        self.find(name, call.account)?;
        let is_meant = |one: &Schedule| one.name == name && one.account == call.account;
        if let Some(place) = self.all.iter().position(is_meant) {
            let gone = self.all.remove(place);
            self.over.push(gone.record("cancelled", Some(call.now)));
        }
        Ok(json!({}))
    }

    pub(crate) fn count(&self) -> usize {
        self.all.len()
    }

    fn find(&mut self, name: &str, account: &str) -> Result<&mut Schedule, Refusal> {
        let mut all = self.all.iter_mut();
        let found = all.find(|one| one.name == name && one.account == account);
        found.ok_or_else(|| missing(name))
    }

    /// The one whose target is to be called first, if that is by now.
    fn first_due(&self, now: DateTime<Utc>) -> Option<usize> {
        let due = self.all.iter().enumerate();
        let due = due.filter(|(_, one)| one.next_at <= now);
        due.min_by_key(|(_, one)| one.next_at)
            .map(|(place, _)| place)
    }

    /// Schedules that wait, and what became of the others, for the region's record.
    pub(crate) fn record(&self) -> Value {
        let left: Vec<Value> = self
            .all
            .iter()
            .map(|one| one.record("waits", None))
            .collect();
        json!({ "left": left, "over": self.over, "moved": self.moved })
    }
}

impl Schedule {
    fn record(&self, outcome: &str, at: Option<DateTime<Utc>>) -> Value {
        json!({
            "name": self.name, "account": self.account, "created_at": self.created_at, "at": self.at,
            "target": self.request["Target"]["Arn"], "input": self.request["Target"]["Input"],
            "outcome": outcome, "over_at": at, "failures": self.failures, "last_failure": self.last_failure,
        })
    }

    /// When its target is called again after a failure, unless the retry policy gives up.
    fn again(&self) -> Option<DateTime<Utc>> {
        let policy = &self.request["Target"]["RetryPolicy"];
        let retries = policy["MaximumRetryAttempts"].as_u64().unwrap_or(RETRIES);
        let age = policy["MaximumEventAgeInSeconds"].as_u64();
        let age = i64::try_from(age.unwrap_or(AGE_SECONDS)).unwrap_or(0);
        let doublings = i32::try_from(self.failures.saturating_sub(1).min(8)).unwrap_or(8);
        let wait = (WAIT * 2_i32.pow(doublings.unsigned_abs())).min(WAIT_MAX);
        let next = self.next_at + wait;
        let is_young = next <= self.at + TimeDelta::seconds(age);
        (self.failures <= retries && is_young).then_some(next)
    }
}

/// A call of a target.
struct DueCall {
    account: String,
    target: String,
    input: Value,
    at: DateTime<Utc>,
}

fn arn(name: &str, call: Call<'_>) -> Value {
    let (region, account) = (call.region, call.account);
    json!({ "ScheduleArn": format!("arn:aws:scheduler:{region}:{account}:schedule/default/{name}") })
}

impl Schedules {
    /// The call of a schedule that is due.
    fn call_of(&self, place: usize) -> Option<DueCall> {
        let one = self.all.get(place)?;
        let target = &one.request["Target"];
        let input = target["Input"].as_str().unwrap_or_default();
        Some(DueCall {
            account: one.account.clone(),
            target: target["Arn"].as_str().unwrap_or_default().to_owned(),
            input: serde_json::from_str(input).unwrap_or_default(),
            at: one.next_at,
        })
    }

    /// What became of a call: the schedule is over, or tries again.
    fn heard(&mut self, place: usize, done: Result<(), Refusal>) {
        let Some(one) = self.all.get_mut(place) else {
            return;
        };
        let outcome = match done {
            Ok(()) => "fired",
            Err(refusal) => {
                one.failures += 1;
                one.last_failure = Some(format!("{}: {}", refusal.code, refusal.message));
                if let Some(next) = one.again() {
                    one.next_at = next;
                    return;
                }
                "gave_up"
            }
        };
        let at = one.next_at;
        let gone = self.all.remove(place);
        self.over.push(gone.record(outcome, Some(at)));
    }
}
