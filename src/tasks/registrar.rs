//! The registrar: puts models into SageMaker's Model Registry and sets their approval, one claimed package
//! at a time. What is done next is decided by [`bakeoff_domain::registry::decide`].

use bakeoff_domain::registry::ObservedPackage;
use bakeoff_domain::registry::decide::{self, AfterError, PackageStep, decide};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::TimeDelta;

use crate::app::App;
use crate::crash;
use crate::store::StoreError;
use crate::store::model_packages::{ModelPackage, PackageChange};

const DUE_MAX: i64 = 20;
/// How long a claim is held.
const HOLD: TimeDelta = TimeDelta::minutes(5);
/// SageMaker's clock may be behind ours by so much.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::minutes(10);

/// A call that did not succeed.
struct Refused {
    error: AwsError,
    what: &'static str,
    permission: String,
}

impl Refused {
    fn by(what: &'static str) -> impl FnOnce(AwsError) -> Self {
        move |error| Self {
            error,
            what,
            permission: format!("sagemaker:{what}"),
        }
    }
}

/// What a step has led to.
enum Done {
    Registered(ObservedPackage),
    HasApproval,
    Nothing,
}

/// Runs one tick; returns how many were claimed.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    let now = app.clock.now();
    // A copy of the database must not register what its original does.
    if !app.fence.may_act(now) {
        return Ok(0);
    }
    let claimed = app
        .store
        .claim_due_model_packages(&app.place.region, now, HOLD, DUE_MAX)
        .await?;
    let count = claimed.len();
    for package in claimed {
        app.pulse.beat();
        // One that fails must not hold up the others.
        if let Err(error) = work(app, &package).await {
            tracing::warn!(%error, package = %package.id, "work on a model package failed; it is due again later");
        }
    }
    Ok(count)
}

async fn work(app: &App, package: &ModelPackage) -> Result<(), StoreError> {
    // In another account the model would be registered where nobody looks for it.
    if let Err(error) = super::confirm_account(app).await? {
        let now = app.clock.now();
        let (at, why) = (now + app.settings.policy.poll, error.to_string());
        let change = PackageChange::Again { at, why: &why };
        return app.store.record_model_package(package, change, now).await;
    }
    let done = step(app, package).await;
    crash::point("registered");
    let now = app.clock.now();
    let record = |change| app.store.record_model_package(package, change, now);
    let Refused {
        error,
        what,
        permission,
    } = match done {
        Ok(Done::Registered(found)) => return record(PackageChange::Registered(&found)).await,
        Ok(Done::HasApproval) => {
            return record(PackageChange::HasApproval(package.wanted_approval)).await;
        }
        Ok(Done::Nothing) => return record(PackageChange::HasApproval(package.approval)).await,
        Err(refused) => refused,
    };
    let policy = &app.settings.policy;
    let after = decide::after_error(&error, what, &permission, package.tries, now, policy);
    match after {
        AfterError::Again { at, why } => record(PackageChange::Again { at, why: &why }).await,
        AfterError::GiveUp { why } => {
            tracing::warn!(package = %package.id, why, "a model package was refused");
            record(PackageChange::GaveUp { why: &why }).await
        }
    }
}

async fn step(app: &App, package: &ModelPackage) -> Result<Done, Refused> {
    match decide(&package.facts()) {
        PackageStep::LookThenCreate => {
            if let Some(found) = find(app, package).await? {
                return Ok(Done::Registered(found));
            }
            create(app, package).await.map(Done::Registered)
        }
        PackageStep::Create => create(app, package).await.map(Done::Registered),
        PackageStep::SetApproval => {
            let arn = package.arn.as_deref().unwrap_or_default();
            let note = package.approval_note.as_deref();
            let set = app
                .place
                .aws
                .set_model_approval(arn, package.wanted_approval, note);
            set.await.map_err(Refused::by("UpdateModelPackage"))?;
            Ok(Done::HasApproval)
        }
        PackageStep::Nothing => Ok(Done::Nothing),
    }
}

/// The package, if an earlier try has created it.
async fn find(app: &App, package: &ModelPackage) -> Result<Option<ObservedPackage>, Refused> {
    let since = package.created_at - CLOCKS_DIFFER;
    let (group, marker) = (&package.request.group, package.id.to_string());
    let found = app
        .place
        .aws
        .find_model_package(group, &marker, since)
        .await;
    match found {
        Err(error) if decide::lacks_group(&error) => Ok(None),
        found => found.map_err(Refused::by("ListModelPackages")),
    }
}

async fn create(app: &App, package: &ModelPackage) -> Result<ObservedPackage, Refused> {
    let aws = &app.place.aws;
    let request = &package.request;
    let statistics = request.statistics.clone().into_bytes();
    let written = aws.put_object(&request.statistics_s3_uri, statistics).await;
    written.map_err(|error| Refused {
        error,
        what: "writing the statistics",
        permission: format!("s3:PutObject on {}", request.statistics_s3_uri),
    })?;
    let mut created = aws.create_model_package(request).await;
    if created.as_ref().is_err_and(decide::lacks_group) {
        match aws.create_model_group(&request.group).await {
            Err(error) if !decide::has_group(&error) => {
                return Err(Refused::by("CreateModelPackageGroup")(error));
            }
            // Another process may have been faster.
            Ok(()) | Err(_) => {}
        }
        created = aws.create_model_package(request).await;
    }
    Ok(ObservedPackage {
        arn: created.map_err(Refused::by("CreateModelPackage"))?,
        approval: request.approval,
        metadata: request.metadata.clone(),
    })
}
