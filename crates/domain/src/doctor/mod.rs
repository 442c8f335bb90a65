//! What a new installation needs before its first job: each check with what was found, and the line
//! that mends it. Pure; the service looks at AWS and its database, and asks here what it means.
//!
//! It is not the linter, which judges one experiment, and not a diagnosis, which explains a job that
//! failed.

mod check;
mod found;
pub mod job;
mod permissions;
pub mod questions;
mod quotas;
pub mod scheduled_ends;
#[cfg(test)]
mod tests;
mod wanted;

pub use check::{Check, CheckName, CheckState};
pub use found::{AwsFound, BucketFound, DatabaseFound, Observations, PriceFound, SchedulesFound};
pub use questions::Caller;
pub use wanted::{CheckScope, S3Place, S3Use};

use self::permissions::POLICY;
use crate::sagemaker::error::AwsError;

/// AWS refuses requests signed more than five minutes off, S3 fifteen
/// (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html).
const SIGNED_WITHIN_SECONDS: f64 = 300.0;
/// Work is done within seconds of being due; more is a task that lags.
const LAG_SECONDS: f64 = 300.0;
/// More than a slewed clock.
const CLOCK_OFF_SECONDS: f64 = 30.0;

/// Judges everything that was found.
pub fn examine(wanted: &CheckScope, found: &Observations) -> Vec<Check> {
    let mut checks = vec![
        database(&found.database),
        tasks(found),
        clock(found.clock_off_seconds, &wanted.region),
        credentials(found),
    ];
    match &found.at_aws {
        Some(aws) => checks.extend(on_aws(wanted, found, aws)),
        None => checks.extend(not_looked_at(found)),
    }
    checks.push(quotas::prices(wanted, &found.prices));
    checks
}

fn on_aws(wanted: &CheckScope, found: &Observations, aws: &AwsFound) -> Vec<Check> {
    let principal = found.caller.as_ref().ok();
    let principal = principal.and_then(|caller| questions::principal_of(&caller.arn));
    let principal = principal.map_or("the service's principal".to_owned(), |found| found.arn);
    let principal = principal.as_str();
    let mut checks = vec![
        permissions::own_jobs(wanted, aws, principal),
        permissions::JOB_LIST.check(&aws.job_list, principal),
        permissions::role(wanted, found, aws, principal),
        permissions::pass_role(wanted, aws, principal),
        permissions::role_permissions(wanted, aws, principal),
        scheduled_ends::check(wanted, found, aws.schedules.as_ref(), principal),
    ];
    checks.extend(buckets(wanted, aws, principal));
    checks.push(image(wanted, aws));
    checks.push(quotas::quotas(wanted, &aws.quotas, principal));
    checks.push(permissions::LOGS.check(&aws.logs, principal));
    checks.push(permissions::METRICS.check(&aws.metrics, principal));
    checks.push(permissions::PRICE_LIST.check(&aws.price_list, principal));
    checks
}

fn not_looked_at(found: &Observations) -> impl Iterator<Item = Check> + '_ {
    let all = CheckName::ALL.iter().copied();
    let at_aws = all.filter(|name| (CheckName::OwnJobs..=CheckName::PriceList).contains(name));
    let why = if is_unanswered(found) {
        "not looked at: AWS did not answer"
    } else {
        "not looked at: AWS does not accept the credentials"
    };
    at_aws.map(move |name| Check::unknown(name, why))
}

/// Whether nobody knows if the credentials are accepted.
fn is_unanswered(found: &Observations) -> bool {
    let lost = matches!(
        found.caller,
        Err(AwsError::Unknown(_) | AwsError::Throttled(_))
    );
    lost && found.clock_off_seconds.is_none()
}

fn database(found: &DatabaseFound) -> Check {
    let DatabaseFound {
        version,
        schema_applied,
        schema_known,
        answered_in_ms,
        clock_off_seconds,
    } = found;
    let name = CheckName::Database;
    if schema_applied != schema_known {
        return Check::failed(
            name,
            format!("the schema is at version {schema_applied}, this program needs {schema_known}"),
        )
        .fix("bakeoff migrate");
    }
    if clock_off_seconds.abs() > CLOCK_OFF_SECONDS {
        return Check::warning(
            name,
            format!("its clock is {clock_off_seconds:+.0} s off this machine's; leases use its clock, jobs this one"),
        )
        .fix("synchronise both machines with NTP");
    }
    Check::ok(
        name,
        format!(
            "PostgreSQL {version}, schema version {schema_applied}, answers in {answered_in_ms:.1} ms"
        ),
    )
}

fn tasks(found: &Observations) -> Check {
    let name = CheckName::Tasks;
    let log = "the service's log says why; GET /readyz?verbose=true shows each task";
    let waited = found.lag_seconds;
    if !found.failing_tasks.is_empty() {
        let failing = found.failing_tasks.join(", ");
        return Check::failed(name, format!("these fail: {failing}")).fix(log);
    }
    if waited > LAG_SECONDS {
        return Check::warning(name, format!("due work has waited {waited:.0} s")).fix(log);
    }
    Check::ok(name, format!("all work; due work waits {waited:.0} s"))
}

fn clock(off: Option<f64>, region: &str) -> Check {
    let name = CheckName::Clock;
    let Some(off) = off else {
        return Check::unknown(
            name,
            "AWS did not answer, so the clocks could not be compared",
        )
        .fix(format!(
            "let this machine reach sts.{region}.amazonaws.com:443"
        ));
    };
    let in_words = |off: f64| {
        let way = if off > 0.0 { "ahead of" } else { "behind" };
        format!("this machine's clock is {:.0} s {way} AWS's", off.abs())
    };
    let mend = "synchronise the clock: timedatectl set-ntp true";
    if off.abs() > SIGNED_WITHIN_SECONDS {
        let detail = format!(
            "{}: AWS refuses requests that are signed more than five minutes off",
            in_words(off)
        );
        return Check::failed(name, detail).fix(mend);
    }
    if off.abs() > CLOCK_OFF_SECONDS {
        return Check::warning(name, in_words(off)).fix(mend);
    }
    Check::ok(name, "within 30 s of AWS's")
}

/// What AWS said, without our own word for it.
fn said(error: &AwsError) -> String {
    let text = error.to_string();
    text.split_once(": ")
        .map_or(text.clone(), |(_, rest)| rest.to_owned())
}

/// Whether no check failed; those that could not be made do not count.
pub fn is_ok(checks: &[Check]) -> bool {
    checks.iter().all(|check| check.state != CheckState::Failed)
}

fn credentials(found: &Observations) -> Check {
    let name = CheckName::Credentials;
    let caller = match &found.caller {
        Ok(caller) => caller,
        Err(AwsError::Expired(said)) => {
            return Check::failed(name, format!("they have expired: {said}"))
                .fix("renew them (aws sso login), or give the service a role, whose credentials renew themselves");
        }
        Err(error) if is_unanswered(found) => {
            let first = error
                .to_string()
                .lines()
                .next()
                .unwrap_or_default()
                .to_owned();
            let short: String = first.chars().take(160).collect();
            return Check::unknown(name, format!("AWS did not answer: {short}")).fix(
                "let the service reach AWS (sts, sagemaker, s3, … of the region), and run it again",
            );
        }
        Err(error) => {
            let is_off = found
                .clock_off_seconds
                .is_some_and(|off| off.abs() > SIGNED_WITHIN_SECONDS);
            let fix = if is_off {
                "synchronise the clock first (see `clock`)"
            } else {
                "give the service valid credentials: `aws sts get-caller-identity` in its environment must answer"
            };
            return Check::failed(name, format!("AWS does not accept them: {}", said(error)))
                .fix(fix);
        }
    };
    if let Some(own) = found.account.as_ref().filter(|own| **own != caller.account) {
        return Check::failed(
            name,
            format!(
                "they belong to account {}, but this installation's jobs are in {own}",
                caller.account
            ),
        )
        .fix(format!("start the service with credentials for {own}"));
    }
    Check::ok(name, format!("account {}, {}", caller.account, caller.arn))
}

fn buckets(wanted: &CheckScope, aws: &AwsFound, principal: &str) -> Vec<Check> {
    if aws.buckets.is_empty() {
        return vec![
            Check::unknown(CheckName::Bucket, "no bucket was named")
                .fix("name one: --output s3://bucket/prefix, or an experiment's file"),
        ];
    }
    let each = aws.buckets.iter();
    each.map(|found| bucket(wanted, found, principal).of(&found.bucket))
        .collect()
}

fn bucket(wanted: &CheckScope, found: &BucketFound, principal: &str) -> Check {
    let name = CheckName::Bucket;
    let region = &wanted.region;
    let BucketFound { bucket, .. } = found;
    match &found.region {
        Ok(Some(other)) if other != region => {
            return Check::failed(
                name,
                format!("it is in {other}, but jobs run in {region}: SageMaker only takes buckets of its own region"),
            )
            .fix(format!("use a bucket in {region}: aws s3 mb s3://{bucket}-{region} --region {region}"));
        }
        Err(AwsError::NotFound(_)) => {
            return Check::failed(name, "there is no such bucket")
                .fix(format!("aws s3 mb s3://{bucket} --region {region}"));
        }
        Err(AwsError::Denied(said)) => {
            return Check::failed(name, format!("AWS denies a look at it: {said}"))
                .fix(format!("allow {principal} s3:ListBucket on arn:aws:s3:::{bucket} ({POLICY}), if it is yours"));
        }
        Err(error) => return Check::unknown(name, error.to_string()).fix("run it again"),
        Ok(_) => {}
    }
    contents(region, found, principal)
}

/// What lies in a bucket of the right region.
fn contents(region: &str, found: &BucketFound, principal: &str) -> Check {
    let name = CheckName::Bucket;
    let bucket = &found.bucket;
    let mut unseen = Vec::new();
    for (place, listed) in &found.listed {
        let uri = &place.uri;
        match (listed, place.usage) {
            (Ok(false), S3Use::Input) => {
                return Check::failed(
                    name,
                    format!("nothing lies below {uri}: SageMaker refuses a job without its inputs"),
                )
                .fix(format!(
                    "upload the data there, or mend the address: aws s3 ls {uri}"
                ));
            }
            (Ok(_), _) => {}
            // Only jobs have to see it.
            (Err(AwsError::Denied(_)), S3Use::Input) => unseen.push(uri.as_str()),
            (Err(AwsError::Denied(said)), _) => {
                let detail = format!(
                    "AWS denies listing {uri}, so the service sees no checkpoints or output there: {said}"
                );
                return Check::failed(name, detail).fix(format!(
                    "allow {principal} s3:ListBucket on arn:aws:s3:::{bucket} for that prefix ({POLICY})"
                ));
            }
            (Err(error), _) => {
                return Check::unknown(name, format!("{uri}: {error}")).fix("run it again");
            }
        }
    }
    if !unseen.is_empty() {
        return Check::unknown(
            name,
            format!(
                "in {region}; the service may not list {}, so whether anything lies there is not known",
                unseen.join(", ")
            ),
        )
        .fix(format!("allow {principal} s3:ListBucket there, or look yourself: aws s3 ls {}", unseen.join("; aws s3 ls ")));
    }
    match &found.region {
        Ok(None) => Check::ok(name, "can be listed; AWS did not say its region"),
        _ => Check::ok(name, format!("in {region}, can be listed")),
    }
}

fn image(wanted: &CheckScope, aws: &AwsFound) -> Check {
    let name = CheckName::Image;
    let Some(uri) = &wanted.image else {
        return Check::unknown(name, "no image was named")
            .fix("name one: --image <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>, or an experiment's file");
    };
    let region = &wanted.region;
    let checked = match (uri.parts(), &aws.image) {
        (None, _) => Check::failed(name, "this is not an image in Amazon ECR, which SageMaker needs")
            .fix("tag it and push it to Amazon ECR (docker tag, docker push), and name it there: <account>.dkr.ecr.<region>.amazonaws.com/<repository>:<tag>"),
        (Some(parts), _) if parts.region != *region => Check::failed(
            name,
            format!("it is in {}, but jobs run in {region}: SageMaker only pulls from its own region", parts.region),
        )
        .fix(format!("use the same image of {region}: push it there, let ECR replicate it, or, of AWS's own, name that region's registry")),
        (Some(parts), Some(Ok(None))) => Check::failed(
            name,
            format!("repository {} of account {} has no {}", parts.repository, parts.account, parts.reference),
        )
        .fix(format!(
            "push it, or see what is there: aws ecr list-images --registry-id {} --repository-name {} --region {region}",
            parts.account, parts.repository
        )),
        (Some(_), Some(Ok(Some(digest)))) => Check::ok(name, format!("there, {digest}")),
        (Some(parts), Some(Err(AwsError::NotFound(_)))) => Check::failed(
            name,
            format!("account {} has no repository {} in {region}", parts.account, parts.repository),
        )
        .fix(format!("aws ecr create-repository --repository-name {} --region {region}, and push the image", parts.repository)),
        (Some(_), Some(Err(AwsError::Denied(_)))) => Check::unknown(
            name,
            "the service may not look into its repository; only the execution role has to",
        )
        .fix(format!("to have it checked, allow ecr:BatchGetImage ({POLICY}); or run the job: the same command with --job")),
        (Some(_), Some(Err(error))) => Check::unknown(name, error.to_string()).fix("run it again"),
        (Some(_), None) => Check::unknown(name, "not looked at"),
    };
    checked.of(uri.as_str())
}
