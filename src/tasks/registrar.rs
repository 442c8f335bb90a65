//! The registrar: puts models into SageMaker's Model Registry and sets their approval, one claimed package
//! at a time. What is done next is decided by [`bakeoff_domain::registry::decide`].

use bakeoff_domain::registry::decide::{self, AfterError, PackageStep, decide};
use bakeoff_domain::registry::{Approval, ObservedPackage};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::crash;
use crate::store::StoreError;
use crate::store::model_packages::{ModelPackage, PackageChange};

/// Packages worked on in one tick.
const TICK_MAX: usize = 50;
/// How long a claim is held: longer than all calls of a step may take.
const HOLD: TimeDelta = TimeDelta::minutes(5);
/// When an approval is looked at once more: a call that was given up has arrived by then, or never does.
const CONFIRM_AFTER: TimeDelta = TimeDelta::minutes(2);
/// SageMaker's clock may be behind ours by so much.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::minutes(10);

/// A call that did not succeed.
struct Refused {
    error: AwsError,
    what: &'static str,
    permission: String,
    /// Whether the package may exist all the same.
    is_open: bool,
}

impl Refused {
    fn leads_to(&self, app: &App, package: &ModelPackage, now: DateTime<Utc>) -> AfterError {
        let Self {
            error,
            what,
            permission,
            ..
        } = self;
        let policy = &app.settings.policy;
        let wait = policy.backoff_after(package.tries, &package.id.to_string());
        let after = decide::after_error(error, what, permission, now + wait);
        match after {
            AfterError::GiveUp { why } if self.is_open => AfterError::Again {
                at: now + policy.backoff_after(package.tries, &package.id.to_string()),
                why,
            },
            after => after,
        }
    }

    fn by(what: &'static str) -> impl FnOnce(AwsError) -> Self {
        move |error| Self {
            error,
            what,
            permission: format!("sagemaker:{what}"),
            is_open: false,
        }
    }
}

/// What a step has led to.
enum Done {
    Registered(ObservedPackage),
    Set,
    Seen(Approval),
    Nothing,
}

/// Runs one tick; returns how many were worked on.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    for count in 0..TICK_MAX {
        let now = app.clock.now();
        // A copy of the database must not register what its original does.
        if !app.fence.may_act(now) {
            return Ok(count);
        }
        // One at a time: a claim is held while its calls are made, and not while others' are.
        let claimed = app
            .store
            .claim_due_model_package(&app.place.region, now, HOLD)
            .await?;
        let Some(package) = claimed else {
            return Ok(count);
        };
        app.pulse.beat();
        // One that fails must not hold up the others.
        if let Err(error) = work(app, &package).await {
            tracing::warn!(%error, package = %package.id, "work on a model package failed; it is due again later");
        }
    }
    Ok(TICK_MAX)
}

async fn work(app: &App, package: &ModelPackage) -> Result<(), StoreError> {
    // In another account the model would be registered where nobody looks for it.
    if let Err(error) = super::confirm_account(app).await? {
        let now = app.clock.now();
        let (at, why) = (now + app.settings.policy.poll, error.to_string());
        let change = PackageChange::Again { at, why: &why };
        return app.store.record_model_package(package, change, now).await;
    }
    crash::point("before_register");
    let done = step(app, package).await;
    crash::point("after_register");
    let now = app.clock.now();
    let change = match &done {
        Ok(Done::Registered(found)) => PackageChange::Registered(found),
        Ok(Done::Set) => PackageChange::Set {
            again_at: now + CONFIRM_AFTER,
        },
        Ok(Done::Seen(observed)) => {
            let confirmed = decide::confirmed(package.wanted_approval, *observed);
            confirmed.map_or(PackageChange::Differs(*observed), PackageChange::Confirmed)
        }
        Ok(Done::Nothing) => return Ok(()),
        Err(refused) => return record_refused(app, package, refused).await,
    };
    app.store.record_model_package(package, change, now).await
}

async fn record_refused(
    app: &App,
    package: &ModelPackage,
    refused: &Refused,
) -> Result<(), StoreError> {
    let now = app.clock.now();
    let after = refused.leads_to(app, package, now);
    let change = match &after {
        AfterError::Again { at, why } => PackageChange::Again { at: *at, why },
        AfterError::GiveUp { why } => {
            tracing::warn!(package = %package.id, why, "a model package was refused");
            PackageChange::GaveUp { why }
        }
    };
    app.store.record_model_package(package, change, now).await
}

async fn step(app: &App, package: &ModelPackage) -> Result<Done, Refused> {
    let aws = &app.place.aws;
    let arn = package.arn.as_deref().unwrap_or_default();
    match decide(&package.facts()) {
        PackageStep::LookThenCreate => {
            if let Some(found) = find(app, package).await? {
                return Ok(Done::Registered(found));
            }
            create(app, package).await.map(Done::Registered)
        }
        PackageStep::Create => create(app, package).await.map(Done::Registered),
        PackageStep::SetApproval => {
            let note = package.approval_note.as_deref();
            let set = aws.set_model_approval(arn, package.wanted_approval, note);
            set.await.map_err(Refused::by("UpdateModelPackage"))?;
            Ok(Done::Set)
        }
        PackageStep::Confirm => {
            let seen = aws.describe_model_package(arn).await;
            let seen = seen.map_err(Refused::by("DescribeModelPackage"))?;
            Ok(Done::Seen(seen.approval))
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
        // Whether it exists is not known: nothing is concluded from this refusal.
        found => found.map_err(|error| Refused {
            is_open: true,
            ..Refused::by("ListModelPackages")(error)
        }),
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
        is_open: false,
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
