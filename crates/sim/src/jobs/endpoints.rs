//! Models, endpoint configurations and endpoints: created, updated, described, listed, deleted, invoked and billed.
//! Rules: SageMaker API and its model in botocore; error texts as public reports show them
//! (amazon-sagemaker-operator-for-k8s, sagemaker-python-sdk).

mod parts;

use std::collections::BTreeMap;

use bakeoff_domain::catalog;
use bakeoff_domain::catalog::serving::Serving;
use chrono::{DateTime, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use self::parts::{Kind, ServingPart, create_part, delete_part, describe_part, key, missing};
use crate::account::billing::{self, RateCard, Span};
use crate::account::epoch::epoch;
use crate::account::refusal::{Refusal, invalid};
use crate::account::request::tags;
use crate::jobs::model_packages::Call;

/// How long SageMaker tries a container that does not answer (F54713379160).
const GIVE_UP_SECONDS: i64 = 24 * 60;
const DELETE_SECONDS: i64 = 90;
/// What an image or a model is called that never answers, and one that answers with an error.
const SILENT: &str = "crashes";
const BROKEN: &str = "broken";

/// A change of an endpoint: its creation is the first.
#[derive(Debug, Clone)]
struct Change {
    config: String,
    at: DateTime<Utc>,
    until: DateTime<Utc>,
    /// Why it does not succeed.
    failure: Option<&'static str>,
}

#[derive(Debug)]
struct Endpoint {
    account: String,
    name: String,
    arn: String,
    tags: BTreeMap<String, String>,
    instance_type: String,
    count: u32,
    volume_gb: i64,
    changes: Vec<Change>,
    delete_asked_at: Option<DateTime<Utc>>,
    lag: TimeDelta,
}

/// What is drawn for a change.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SampledDurations {
    pub(crate) seed: u64,
    /// Nothing can be launched.
    pub(crate) lacks_capacity: bool,
    /// The same time for each; drawn when `None`.
    pub(crate) launch_seconds: Option<f64>,
    pub(crate) lag: TimeDelta,
    /// Instances that may serve at once, of each type.
    pub(crate) quota: u32,
}

impl SampledDurations {
    /// For a call that changes nothing that is drawn.
    pub(crate) fn nothing() -> Self {
        Self {
            seed: 0,
            lacks_capacity: false,
            launch_seconds: None,
            lag: TimeDelta::zero(),
            quota: u32::MAX,
        }
    }
}

/// All models, configurations and endpoints, by account and name.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    models: BTreeMap<(String, String), ServingPart>,
    configs: BTreeMap<(String, String), ServingPart>,
    all: Vec<Endpoint>,
}

/// 1 to 63 letters, digits and hyphens.
fn named(call: Call<'_>, field: &str) -> Result<String, Refusal> {
    let name = call.body[field].as_str().unwrap_or_default();
    let is_name = (1..=63).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
        && !name.starts_with('-')
        && !name.ends_with('-');
    if is_name {
        return Ok(name.to_owned());
    }
    Err(invalid(format!(
        "1 validation error detected: Value '{name}' at '{field}' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9]([\\-a-zA-Z0-9]*[a-zA-Z0-9])?"
    )))
}

impl Endpoints {
    pub(crate) fn call(
        &mut self,
        operation: &str,
        call: Call<'_>,
        drawn: SampledDurations,
    ) -> Result<Value, Refusal> {
        match operation {
            "CreateModel" => self.create_model(call, drawn),
            "DescribeModel" => describe_part(&self.models, call, "ModelName", "model"),
            "DeleteModel" => delete_part(&mut self.models, call, "ModelName", "model"),
            "CreateEndpointConfig" => self.create_config(call, drawn),
            "DescribeEndpointConfig" => describe_part(
                &self.configs,
                call,
                "EndpointConfigName",
                "endpoint configuration",
            ),
            "DeleteEndpointConfig" => delete_part(
                &mut self.configs,
                call,
                "EndpointConfigName",
                "endpoint configuration",
            ),
            "CreateEndpoint" => self.create(call, drawn),
            "UpdateEndpoint" => self.update(call, drawn),
            "DescribeEndpoint" => self.describe(call),
            "DeleteEndpoint" => self.delete(call),
            _ => self.list(call),
        }
    }

    fn create_model(&mut self, call: Call<'_>, drawn: SampledDurations) -> Result<Value, Refusal> {
        let name = named(call, "ModelName")?;
        let arn = call.arn("model", &name.to_lowercase());
        if !call.body["ExecutionRoleArn"].is_string() {
            return Err(invalid("ExecutionRoleArn must not be null"));
        }
        let containers = containers(call.body);
        if containers.is_empty() || containers.len() > 15 {
            return Err(invalid(
                "A model has a primary container, or 1 to 15 containers",
            ));
        }
        for container in &containers {
            let is_package = container["ModelPackageName"].is_string();
            if is_package == container["Image"].is_string() {
                return Err(invalid(
                    "A container needs exactly one of Image and ModelPackageName",
                ));
            }
        }
        create_part(
            &mut self.models,
            call,
            "ModelName",
            Kind {
                what: "model",
                arn,
                member: "ModelArn",
            },
            call.now + drawn.lag,
        )
    }

    fn create_config(&mut self, call: Call<'_>, drawn: SampledDurations) -> Result<Value, Refusal> {
        let name = named(call, "EndpointConfigName")?;
        let arn = call.arn("endpoint-config", &name.to_lowercase());
        let variants = call.body["ProductionVariants"].as_array();
        let variants = variants.filter(|all| (1..=10).contains(&all.len()));
        let variants = variants.ok_or_else(|| invalid("ProductionVariants must have 1 to 10"))?;
        for variant in variants {
            self.variant(call, variant)?;
        }
        let kind = Kind {
            what: "endpoint configuration",
            arn,
            member: "EndpointConfigArn",
        };
        let visible_at = call.now + drawn.lag;
        create_part(
            &mut self.configs,
            call,
            "EndpointConfigName",
            kind,
            visible_at,
        )
    }

    fn variant(&self, call: Call<'_>, variant: &Value) -> Result<(), Refusal> {
        let model = variant["ModelName"].as_str().unwrap_or_default();
        let found = self
            .models
            .get(&(call.account.to_owned(), model.to_owned()));
        if found.is_none_or(|model| model.visible_at > call.now) {
            let arn = call.arn("model", &model.to_lowercase());
            return Err(invalid(format!("Could not find model \"{arn}\".")));
        }
        let kind = variant["InstanceType"].as_str().unwrap_or_default();
        if !Serving::Endpoint.offers(kind) {
            return Err(invalid(format!(
                "1 validation error detected: Value '{kind}' at 'productionVariants.1.member.instanceType' failed to satisfy constraint: Member must satisfy enum value set"
            )));
        }
        if variant["InitialInstanceCount"].as_u64().unwrap_or(0) == 0 {
            return Err(invalid("InitialInstanceCount must be 1 or more"));
        }
        let has_disks = catalog::find(kind).is_some_and(|found| found.nvme_gb > 0);
        if has_disks && !variant["VolumeSizeInGB"].is_null() {
            return Err(invalid(format!(
                "VolumeSizeInGB parameter is not allowed for the selected Instance type {kind}."
            )));
        }
        for field in [
            "ModelDataDownloadTimeoutInSeconds",
            "ContainerStartupHealthCheckTimeoutInSeconds",
        ] {
            let seconds = variant[field].as_u64();
            if seconds.is_some_and(|seconds| !(60..=3600).contains(&seconds)) {
                return Err(invalid(format!("{field} must be between 60 and 3600")));
            }
        }
        Ok(())
    }

    fn config(&self, call: Call<'_>) -> Result<&ServingPart, Refusal> {
        let key = key(call, "EndpointConfigName");
        let found = self.configs.get(&key);
        let found = found.filter(|config| config.visible_at <= call.now);
        found.ok_or_else(|| {
            let arn = call.arn("endpoint-config", &key.1.to_lowercase());
            invalid(format!("Could not find endpoint configuration \"{arn}\"."))
        })
    }

    /// What keeps a configuration from being served.
    fn failure(
        &self,
        call: Call<'_>,
        config: &ServingPart,
        drawn: SampledDurations,
    ) -> Option<&'static str> {
        if drawn.lacks_capacity {
            return Some(
                "Unable to provision requested ML compute capacity due to InsufficientInstanceCapacity error. Please retry using a different ML instance type or after some time.",
            );
        }
        let variant = &config.request["ProductionVariants"][0];
        let model = variant["ModelName"].as_str().unwrap_or_default();
        let model = self
            .models
            .get(&(call.account.to_owned(), model.to_owned()));
        let text = model
            .map(|model| model.request.to_string())
            .unwrap_or_default();
        text.contains(SILENT).then_some(
            "The primary container for production variant AllTraffic did not pass the ping health check. Please check CloudWatch logs for this endpoint.",
        )
    }

    fn change(&self, call: Call<'_>, drawn: SampledDurations) -> Result<Change, Refusal> {
        let config = self.config(call)?;
        let failure = self.failure(call, config, drawn);
        let mut dice = StdRng::seed_from_u64(drawn.seed);
        let seconds: f64 = dice.random_range(150.0..420.0);
        let seconds = drawn.launch_seconds.map_or(seconds, |fixed| fixed + 60.0);
        let takes = match failure {
            Some(_) if !drawn.lacks_capacity => TimeDelta::seconds(GIVE_UP_SECONDS),
            _ => bakeoff_domain::clock::seconds(seconds.round()),
        };
        Ok(Change {
            config: key(call, "EndpointConfigName").1,
            at: call.now,
            until: call.now + takes,
            failure,
        })
    }

    fn create(&mut self, call: Call<'_>, drawn: SampledDurations) -> Result<Value, Refusal> {
        let name = named(call, "EndpointName")?;
        let arn = call.arn("endpoint", &name.to_lowercase());
        let is_own = |one: &&Endpoint| one.account == call.account && one.is_there(call.now);
        let mut own = self.all.iter().filter(is_own);
        if own.any(|one| one.name.eq_ignore_ascii_case(&name)) {
            return Err(invalid(format!(
                "Cannot create already existing endpoint \"{arn}\"."
            )));
        }
        let variant = &self.config(call)?.request["ProductionVariants"][0];
        let kind = variant["InstanceType"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let count = variant["InitialInstanceCount"].as_u64().unwrap_or(1);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let volume_gb = variant["VolumeSizeInGB"].as_i64().unwrap_or(0);
        let of_type = self.all.iter().filter(is_own);
        let used: u32 = of_type
            .filter(|one| one.instance_type == kind)
            .map(|one| one.count)
            .sum();
        if used.saturating_add(count) > drawn.quota {
            let most = drawn.quota;
            return Err(Refusal {
                code: "ResourceLimitExceeded",
                message: format!(
                    "The account-level service limit '{kind} for endpoint usage' is {most} Instances, with current utilization of {used} Instances and a request delta of {count} Instances. Please use AWS Service Quotas to request an increase for this quota."
                ),
            });
        }
        let change = self.change(call, drawn)?;
        self.all.push(Endpoint {
            account: call.account.to_owned(),
            name,
            arn: arn.clone(),
            tags: tags(&call.body["Tags"]),
            instance_type: kind,
            count,
            volume_gb,
            changes: vec![change],
            delete_asked_at: None,
            lag: drawn.lag,
        });
        Ok(json!({ "EndpointArn": arn }))
    }

    fn find(&mut self, call: Call<'_>) -> Result<&mut Endpoint, Refusal> {
        let name = call.body["EndpointName"].as_str().unwrap_or_default();
        let arn = call.arn("endpoint", &name.to_lowercase());
        let mut own = self.all.iter_mut().filter(|one| {
            one.account == call.account
                && one.name.eq_ignore_ascii_case(name)
                && one.is_there(call.now)
                && one.created_at() + one.lag <= call.now
        });
        own.next()
            .ok_or_else(|| invalid(format!("Could not find endpoint \"{arn}\".")))
    }

    fn update(&mut self, call: Call<'_>, drawn: SampledDurations) -> Result<Value, Refusal> {
        let change = self.change(call, drawn)?;
        let endpoint = self.find(call)?;
        endpoint.may_change(call.now)?;
        endpoint.changes.push(change);
        Ok(json!({ "EndpointArn": endpoint.arn }))
    }

    fn delete(&mut self, call: Call<'_>) -> Result<Value, Refusal> {
        let endpoint = self.find(call)?;
        if endpoint.status(call.now) != "Failed" {
            endpoint.may_change(call.now)?;
        }
        endpoint.delete_asked_at = Some(call.now);
        Ok(json!({}))
    }

    fn describe(&mut self, call: Call<'_>) -> Result<Value, Refusal> {
        let endpoint = self.find(call)?;
        let mut told = endpoint.summary(call.now);
        let (config, failure) = endpoint.serving(call.now);
        told["EndpointConfigName"] = json!(config);
        if let Some(reason) = failure {
            told["FailureReason"] = json!(reason);
        }
        if endpoint.status(call.now) == "InService" {
            told["ProductionVariants"] = json!([{
                "VariantName": "AllTraffic", "CurrentWeight": 1.0, "DesiredWeight": 1.0,
                "CurrentInstanceCount": endpoint.count, "DesiredInstanceCount": endpoint.count,
            }]);
        }
        Ok(told)
    }

    fn list(&self, call: Call<'_>) -> Result<Value, Refusal> {
        let size = call.body["MaxResults"].as_u64().unwrap_or(10);
        if !(1..=100).contains(&size) {
            return Err(invalid("MaxResults must be 1 to 100"));
        }
        let size = usize::try_from(size).unwrap_or(10);
        let offset = match call.body["NextToken"].as_str() {
            None => 0,
            Some(token) => token.parse().map_err(|_| invalid("Invalid NextToken"))?,
        };
        let fragment = call.body["NameContains"].as_str().unwrap_or_default();
        let after = call.body["CreationTimeAfter"].as_f64();
        let is_asked_for = |one: &&Endpoint| {
            one.account == call.account
                && one.is_there(call.now)
                && one.created_at() + one.lag <= call.now
                && one.name.contains(fragment)
                && after.is_none_or(|after| epoch(one.created_at()) > after)
        };
        let mut all: Vec<&Endpoint> = self.all.iter().filter(is_asked_for).collect();
        if call.body["SortOrder"] != "Ascending" {
            all.reverse();
        }
        let page = all.iter().skip(offset).take(size);
        let page: Vec<Value> = page.map(|one| one.summary(call.now)).collect();
        let mut answer = json!({ "Endpoints": page });
        if offset + size < all.len() {
            answer["NextToken"] = json!((offset + size).to_string());
        }
        Ok(answer)
    }

    /// The tags of an endpoint that is there, by its ARN.
    pub(crate) fn tags(
        &mut self,
        arn: &str,
        now: DateTime<Utc>,
    ) -> Option<&mut BTreeMap<String, String>> {
        let mut all = self.all.iter_mut();
        let found = all.find(|one| one.arn == arn && one.is_there(now))?;
        Some(&mut found.tags)
    }

    /// What InvokeEndpoint answers: which model has served the request.
    pub(crate) fn invoke(
        &self,
        account: &str,
        name: &str,
        now: DateTime<Utc>,
    ) -> Result<Value, Refusal> {
        let own = |one: &&Endpoint| one.account == account && one.name == name && one.is_there(now);
        let found = self.all.iter().find(own);
        let found = found.filter(|one| matches!(one.status(now), "InService" | "Updating"));
        let found = found.ok_or_else(|| Refusal {
            code: "ValidationError",
            message: format!("Endpoint {name} of account {account} not found."),
        })?;
        let (config, _) = found.serving(now);
        let config = self.configs.get(&(account.to_owned(), config.to_owned()));
        let variant = config.map(|config| &config.request["ProductionVariants"][0]);
        let model = variant.and_then(|variant| variant["ModelName"].as_str());
        let model = self
            .models
            .get(&(account.to_owned(), model.unwrap_or_default().to_owned()));
        let request = model.map(|model| model.request.clone()).unwrap_or_default();
        if request.to_string().contains(BROKEN) {
            return Err(Refusal {
                code: "ModelError",
                message: "Received server error (500) from primary with message \"the tokenizer does not fit the model\"".to_owned(),
            });
        }
        let container = containers(&request)
            .into_iter()
            .next()
            .cloned()
            .unwrap_or_default();
        Ok(json!({"generated_text": "Guten Tag", "served_by": container}))
    }

    /// What the account has, for the region's record; deleted endpoints stay in it.
    pub(crate) fn record(&self, rates: &RateCard, now: DateTime<Utc>) -> Vec<Value> {
        self.all.iter().map(|one| one.record(rates, now)).collect()
    }

    /// Whether a model that a request names is there.
    pub(crate) fn has_model(&self, call: Call<'_>) -> Result<(), Refusal> {
        let key = key(call, "ModelName");
        let found = self.models.get(&key);
        if found.is_some_and(|model| model.visible_at <= call.now) {
            return Ok(());
        }
        Err(missing(&key.1, call, "model"))
    }

    /// The instance type of a configuration.
    pub(crate) fn type_of(&self, account: &str, config: &str) -> Option<String> {
        let found = self.configs.get(&(account.to_owned(), config.to_owned()))?;
        let kind = &found.request["ProductionVariants"][0]["InstanceType"];
        kind.as_str().map(str::to_owned)
    }

    /// How many models and configurations there are.
    pub(crate) fn parts(&self) -> usize {
        self.models.len() + self.configs.len()
    }

    /// The CreateEndpoint, CreateEndpointConfig and CreateModel bodies of an endpoint, as received.
    pub(crate) fn request(&self, account: &str, name: &str) -> Option<Value> {
        let key = (account.to_owned(), name.to_owned());
        let config = self.configs.get(&key).map(|part| &part.request);
        let model = self.models.get(&key).map(|part| &part.request)?;
        Some(json!({"config": config, "model": model}))
    }
}

fn containers(body: &Value) -> Vec<&Value> {
    let several = body["Containers"].as_array().into_iter().flatten();
    let primary = &body["PrimaryContainer"];
    several
        .chain(primary.is_object().then_some(primary))
        .collect()
}

impl Endpoint {
    fn created_at(&self) -> DateTime<Utc> {
        self.changes
            .first()
            .map_or(DateTime::UNIX_EPOCH, |first| first.at)
    }

    fn is_there(&self, now: DateTime<Utc>) -> bool {
        self.delete_asked_at
            .is_none_or(|at| now < at + TimeDelta::seconds(DELETE_SECONDS))
    }

    fn status(&self, now: DateTime<Utc>) -> &'static str {
        if self.delete_asked_at.is_some_and(|at| at <= now) {
            return "Deleting";
        }
        let is_new = self.changes.len() == 1;
        match self.changes.last() {
            Some(last) if now < last.until && is_new => "Creating",
            Some(last) if now < last.until => "Updating",
            Some(last) if last.failure.is_some() && is_new => "Failed",
            // An update that fails is rolled back by SageMaker.
            _ => "InService",
        }
    }

    /// The configuration that serves by now, and what its last change failed of.
    fn serving(&self, now: DateTime<Utc>) -> (&str, Option<&'static str>) {
        let done = self.changes.iter().filter(|change| change.until <= now);
        let good = done.clone().rfind(|change| change.failure.is_none());
        let shown = good.or(self.changes.first());
        let mut done = done;
        let failure = done.next_back().and_then(|last| last.failure);
        (shown.map_or("", |change| &change.config), failure)
    }

    fn may_change(&self, now: DateTime<Utc>) -> Result<(), Refusal> {
        match self.status(now) {
            "InService" => Ok(()),
            "Failed" => Err(invalid(format!(
                "Cannot update endpoint \"{}\" in status Failed.",
                self.arn
            ))),
            _ => Err(invalid(format!(
                "Cannot update in-progress endpoint \"{}\".",
                self.arn
            ))),
        }
    }

    fn modified_at(&self, now: DateTime<Utc>) -> DateTime<Utc> {
        let moments = self
            .changes
            .iter()
            .flat_map(|change| [change.at, change.until]);
        let past = moments.chain(self.delete_asked_at).filter(|at| *at <= now);
        past.max().unwrap_or(now)
    }

    fn summary(&self, now: DateTime<Utc>) -> Value {
        json!({
            "EndpointName": self.name, "EndpointArn": self.arn, "EndpointStatus": self.status(now),
            "CreationTime": epoch(self.created_at()), "LastModifiedTime": epoch(self.modified_at(now)),
        })
    }

    /// With the same members as that of a training job.
    fn record(&self, rates: &RateCard, now: DateTime<Utc>) -> Value {
        let until = self.delete_asked_at.unwrap_or(now).min(now);
        let span = Span {
            from: self.created_at(),
            until,
        };
        let seconds = span.seconds();
        json!({
            "kind": "endpoint", "name": self.name, "account": self.account,
            "attempt": self.tags.get("bakeoff:job"), "instance_type": self.instance_type,
            "instance_count": self.count, "spot": false,
            "status": if self.is_there(now) { self.status(now) } else { "Deleted" },
            "secondary_status": if self.is_there(now) { self.status(now) } else { "Deleted" },
            "training_seconds": seconds, "billable_seconds": seconds,
            "micro_usd": rates.bill(&self.instance_type, i64::from(self.count), &[span], 100),
            "storage_micro_usd": billing::volumes(self.volume_gb, i64::from(self.count), &[span]), "trial": self.tags.get("bakeoff:trial"), "created_at": self.created_at(),
            "stop_asked_at": self.delete_asked_at, "ended_at": self.delete_asked_at, "idle_pool": false,
            "pool_reused_by": null, "pool_ran_out": false, "pool_listed": 0, "retained_seconds": 0,
            "pool_micro_usd": 0, "pool_storage_micro_usd": 0, "metrics_requested": 0, "metrics_unserved": 0,
        })
    }
}
