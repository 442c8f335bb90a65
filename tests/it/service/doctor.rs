//! The checks of an installation against the region: all is well at first, and each broken set-up is
//! named, with the line that mends it.

use std::sync::Arc;

use bakeoff_api::comparison::Comparison;
use bakeoff_api::doctor::{CheckView, Checkup};
use bakeoff_api::experiments::ExperimentSummary;
use bakeoff_domain::doctor::{CheckName, CheckState};
use bakeoff_domain::lifecycle::state::TrialState;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::support::{TestApp, listening, on_p5};

const ROLE: &str = "arn:aws:iam::111122223333:role/training";
const IMAGE: &str = "111122223333.dkr.ecr.us-east-1.amazonaws.com/lora:1.0";

fn query(pairs: &[(&str, &str)]) -> String {
    let pairs = serde_html_form::to_string(pairs).expect("a query");
    format!("/v1/doctor?{pairs}")
}

/// All that can be named.
fn whole() -> String {
    query(&[
        ("role_arn", ROLE),
        ("image", IMAGE),
        ("input_s3_uri", "s3://tests/train/"),
        ("output_s3_uri", "s3://tests/models/"),
        ("checkpoint_s3_uri", "s3://tests/checkpoints/"),
        ("instance_type", "ml.p5.48xlarge"),
    ])
}

fn checked(found: &Checkup, name: CheckName) -> &CheckView {
    let mut those = found.checks.iter().filter(|check| check.name == name);
    let one = those.next().expect("every check is made");
    assert!(those.next().is_none(), "{name:?} twice");
    one
}

fn failed(found: &Checkup) -> Vec<CheckName> {
    let those = found.checks.iter();
    those
        .filter(|check| check.state == CheckState::Failed)
        .map(|check| check.name)
        .collect()
}

#[sqlx::test(migrations = false)]
async fn a_good_set_up_passes_and_nothing_is_started(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let found: Checkup = test.read(&whole()).await;
    let states: Vec<_> = found
        .checks
        .iter()
        .map(|check| (check.name, check.state, &check.detail))
        .collect();
    assert!(
        // The shipped price of p5 is not read from AWS's list, and the check says so.
        found.ok
            && states
                .iter()
                .all(|(name, state, _)| *state == CheckState::Ok
                    || *name == CheckName::Prices && *state == CheckState::Warning),
        "{states:#?}"
    );
    assert_eq!(found.checks.len(), CheckName::ALL.len());
    assert_eq!(test.record().await["jobs"], json!([]));
    let started: Vec<ExperimentSummary> = test.page("/v1/experiments").await;
    assert!(started.is_empty(), "a look starts nothing");

    // A reader may not make the service call AWS; parameters are checked one by one.
    let reader = test.key(test.project, Role::Viewer).await;
    let (status, _) = test
        .send(test.request(Method::GET, "/v1/doctor", &reader))
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    for (name, value) in [
        ("region", "eu-west-1"),
        ("role_arn", "training"),
        ("instance_type", "ml.p9.48xlarge"),
        ("output_s3_uri", "tests/models"),
        ("colour", "red"),
    ] {
        let path = query(&[(name, value)]);
        let (status, problem) = test
            .send(test.request(Method::GET, &path, &test.admin))
            .await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {problem}");
    }
}

/// A set-up, the check that must fail because of it, and words of its detail and its fix.
struct Broken {
    setup: Value,
    name: CheckName,
    says: &'static str,
    fix: &'static str,
}

fn broken(setup: Value, name: CheckName, says: &'static str, fix: &'static str) -> Broken {
    Broken {
        setup,
        name,
        says,
        fix,
    }
}

fn set_ups() -> Vec<Broken> {
    use CheckName as C;
    let denied = |action: &str| json!({ "deny": [action] });
    vec![
        broken(
            json!({"no_role": true}),
            C::Role,
            "there is no such role",
            "aws iam list-roles",
        ),
        broken(
            json!({"role_trusts": "ec2.amazonaws.com"}),
            C::Role,
            "does not let sagemaker.amazonaws.com assume it",
            "aws iam update-assume-role-policy --role-name training",
        ),
        broken(
            denied("iam:PassRole"),
            C::PassRole,
            "the service's policies deny iam:PassRole",
            "PassOneRoleToSageMakerOnly",
        ),
        broken(
            json!({"deny_role": ["s3:PutObject"]}),
            C::RolePermissions,
            "s3:PutObject on arn:aws:s3:::tests/models/bakeoff",
            "aws iam put-role-policy --role-name training",
        ),
        broken(
            json!({"bucket_region": "eu-west-1"}),
            C::Bucket,
            "it is in eu-west-1",
            "--region us-east-1",
        ),
        broken(
            denied("s3:ListBucket"),
            C::Bucket,
            "denies listing s3://tests/models/",
            "allow arn:aws:iam::111122223333:role/bakeoff s3:ListBucket",
        ),
        broken(
            json!({"no_image": true}),
            C::Image,
            "repository lora of account 111122223333 has no 1.0",
            "aws ecr list-images",
        ),
        broken(
            denied("logs:DescribeLogStreams"),
            C::Logs,
            "logs:DescribeLogStreams",
            "logs:GetLogEvents",
        ),
        broken(
            denied("logs:GetLogEvents"),
            C::Logs,
            "logs:GetLogEvents",
            "control-plane.json",
        ),
        broken(
            denied("cloudwatch:GetMetricData"),
            C::Metrics,
            "cloudwatch:GetMetricData",
            "control-plane.json",
        ),
        broken(
            denied("servicequotas:ListServiceQuotas"),
            C::Quotas,
            "how many instances may run",
            "servicequotas:ListServiceQuotas",
        ),
        broken(
            denied("pricing:GetProducts"),
            C::PriceList,
            "pricing:GetProducts",
            "control-plane.json",
        ),
        broken(
            denied("sagemaker:ListTrainingJobs"),
            C::JobList,
            "sagemaker:ListTrainingJobs",
            "control-plane.json",
        ),
        broken(
            denied("sagemaker:CreateTrainingJob"),
            C::OwnJobs,
            "sagemaker:CreateTrainingJob on arn:aws:sagemaker:us-east-1:111122223333:training-job/bakeoff-",
            "CreateBakeoffJobs",
        ),
        broken(
            json!({"clock_off_seconds": 600}),
            C::Clock,
            "600 s behind AWS's",
            "timedatectl set-ntp true",
        ),
        broken(
            json!({"unknown_credentials": true}),
            C::Credentials,
            "AWS does not accept them",
            "aws sts get-caller-identity",
        ),
    ]
}

#[sqlx::test(migrations = false)]
async fn each_broken_set_up_is_named_with_its_fix(pool: PgPool) {
    let test = TestApp::new(pool).await;
    for Broken {
        setup,
        name,
        says,
        fix,
    } in set_ups()
    {
        test.region_post("/_sim/setup", &setup).await;
        // Permits are earned with time.
        test.advance(TimeDelta::seconds(30)).await;
        let found: Checkup = test.read(&whole()).await;
        let check = checked(&found, name);
        let mended = check.fix.as_deref().unwrap_or_default();
        assert!(
            check.state == CheckState::Failed
                && check.detail.contains(says)
                && mended.contains(fix),
            "{setup}: {check:#?}"
        );
        // It is the only one that fails; a clock that is off takes the credentials with it.
        let others: Vec<CheckName> = failed(&found)
            .into_iter()
            .filter(|failed| *failed != name)
            .collect();
        let expected = match name {
            CheckName::Clock => vec![CheckName::Credentials],
            _ => Vec::new(),
        };
        assert_eq!(others, expected, "{setup}: {:#?}", found.checks);
        assert!(!found.ok);
    }
    test.region_post("/_sim/setup", &json!({})).await;
    let found: Checkup = test.read(&whole()).await;
    assert!(found.ok, "{:#?}", found.checks);

    // Credentials and a role of another account.
    test.region_post("/_sim/account", &json!({"account": "999988887777"}))
        .await;
    let found: Checkup = test.read(&whole()).await;
    let of_account = checked(&found, CheckName::Credentials);
    assert!(
        of_account
            .detail
            .contains("account 999988887777, but this installation's jobs are in 111122223333"),
        "{of_account:?}"
    );
    let role = checked(&found, CheckName::Role);
    assert!(role.detail.contains("cannot be passed"), "{role:?}");
}

#[sqlx::test(migrations = false)]
async fn what_cannot_be_seen_is_not_called_broken(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let deny = json!({"deny": ["iam:SimulatePrincipalPolicy", "iam:GetRole", "ecr:BatchGetImage"]});
    test.region_post("/_sim/setup", &deny).await;
    let found: Checkup = test.read(&whole()).await;
    for name in [
        CheckName::Role,
        CheckName::PassRole,
        CheckName::OwnJobs,
        CheckName::RolePermissions,
        CheckName::Image,
    ] {
        let check = checked(&found, name);
        assert_eq!(check.state, CheckState::Unknown, "{check:?}");
        let fix = check.fix.as_deref().unwrap_or_default();
        assert!(fix.contains("the same command with --job"), "{check:?}");
    }
    assert!(found.ok);

    // Nothing named and nothing known: said, not guessed.
    test.region_post("/_sim/setup", &json!({})).await;
    let found: Checkup = test.read("/v1/doctor").await;
    for name in [CheckName::Role, CheckName::Bucket, CheckName::Image] {
        assert_eq!(checked(&found, name).state, CheckState::Unknown);
    }
    assert!(found.ok && found.job.is_none());
    // The newest experiment's, once there is one.
    test.start(&on_p5(1)).await;
    let found: Checkup = test.read("/v1/doctor").await;
    let role = checked(&found, CheckName::Role);
    assert_eq!(
        (role.state, role.subject.as_str()),
        (
            CheckState::Ok,
            on_p5(1)["workload"]["role_arn"].as_str().unwrap()
        )
    );
    assert!(found.of_experiment.is_some(), "and it says whose");
    // What is named is not mixed with it.
    let found: Checkup = test
        .read(&query(&[("instance_type", "ml.p5.48xlarge")]))
        .await;
    assert_eq!(checked(&found, CheckName::Role).state, CheckState::Unknown);
    assert!(found.of_experiment.is_none());
    // An input that is not there.
    let empty = query(&[("input_s3_uri", "s3://tests/nothing/")]);
    let found: Checkup = test.read(&empty).await;
    let bucket = checked(&found, CheckName::Bucket);
    assert!(
        bucket.state == CheckState::Failed && bucket.detail.contains("nothing lies below"),
        "{bucket:?}"
    );
    // What is elsewhere is seen without asking.
    let elsewhere = query(&[(
        "image",
        "111122223333.dkr.ecr.eu-west-1.amazonaws.com/lora:1.0",
    )]);
    let found: Checkup = test.read(&elsewhere).await;
    let image = checked(&found, CheckName::Image);
    assert!(
        image.state == CheckState::Failed && image.detail.contains("it is in eu-west-1"),
        "{image:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn a_quota_of_zero_is_said(pool: PgPool) {
    let test = TestApp::with_faults(pool, &["--quota", "0"]).await;
    let found: Checkup = test.read(&whole()).await;
    let quotas = checked(&found, CheckName::Quotas);
    assert_eq!(quotas.state, CheckState::Failed);
    assert!(
        quotas
            .detail
            .contains("ml.p5.48xlarge 0 on demand and 0 spot"),
        "{quotas:?}"
    );
    let fix = quotas.fix.as_deref().unwrap_or_default();
    assert!(
        fix.contains("`ml.p5.48xlarge for training job usage`"),
        "{fix}"
    );
    assert!(found.job.is_none(), "no type may run");
    let found: Checkup = test.read("/v1/doctor").await;
    let quotas = checked(&found, CheckName::Quotas);
    assert!(
        quotas.state == CheckState::Failed && quotas.detail.contains("as in a new account"),
        "{quotas:?}"
    );
}

#[sqlx::test(migrations = false)]
async fn the_job_that_proves_everything_costs_cents(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let found: Checkup = test.read(&whole()).await;
    let job = found.job.expect("a job");
    let body = serde_json::to_value(&job).expect("a body");
    let experiment = test.start(&body).await;
    test.run_to_end(&experiment, 3).await;
    let table: Comparison = test
        .read(&format!("/v1/experiments/{experiment}/comparison"))
        .await;
    let row = &table.rows[0];
    assert_eq!(row.state, TrialState::Completed, "{row:?}");
    let cost = row.total_usd.expect("a cost").0;
    assert!(
        cost > rust_decimal::Decimal::ZERO && cost < rust_decimal::Decimal::new(20, 2),
        "{cost}"
    );
    // It is not what the next look is about.
    let next: Checkup = test.read("/v1/doctor").await;
    assert_eq!(checked(&next, CheckName::Role).state, CheckState::Unknown);
}

/// The command, with the service's address and key; its exit code and what it printed.
async fn command(test: &TestApp, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    command
        .arg("doctor")
        .args(arguments)
        .env("BAKEOFF_URL", &test.url)
        .env("BAKEOFF_API_KEY", &test.admin);
    let ended = tokio::task::spawn_blocking(move || command.output()).await;
    let output = ended.expect("its thread").expect("the command");
    (
        output.status.code(),
        String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr),
    )
}

#[sqlx::test(migrations = false)]
async fn the_command_exits_by_what_it_found_and_ends_with_its_job(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let named = [
        "--role-arn",
        ROLE,
        "--image",
        IMAGE,
        "--output",
        "s3://tests/models/",
    ];
    let (code, said) = command(&test, &named).await;
    assert_eq!(code, Some(0), "{said}");
    test.region_post("/_sim/setup", &json!({"no_role": true}))
        .await;
    test.advance(TimeDelta::seconds(30)).await;
    let with_job = [&named[..], &["--job"]].concat();
    let (code, said) = command(&test, &with_job).await;
    assert!(
        code == Some(1) && said.contains("no job was started"),
        "{said}"
    );
    assert_eq!(test.record().await["jobs"], json!([]));
    // What fails is told in JSON, too.
    let (code, said) = command(&test, &[&with_job[..], &["--json"]].concat()).await;
    assert!(code == Some(1) && said.contains(r#""ok": false"#), "{said}");

    // IAM may not be asked, and the job finds it out: it is over when only a person can let it go on.
    let deny = json!({"deny": ["iam:SimulatePrincipalPolicy", "iam:PassRole"]});
    test.region_post("/_sim/setup", &deny).await;
    test.advance(TimeDelta::seconds(30)).await;
    let ended = command(&test, &with_job);
    let mut ended = std::pin::pin!(ended);
    let (code, said) = loop {
        tokio::select! {
            ended = &mut ended => break ended,
            () = async {
                test.tick().await;
                test.advance(TimeDelta::seconds(30)).await;
            } => {}
        }
    };
    assert!(
        code == Some(1) && said.contains("✘ job") && said.contains("iam:PassRole"),
        "{said}"
    );
    // Nothing waits for anybody.
    let running: Vec<ExperimentSummary> = test.page("/v1/experiments?state=running").await;
    assert!(running.is_empty(), "{running:?}");
}

/// Each lack of an end at AWS is told in dollars, with its fix; it is a failure where an end is required.
#[sqlx::test(migrations = false)]
async fn a_missing_end_at_aws_is_told_in_dollars(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let broken = [
        (
            json!({"scheduler_role_trusts": "ec2.amazonaws.com"}),
            "scheduler-trust.json",
        ),
        (
            json!({"deny": ["scheduler:UpdateSchedule"]}),
            "ScheduleEnds",
        ),
        (
            json!({"deny_role": ["sagemaker:DeleteEndpoint"]}),
            "deploy/iam/scheduler.json",
        ),
    ];
    let dollars = "each day that the service is away costs $";
    for is_required in [false, true] {
        let mut settings = (*test.app.settings).clone();
        settings.require_scheduled_end = is_required;
        test.app.settings = Arc::new(settings);
        test.url = listening(&test.app).await;
        let expected = if is_required {
            CheckState::Failed
        } else {
            CheckState::Warning
        };
        for (setup, fix) in &broken {
            test.region_post("/_sim/setup", setup).await;
            test.advance(TimeDelta::seconds(30)).await;
            let found: Checkup = test.read(&whole()).await;
            let check = checked(&found, CheckName::ScheduledEnds);
            assert!(
                check.state == expected
                    && check.detail.contains(dollars)
                    && check.fix.as_deref().unwrap_or_default().contains(fix),
                "{setup}: {check:#?}"
            );
        }
    }
    let mut settings = (*test.app.settings).clone();
    (settings.scheduler_role_arn, settings.require_scheduled_end) = (None, false);
    test.app.settings = Arc::new(settings);
    test.url = listening(&test.app).await;
    let found: Checkup = test.read(&whole()).await;
    let check = checked(&found, CheckName::ScheduledEnds);
    let fix = check.fix.as_deref().unwrap_or_default();
    assert!(
        check.state == CheckState::Warning
            && check.detail.contains(dollars)
            && check.detail.contains("(one ml.p5.48xlarge)")
            && fix.contains("--scheduler-role-arn"),
        "{check:#?}"
    );
}
