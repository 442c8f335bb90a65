//! The Model Registry: groups and their versions. Rules: SageMaker API, CreateModelPackage and its model in
//! botocore; error texts as public reports show them.

use std::collections::{BTreeMap, BTreeSet};

use bakeoff_domain::catalog::serving::Serving;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::account::epoch::epoch;
use crate::account::refusal::{Refusal, invalid};

/// Statuses of approval that the API knows.
const APPROVALS: [&str; 3] = ["PendingManualApproval", "Approved", "Rejected"];
/// Entries of CustomerMetadataProperties.
const METADATA_MAX: usize = 50;

/// One version of a group.
#[derive(Debug)]
pub(crate) struct Package {
    group: String,
    version: usize,
    arn: String,
    request: Value,
    approval: String,
    approval_note: Option<String>,
    created_at: DateTime<Utc>,
}

/// All groups and versions, by account.
#[derive(Debug, Default)]
pub(crate) struct ModelPackages {
    groups: BTreeSet<(String, String)>,
    /// Groups that the next CreateModelPackage does not find yet.
    late_groups: BTreeSet<(String, String)>,
    packages: BTreeMap<String, Vec<Package>>,
    /// ARNs by account and client token.
    tokens: BTreeMap<(String, String), String>,
}

/// Whose call it is, and when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) account: &'a str,
    pub(crate) region: &'a str,
    pub(crate) body: &'a Value,
    pub(crate) now: DateTime<Utc>,
}

impl Call<'_> {
    fn text(&self, field: &str) -> &str {
        self.body[field].as_str().unwrap_or_default()
    }

    pub(crate) fn arn(&self, kind: &str, rest: &str) -> String {
        let Self {
            account, region, ..
        } = self;
        format!("arn:aws:sagemaker:{region}:{account}:{kind}/{rest}")
    }
}

fn no_group() -> Refusal {
    Refusal {
        code: "ResourceNotFound",
        message: "The requested resource was not found".to_owned(),
    }
}

impl ModelPackages {
    pub(crate) fn create_group(&mut self, call: Call<'_>) -> Result<Value, Refusal> {
        let group = call.text("ModelPackageGroupName");
        let is_name = !group.is_empty()
            && group.len() <= 63
            && !group.starts_with('-')
            && !group.ends_with('-')
            && group
                .chars()
                .all(|each| each.is_ascii_alphanumeric() || each == '-');
        if !is_name {
            return Err(invalid(format!(
                "1 validation error detected: Value '{group}' at 'modelPackageGroupName' failed to satisfy constraint: Member must satisfy regular expression pattern: [a-zA-Z0-9](-*[a-zA-Z0-9]){{0,62}}"
            )));
        }
        let arn = call.arn("model-package-group", group);
        if !self
            .groups
            .insert((call.account.to_owned(), group.to_owned()))
        {
            return Err(invalid(format!(
                "Model Package Group already exists: {arn}"
            )));
        }
        Ok(json!({ "ModelPackageGroupArn": arn }))
    }

    /// Hides a group from the next CreateModelPackage.
    pub(crate) fn delay_group(&mut self, call: Call<'_>) {
        let group = call.text("ModelPackageGroupName").to_owned();
        self.late_groups.insert((call.account.to_owned(), group));
    }

    pub(crate) fn forget_tokens(&mut self) {
        self.tokens.clear();
    }

    /// The same client token returns what it has created before.
    pub(crate) fn create(&mut self, call: Call<'_>) -> Result<Value, Refusal> {
        let group = call.text("ModelPackageGroupName").to_owned();
        if group.is_empty() {
            return Err(invalid(
                "Exactly one of ModelPackageName and ModelPackageGroupName must be given",
            ));
        }
        check(call.body)?;
        let key = (call.account.to_owned(), group.clone());
        if !self.groups.contains(&key) || self.late_groups.remove(&key) {
            return Err(no_group());
        }
        let token = (call.account.to_owned(), call.text("ClientToken").to_owned());
        if let Some(arn) = self.tokens.get(&token).filter(|_| !token.1.is_empty()) {
            return Ok(json!({ "ModelPackageArn": arn }));
        }
        let all = self.packages.entry(call.account.to_owned()).or_default();
        let version = 1 + all.iter().filter(|one| one.group == group).count();
        let arn = call.arn("model-package", &format!("{group}/{version}"));
        let approval = call.body["ModelApprovalStatus"].as_str();
        all.push(Package {
            group,
            version,
            arn: arn.clone(),
            request: call.body.clone(),
            approval: approval.unwrap_or("PendingManualApproval").to_owned(),
            approval_note: None,
            created_at: call.now,
        });
        self.tokens.insert(token, arn.clone());
        Ok(json!({ "ModelPackageArn": arn }))
    }

    fn find(&mut self, account: &str, arn: &str) -> Result<&mut Package, Refusal> {
        let all = self.packages.get_mut(account).into_iter().flatten();
        let mut named = all.filter(|one| one.arn == arn);
        named
            .next()
            .ok_or_else(|| invalid(format!("ModelPackage {arn} does not exist")))
    }

    pub(crate) fn describe(&mut self, call: Call<'_>) -> Result<Value, Refusal> {
        let found = self.find(call.account, call.text("ModelPackageName"))?;
        let mut answer = found.request.clone();
        let summary = found.summary();
        if let (Some(answer), Some(summary)) = (answer.as_object_mut(), summary.as_object()) {
            answer.remove("ClientToken");
            answer.extend(summary.clone());
            answer.insert(
                "ModelPackageStatusDetails".to_owned(),
                json!({"ValidationStatuses": [], "ImageScanStatuses": []}),
            );
            if let Some(note) = &found.approval_note {
                answer.insert("ApprovalDescription".to_owned(), json!(note));
            }
        }
        Ok(answer)
    }

    /// Without a group, only unversioned packages are listed, of which there are none here.
    pub(crate) fn list(&self, call: Call<'_>) -> Result<Value, Refusal> {
        let group = call.text("ModelPackageGroupName");
        let key = (call.account.to_owned(), group.to_owned());
        if !group.is_empty() && !self.groups.contains(&key) {
            return Err(no_group());
        }
        let after = call.body["CreationTimeAfter"].as_f64();
        let size = usize::try_from(call.body["MaxResults"].as_u64().unwrap_or(10)).unwrap_or(10);
        if !(1..=100).contains(&size) {
            return Err(invalid("MaxResults must be 1 to 100"));
        }
        let all = self.packages.get(call.account).into_iter().flatten();
        let mut own: Vec<&Package> = all
            .filter(|one| one.group == group)
            .filter(|one| after.is_none_or(|after| epoch(one.created_at) > after))
            .collect();
        if call.text("SortOrder") != "Ascending" {
            own.reverse();
        }
        let offset = match call.body["NextToken"].as_str() {
            None => 0,
            Some(token) => token.parse().map_err(|_| invalid("Invalid NextToken"))?,
        };
        let page = own.iter().skip(offset).take(size);
        let mut answer = json!({
            "ModelPackageSummaryList": page.map(|one| one.summary()).collect::<Vec<_>>()
        });
        if offset + size < own.len() {
            answer["NextToken"] = json!((offset + size).to_string());
        }
        Ok(answer)
    }

    /// Changes the approval: pending into either, and those into each other.
    pub(crate) fn update(&mut self, call: Call<'_>) -> Result<Value, Refusal> {
        let found = self.find(call.account, call.text("ModelPackageArn"))?;
        let status = call.text("ModelApprovalStatus");
        if !APPROVALS.contains(&status) {
            return Err(invalid(format!(
                "ModelApprovalStatus {status} is not known"
            )));
        }
        if status == "PendingManualApproval" && found.approval != status {
            return Err(Refusal {
                code: "ConflictException",
                message: format!(
                    "The approval status cannot go from {} to {status}",
                    found.approval
                ),
            });
        }
        status.clone_into(&mut found.approval);
        found.approval_note = call.body["ApprovalDescription"].as_str().map(str::to_owned);
        Ok(json!({ "ModelPackageArn": found.arn }))
    }

    /// What the account has, for the region's record.
    pub(crate) fn record(&self) -> Vec<Value> {
        let all = self.packages.values().flatten();
        all.map(|one| {
            json!({"arn": one.arn, "approval": one.approval, "approval_note": one.approval_note,
                "request": one.request})
        })
        .collect()
    }
}

impl Package {
    fn summary(&self) -> Value {
        json!({
            "ModelPackageGroupName": self.group, "ModelPackageVersion": self.version, "ModelPackageArn": self.arn,
            "ModelPackageName": self.group, "CreationTime": epoch(self.created_at), "ModelPackageStatus": "Completed",
            "ModelApprovalStatus": self.approval,
        })
    }
}

/// What the service refuses of a version.
fn check(body: &Value) -> Result<(), Refusal> {
    if body["Tags"].is_array() {
        return Err(invalid(
            "Tags cannot be given for a versioned model package",
        ));
    }
    let specification = &body["InferenceSpecification"];
    let containers = specification["Containers"].as_array();
    if !containers.is_some_and(|all| (1..=15).contains(&all.len())) {
        return Err(invalid("InferenceSpecification needs 1 to 15 containers"));
    }
    for container in containers.into_iter().flatten() {
        let environment = container["Environment"].as_object();
        if !container["Image"].is_string() || environment.is_some_and(|all| all.len() > 16) {
            return Err(invalid(
                "A container needs an image, and at most 16 variables",
            ));
        }
    }
    check_types(specification)?;
    check_metadata(body)
}

fn check_types(specification: &Value) -> Result<(), Refusal> {
    let lists = [
        ("SupportedRealtimeInferenceInstanceTypes", Serving::Endpoint),
        ("SupportedTransformInstanceTypes", Serving::Transform),
    ];
    for (field, serving) in lists {
        let types = specification[field].as_array().into_iter().flatten();
        for kind in types.filter_map(Value::as_str) {
            if !serving.offers(kind) {
                return Err(invalid(format!(
                    "1 validation error detected: Value '{kind}' at '{field}' failed to satisfy constraint: Member must satisfy enum value set"
                )));
            }
        }
    }
    Ok(())
}

fn check_metadata(body: &Value) -> Result<(), Refusal> {
    let metadata = body["CustomerMetadataProperties"].as_object();
    if metadata.is_some_and(|all| all.is_empty() || all.len() > METADATA_MAX) {
        return Err(invalid("CustomerMetadataProperties has 1 to 50 entries"));
    }
    let is_entry = |name: &String, value: &Value| {
        let length = value.as_str().map_or(0, |text| text.chars().count());
        (1..=128).contains(&name.chars().count()) && (1..=256).contains(&length)
    };
    if metadata.is_some_and(|all| all.iter().any(|(name, value)| !is_entry(name, value))) {
        return Err(invalid(
            "CustomerMetadataProperties: names have 1 to 128 characters, values 1 to 256",
        ));
    }
    Ok(())
}
