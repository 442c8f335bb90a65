//! The registrar: puts models into SageMaker's Model Registry and sets their approval, one claimed package
//! at a time. What is done next is decided by [`bakeoff_domain::model_package::decide`].

use std::fmt::Display;

use bakeoff_domain::model_package::ObservedPackage;
use bakeoff_domain::model_package::decide::{
    self, AfterError, PackageChange, PackageStep, Refused, decide,
};
use bakeoff_domain::sagemaker::error::AwsError;
use chrono::{DateTime, TimeDelta, Utc};

use crate::app::App;
use crate::tasks::due::{self, Due, HOLD};
use bakeoff_process::crash;
use bakeoff_store::StoreError;
use bakeoff_store::model_packages::ModelPackage;

/// SageMaker's clock may be behind ours by so much.
const CLOCKS_DIFFER: TimeDelta = TimeDelta::minutes(10);

/// Why a step was not done.
enum NotDone {
    Refused(Refused),
    /// The hold was over, and another has claimed the package: what was decided here is void.
    Overtaken,
    Store(StoreError),
}

impl From<Refused> for NotDone {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

fn refused(what: &'static str) -> impl FnOnce(AwsError) -> Refused {
    move |error| Refused {
        error,
        what,
        permission: format!("sagemaker:{what}"),
        may_exist: false,
    }
}

/// Runs one tick; returns how many were worked on.
pub async fn tick(app: &App) -> Result<usize, StoreError> {
    due::tick::<ModelPackage>(app).await
}

impl Due for ModelPackage {
    const WHAT: &'static str = "model package";

    fn id(&self) -> impl Display {
        self.id
    }

    async fn claim(app: &App, now: DateTime<Utc>) -> Result<Option<Self>, StoreError> {
        let region = &app.place.region;
        app.store.claim_due_model_package(region, now, HOLD).await
    }

    async fn work(&self, app: &App) -> Result<(), StoreError> {
        work(app, self).await
    }
}

/// Does what is next for a claimed package.
pub async fn work(app: &App, package: &ModelPackage) -> Result<(), StoreError> {
    // In another account the model would be registered where nobody looks for it.
    let policy = &app.settings.policy;
    let change = match super::confirm_account(app).await? {
        Ok(()) => match step(app, package).await {
            Ok(change) => change,
            Err(NotDone::Refused(refused)) => {
                let wait = policy.backoff_after(package.tries, &package.id.to_string());
                let again_at = app.clock.now() + wait;
                PackageChange::Failed(decide::after_error(&refused, again_at))
            }
            Err(NotDone::Overtaken) => {
                tracing::info!(package = %package.id, "claimed by another meanwhile");
                return Ok(());
            }
            Err(NotDone::Store(error)) => return Err(error),
        },
        Err(error) => PackageChange::Failed(AfterError::Again {
            at: app.clock.now() + policy.poll,
            why: error.to_string(),
        }),
    };
    let now = app.clock.now();
    if let PackageChange::Failed(failed) = &change {
        tracing::info!(package = %package.id, ?failed, "a model package is not done");
    }
    let next = decide::after(&package.facts(), change, now);
    app.store.record_model_package(package, &next, now).await
}

async fn step(app: &App, package: &ModelPackage) -> Result<PackageChange, NotDone> {
    let aws = &app.place.aws;
    let arn = package.arn.as_deref().unwrap_or_default();
    crash::point("before_register");
    let change = match decide(&package.facts()) {
        PackageStep::LookThenCreate => match find(app, package).await? {
            Some(found) => PackageChange::Registered(found),
            None => PackageChange::Registered(create(app, package).await?),
        },
        PackageStep::Create => PackageChange::Registered(create(app, package).await?),
        PackageStep::SetApproval => {
            let note = package.approval_note.as_deref();
            let set = aws.set_model_approval(arn, package.wanted_approval, note);
            set.await.map_err(refused("UpdateModelPackage"))?;
            PackageChange::Set
        }
        PackageStep::Confirm => {
            let seen = aws.describe_model_package(arn).await;
            PackageChange::Seen(seen.map_err(refused("DescribeModelPackage"))?.approval)
        }
        PackageStep::Nothing => PackageChange::Seen(package.approval),
    };
    crash::point("after_register");
    Ok(change)
}

/// The package, if an earlier try has created it.
async fn find(app: &App, package: &ModelPackage) -> Result<Option<ObservedPackage>, Refused> {
    let since = package.created_at - CLOCKS_DIFFER;
    let (group, marker) = (&package.request.group, package.id.to_string());
    let aws = &app.place.aws;
    // Whether it exists is not known: nothing is concluded from a refusal to look.
    let unknown = |error| Refused {
        may_exist: true,
        ..refused("ListModelPackages")(error)
    };
    match aws.find_model_package(group, &marker, since).await {
        Ok(Some(found)) => Ok(Some(found)),
        Err(error) if !decide::lacks_group(&error) => Err(unknown(error)),
        // Another account has none of ours.
        Ok(None) | Err(_) => aws.confirm_account().await.map(|()| None).map_err(unknown),
    }
}

/// Holds the package anew, just before it is created. A process that stood still since its claim must not
/// create what another has looked for and not found: SageMaker does not remember client tokens for ever.
async fn hold(app: &App, package: &ModelPackage) -> Result<(), NotDone> {
    let until = app.clock.now() + HOLD;
    match app.store.hold_model_package(package, until).await {
        Ok(true) => Ok(()),
        Ok(false) => Err(NotDone::Overtaken),
        Err(error) => Err(NotDone::Store(error)),
    }
}

async fn create(app: &App, package: &ModelPackage) -> Result<ObservedPackage, NotDone> {
    let aws = &app.place.aws;
    let request = &package.request;
    let statistics = request.statistics.clone().into_bytes();
    let written = aws.put_object(&request.statistics_s3_uri, statistics).await;
    written.map_err(|error| Refused {
        error,
        what: "writing the statistics",
        permission: format!("s3:PutObject on {}", request.statistics_s3_uri),
        may_exist: false,
    })?;
    hold(app, package).await?;
    let mut created = aws.create_model_package(request).await;
    if created.as_ref().is_err_and(decide::lacks_group) {
        match aws.create_model_group(&request.group).await {
            Err(error) if !decide::has_group(&error) => {
                return Err(refused("CreateModelPackageGroup")(error).into());
            }
            // Another process may have been faster.
            Ok(()) | Err(_) => {}
        }
        hold(app, package).await?;
        created = aws.create_model_package(request).await;
    }
    let arn = created.map_err(|error| Refused {
        // There was a group a moment ago: it is not visible everywhere yet, or the credentials have become another
        // account's. The next try looks first, and confirms the account.
        may_exist: decide::lacks_group(&error),
        ..refused("CreateModelPackage")(error)
    })?;
    Ok(ObservedPackage {
        arn,
        approval: request.approval,
        metadata: request.metadata.clone(),
    })
}
