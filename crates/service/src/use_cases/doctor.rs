//! Looks at everything a first job needs, at once and without changing anything: the database, this
//! machine's clock, and what AWS says about credentials, role, buckets, image, quotas and rights. What it
//! means is decided by [`bakeoff_domain::doctor`].

use bakeoff_domain::catalog;
use bakeoff_domain::doctor::questions::{
    Answered, Question, principal_of, questions_of_pass_role, questions_of_role,
    questions_of_service, role_name,
};
use bakeoff_domain::doctor::scheduled_ends::{questions_of_scheduler_role, questions_of_schedules};
use bakeoff_domain::doctor::{
    AwsFound, BucketFound, Caller, CheckScope, DatabaseFound, Observations, PriceFound, S3Place,
    SchedulesFound,
};
use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::price;
use bakeoff_domain::ports::{LogRequest, PageRequest, Window};
use bakeoff_domain::sagemaker::error::AwsError;
use bakeoff_domain::sagemaker::kind::JobKind;
use bakeoff_domain::sagemaker::metrics::MetricQuery;
use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;

use crate::app::{App, Place};
use crate::aws::{Aws, Operation};
use bakeoff_process::clock::{Stopwatch, real_now};
use bakeoff_store::StoreError;

/// Looks at everything.
pub async fn look(
    app: &App,
    place: &Place,
    project: ProjectId,
    wanted: &CheckScope,
) -> Result<Observations, StoreError> {
    let database = database(app).await?;
    let prices = prices(app, project, wanted).await?;
    let (clock_off_seconds, caller) = caller(&place.aws).await;
    let at_aws = match &caller {
        Ok(caller) => Some(at_aws(app, place, wanted, caller).await),
        Err(_) => None,
    };
    let patience = app.settings.patience() * 2;
    Ok(Observations {
        database,
        failing_tasks: place.tasks.failing_for(patience),
        lag_seconds: lag(app, place).await?,
        clock_off_seconds,
        caller,
        account: place.aws.account(),
        at_aws,
        prices,
        requires_scheduled_end: app.settings.require_scheduled_end,
    })
}

async fn database(app: &App) -> Result<DatabaseFound, StoreError> {
    // The first answer may include connecting.
    app.store.ping().await?;
    let watch = Stopwatch::start();
    let server = app.store.server().await?;
    let took = watch.elapsed();
    let (schema_applied, schema_known) = app.store.schema_versions().await?;
    Ok(DatabaseFound {
        version: server.version,
        schema_applied,
        schema_known,
        answered_in_ms: took.as_secs_f64() * 1e3,
        clock_off_seconds: (server.now - real_now()).as_seconds_f64(),
    })
}

/// How long the oldest due work that nobody does has waited, in seconds of the domain clock.
async fn lag(app: &App, place: &Place) -> Result<f64, StoreError> {
    let oldest = app.store.oldest_due(&place.region).await?;
    let now = app.clock.now();
    let waited = oldest.all().map(|due| (now - due).as_seconds_f64());
    Ok(waited.fold(0.0, f64::max))
}

/// The price in force of each type with accelerators, and of those that are wanted.
async fn prices(
    app: &App,
    project: ProjectId,
    wanted: &CheckScope,
) -> Result<Vec<PriceFound>, StoreError> {
    let region = wanted.region.as_str();
    let known = app.store.prices_of(project, Some(region), None).await?;
    let now = app.clock.now();
    let found = |kind: &str| {
        let price = price::in_force(&known, kind, region, now);
        PriceFound {
            instance_type: kind.to_owned(),
            status: price.as_ref().map(|price| price.status),
            usd_per_hour: price.map(|price| price.usd_per_hour),
        }
    };
    let is_meant = |kind: &&catalog::InstanceType| {
        kind.accelerator_count > 0 || wanted.instance_types.contains(&kind.instance_type)
    };
    let meant = catalog::all().iter().filter(is_meant);
    Ok(meant.map(|kind| found(&kind.instance_type)).collect())
}

/// How far this machine's clock is ahead of AWS's, in seconds, and who AWS says we are.
async fn caller(aws: &Aws) -> (Option<f64>, Result<Caller, AwsError>) {
    let asked_at = real_now();
    let reply = match aws.caller().await {
        Ok(reply) => reply,
        Err(error) => return (None, Err(error)),
    };
    // Between asking and being answered; AWS's time is cut to the second.
    let middle = asked_at + (real_now() - asked_at) / 2;
    let off = reply
        .answered_at
        .map(|at| (middle - at).as_seconds_f64() - 0.5);
    (off, reply.caller)
}

async fn at_aws(app: &App, place: &Place, wanted: &CheckScope, caller: &Caller) -> AwsFound {
    let aws = &*place.aws;
    let installation = &app.settings.installation;
    let now = app.clock.now();
    let (rights, schedules, role, buckets, image, quotas, reads) = tokio::join!(
        rights(aws, wanted, caller, installation),
        schedules(app, aws, &wanted.region, caller),
        async {
            let arn = wanted.role_arn.as_deref()?;
            Some(aws.role(role_name(arn)).await)
        },
        join_all(
            wanted
                .buckets()
                .into_iter()
                .map(|(bucket, places)| look_at_bucket(aws, bucket, places))
        ),
        async {
            let image = wanted.image.as_ref()?.parts()?;
            // Elsewhere, this region's registry would only say that there is none.
            let is_here = image.region == wanted.region;
            Some(aws.image_digest(&image).await).filter(|_| is_here)
        },
        aws.instance_quotas(),
        reads(aws, &wanted.region, installation, now),
    );
    AwsFound {
        own_jobs: rights.own_jobs,
        pass_role: rights.pass_role,
        role_permissions: rights.role_permissions,
        schedules,
        job_list: reads.job_list,
        role,
        buckets,
        image,
        quotas,
        logs: reads.logs,
        metrics: reads.metrics,
        price_list: reads.price_list,
    }
}

struct Rights {
    own_jobs: Answered,
    pass_role: Option<Answered>,
    role_permissions: Option<Answered>,
}

/// Asks IAM about the service and the role.
async fn rights(aws: &Aws, wanted: &CheckScope, caller: &Caller, installation: &str) -> Rights {
    let principal = principal_arn(aws, caller).await;
    let of_service = async |questions: Vec<Question>| match &principal {
        Ok(arn) => ask(aws, arn, &questions).await,
        Err(error) => Err(error.clone()),
    };
    let own = questions_of_service(wanted, caller, installation);
    let own_jobs = of_service(own).await;
    let Some(role) = wanted.role_arn.as_deref() else {
        return Rights {
            own_jobs,
            pass_role: None,
            role_permissions: None,
        };
    };
    Rights {
        own_jobs,
        pass_role: Some(of_service(questions_of_pass_role(role)).await),
        role_permissions: Some(ask(aws, role, &questions_of_role(wanted)).await),
    }
}

/// Asks IAM about the role that ends what SageMaker never ends.
async fn schedules(app: &App, aws: &Aws, region: &str, caller: &Caller) -> Option<SchedulesFound> {
    let role_arn = app.settings.scheduler_role_arn.as_ref()?;
    let installation = &app.settings.installation;
    let own = questions_of_schedules(role_arn, region, caller, installation);
    let rights = match principal_arn(aws, caller).await {
        Ok(principal) => ask(aws, &principal, &own).await,
        Err(error) => Err(error),
    };
    let of_role = questions_of_scheduler_role(role_arn, region, installation);
    Some(SchedulesFound {
        role_arn: role_arn.clone(),
        role: aws.role(role_name(role_arn)).await,
        rights,
        role_permissions: ask(aws, role_arn, &of_role).await,
    })
}

/// The whole ARN of the principal behind the credentials: a role's session does not tell its path.
async fn principal_arn(aws: &Aws, caller: &Caller) -> Result<String, AwsError> {
    let Some(principal) = principal_of(&caller.arn) else {
        return Err(AwsError::Denied(
            "IAM does not answer for the root user; give the service a role of its own".to_owned(),
        ));
    };
    match &principal.role_name {
        Some(name) => Ok(aws.role(name).await?.arn),
        None => Ok(principal.arn),
    }
}

async fn ask(aws: &Aws, principal: &str, questions: &[Question]) -> Answered {
    let all = questions
        .iter()
        .map(|question| aws.simulate(principal, question));
    let answers = join_all(all).await;
    let decisions: Result<Vec<_>, AwsError> = answers.into_iter().collect();
    Ok(decisions?.into_iter().flatten().collect())
}

async fn look_at_bucket(aws: &Aws, bucket: &str, places: Vec<&S3Place>) -> BucketFound {
    let region = aws.bucket_region(bucket).await;
    let looks = places
        .into_iter()
        .map(async |place| (place.clone(), aws.has_objects(&place.uri).await));
    let listed = join_all(looks).await;
    BucketFound {
        bucket: bucket.to_owned(),
        region,
        listed,
    }
}

struct Reads {
    job_list: Result<(), AwsError>,
    logs: Result<(), AwsError>,
    metrics: Result<(), AwsError>,
    price_list: Result<(), AwsError>,
}

/// Reads a page of each, of a job that does not exist.
async fn reads(aws: &Aws, region: &str, installation: &str, now: DateTime<Utc>) -> Reads {
    let nobody = format!("bakeoff-{installation}-doctor");
    let page = PageRequest {
        fragment: nobody.clone(),
        created_after: now - TimeDelta::hours(1),
        token: None,
    };
    let (job_list, logs, metrics, price_list) = tokio::join!(
        aws.list(JobKind::Training, &page),
        the_log(aws, &nobody),
        a_metric(aws, &nobody, now),
        aws.try_price_list(region),
    );
    Reads {
        job_list: job_list.map(drop),
        logs,
        metrics,
        price_list,
    }
}

/// Lists the streams of a job and reads one: neither is there, and only a denial says so.
async fn the_log(aws: &Aws, job_name: &str) -> Result<(), AwsError> {
    aws.log_streams(JobKind::Training, job_name).await?;
    let first = LogRequest {
        kind: JobKind::Training,
        stream: format!("{job_name}/algo-1-0"),
        since: None,
        until: None,
        from_start: true,
        limit: 1,
        token: None,
    };
    match aws.log_page(&first).await {
        Ok(_) | Err(AwsError::NotFound(_)) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Requests one metric, for a thousandth of a cent.
async fn a_metric(aws: &Aws, job_name: &str, now: DateTime<Utc>) -> Result<(), AwsError> {
    aws.wait_for(Operation::GetMetricData).await?;
    let query = MetricQuery {
        metric: "CPUUtilization".to_owned(),
        dimension: "Host",
        value: format!("{job_name}/algo-1"),
    };
    let window = Window {
        period: TimeDelta::minutes(1),
        start: now - TimeDelta::minutes(2),
        end: now - TimeDelta::minutes(1),
    };
    aws.metrics_page(&[query], window, None)
        .await
        .reply
        .map(drop)
}
