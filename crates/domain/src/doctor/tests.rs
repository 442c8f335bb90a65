//! Tests of the checks: what policies, addresses and answers mean.

use rust_decimal::Decimal;

use super::found::{
    AwsFound, BucketFound, DatabaseFound, Observations, PriceFound, SchedulesFound,
};
use super::permissions::trusts_sagemaker;
use super::questions::{
    Caller, Decision, RoleFound, principal_of, questions_of_role, questions_of_service, role_name,
};
use super::wanted::{CheckScope, S3Place, S3Use};
use super::{Check, CheckName, CheckState, examine, job};
use crate::money::Usd;
use crate::money::price::PriceStatus;
use crate::sagemaker::error::AwsError;
use crate::sagemaker::image::ImageUri;
use crate::sagemaker::quota::{Quota, Usage};

const ROLE: &str = "arn:aws:iam::111122223333:role/training";

fn wanted() -> CheckScope {
    CheckScope {
        region: "us-east-1".to_owned(),
        role_arn: Some(ROLE.to_owned()),
        image: Some(ImageUri(
            "111122223333.dkr.ecr.us-east-1.amazonaws.com/lora:1".to_owned(),
        )),
        places: vec![S3Place {
            uri: "s3://b/models/".to_owned(),
            usage: S3Use::Output,
        }],
        ..CheckScope::default()
    }
}

fn price(kind: &str, cents: i64) -> PriceFound {
    PriceFound {
        instance_type: kind.to_owned(),
        status: Some(PriceStatus::Listed),
        usd_per_hour: Some(Usd(Decimal::new(cents, 2))),
    }
}

fn quota(kind: &str, instances: u32) -> Quota {
    Quota {
        instance_type: kind.to_owned(),
        usage: Usage::OnDemand,
        instances,
    }
}

fn aws() -> AwsFound {
    AwsFound {
        own_jobs: Ok(Vec::new()),
        job_list: Ok(()),
        role: Some(Ok(RoleFound {
            arn: ROLE.to_owned(),
            trust_policy: trust(r#"{"Service": "sagemaker.amazonaws.com"}"#),
        })),
        pass_role: Some(Ok(Vec::new())),
        role_permissions: Some(Ok(Vec::new())),
        schedules: Some(SchedulesFound {
            role_arn: "arn:aws:iam::111122223333:role/bakeoff-scheduler".to_owned(),
            role: Ok(RoleFound {
                arn: "arn:aws:iam::111122223333:role/bakeoff-scheduler".to_owned(),
                trust_policy: trust(r#"{"Service": "scheduler.amazonaws.com"}"#),
            }),
            rights: Ok(Vec::new()),
            role_permissions: Ok(Vec::new()),
        }),
        buckets: Vec::new(),
        image: Some(Ok(Some("sha256:1".to_owned()))),
        quotas: Ok(vec![
            quota("ml.p5.48xlarge", 1),
            quota("ml.g5.xlarge", 1),
            quota("ml.g4dn.xlarge", 0),
        ]),
        logs: Ok(()),
        metrics: Ok(()),
        price_list: Ok(()),
    }
}

fn found(aws: AwsFound) -> Observations {
    Observations {
        database: DatabaseFound {
            version: "18.4".to_owned(),
            schema_applied: 1,
            schema_known: 1,
            answered_in_ms: 0.2,
            clock_off_seconds: 0.0,
        },
        failing_tasks: Vec::new(),
        lag_seconds: 0.0,
        clock_off_seconds: Some(0.0),
        caller: Ok(Caller {
            account: "111122223333".to_owned(),
            arn: "arn:aws:sts::111122223333:assumed-role/bakeoff/i-1".to_owned(),
        }),
        account: Some("111122223333".to_owned()),
        at_aws: Some(aws),
        prices: vec![
            price("ml.p5.48xlarge", 6040),
            price("ml.g5.xlarge", 141),
            price("ml.g4dn.xlarge", 74),
        ],
        requires_scheduled_end: false,
    }
}

fn check(wanted: &CheckScope, found: &Observations, name: CheckName) -> Check {
    let mut all = examine(wanted, found).into_iter();
    all.find(|check| check.name == name).unwrap()
}

fn trust(principal: &str) -> String {
    format!(
        r#"{{"Version": "2012-10-17", "Statement": [{{"Effect": "Allow", "Principal": {principal}, "Action": "sts:AssumeRole"}}]}}"#
    )
}

#[test]
fn trust_policies_are_read_in_every_form_that_iam_keeps_them() {
    for principal in [
        r#"{"Service": "sagemaker.amazonaws.com"}"#,
        r#"{"Service": ["ec2.amazonaws.com", "sagemaker.amazonaws.com"]}"#,
        r#"{"AWS": "arn:aws:iam::1:root", "Service": "sagemaker.amazonaws.com"}"#,
    ] {
        assert!(trusts_sagemaker(&trust(principal)), "{principal}");
    }
    for principal in [
        r#"{"Service": "ec2.amazonaws.com"}"#,
        r#"{"AWS": "sagemaker.amazonaws.com"}"#,
        r#"{"Service": []}"#,
    ] {
        assert!(!trusts_sagemaker(&trust(principal)), "{principal}");
    }
    let one_statement = r#"{"Statement": {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"},
        "Action": ["sts:TagSession", "sts:AssumeRole"]}}"#;
    assert!(trusts_sagemaker(one_statement));
    let other_action = one_statement.replace("sts:AssumeRole", "sts:SetSourceIdentity");
    assert!(!trusts_sagemaker(&other_action));
    assert!(!trusts_sagemaker(&one_statement.replace("Allow", "Deny")));
    assert!(trusts_sagemaker(
        &one_statement.replace("sts:AssumeRole", "sts:Assume*")
    ));
    // A guard against other accounts, as AWS recommends it.
    let guarded = r#"{"Statement": [{"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"},
        {"Effect": "Deny", "Principal": "*", "Action": "sts:AssumeRole", "Condition": {"StringNotEquals": {"aws:SourceAccount": "1"}}}]}"#;
    assert!(trusts_sagemaker(guarded));
    assert!(!trusts_sagemaker("no JSON"));
}

#[test]
fn images_are_taken_apart() {
    let parts = |uri: &str| {
        let uri = ImageUri(uri.to_owned());
        uri.parts().map(|parts| {
            [
                parts.account,
                parts.region,
                parts.repository,
                parts.reference,
            ]
            .map(str::to_owned)
        })
    };
    let host = "763104351884.dkr.ecr.us-west-2.amazonaws.com";
    let known = |repository: &str, reference: &str| {
        Some(["763104351884", "us-west-2", repository, reference].map(str::to_owned))
    };
    assert_eq!(
        parts(&format!("{host}/pytorch-training:2.4-gpu")),
        known("pytorch-training", "2.4-gpu")
    );
    assert_eq!(
        parts(&format!("{host}/team/lora@sha256:ab")),
        known("team/lora", "sha256:ab")
    );
    assert_eq!(
        parts(&format!("{host}/team/lora:1.0@sha256:ab")),
        known("team/lora", "sha256:ab")
    );
    assert_eq!(parts(&format!("{host}/lora")), known("lora", "latest"));
    for other in [
        "pytorch/pytorch:2.4",
        "docker.io/library/python:3",
        "",
        host,
    ] {
        assert_eq!(parts(other), None, "{other}");
    }
}

#[test]
fn a_session_is_not_a_principal() {
    let session = principal_of("arn:aws:sts::111122223333:assumed-role/bakeoff/i-0abc").unwrap();
    assert_eq!(session.arn, "arn:aws:iam::111122223333:role/bakeoff");
    assert_eq!(session.role_name.as_deref(), Some("bakeoff"));
    let user = principal_of("arn:aws:iam::111122223333:user/team/ann").unwrap();
    assert_eq!(
        (user.arn.as_str(), user.role_name),
        ("arn:aws:iam::111122223333:user/team/ann", None)
    );
    assert_eq!(principal_of("arn:aws:iam::111122223333:root"), None);
    assert_eq!(principal_of("nonsense"), None);
    assert_eq!(
        role_name("arn:aws:iam::1:role/service-role/training"),
        "training"
    );
}

#[test]
fn a_role_is_asked_for_what_its_jobs_do_and_no_more() {
    let mut wanted = wanted();
    wanted.places.push(S3Place {
        uri: "s3://data/train/".to_owned(),
        usage: S3Use::Input,
    });
    wanted.places.push(S3Place {
        uri: "s3://b/saved".to_owned(),
        usage: S3Use::Checkpoints,
    });
    let asked = questions_of_role(&wanted);
    let on = |action: &str| -> Vec<&str> {
        let those = asked.iter().filter(|one| one.actions.contains(&action));
        those.map(|one| one.resource.as_str()).collect()
    };
    assert_eq!(
        on("s3:PutObject"),
        [
            "arn:aws:s3:::b/models/bakeoff",
            "arn:aws:s3:::b/saved/bakeoff"
        ]
    );
    // Checkpoints are restored, too.
    assert_eq!(
        on("s3:GetObject"),
        [
            "arn:aws:s3:::data/train/bakeoff",
            "arn:aws:s3:::b/saved/bakeoff"
        ]
    );
    assert_eq!(on("s3:ListBucket"), ["arn:aws:s3:::data", "arn:aws:s3:::b"]);
    // SageMaker lists a channel by its prefix as it is written.
    let prefixes = asked.iter().flat_map(|one| &one.context);
    let prefixes: Vec<&str> = prefixes
        .filter(|one| one.key == "s3:prefix")
        .map(|one| one.values[0].as_str())
        .collect();
    assert_eq!(prefixes, ["train/", "saved"]);
    assert_eq!(
        on("ecr:BatchGetImage"),
        ["arn:aws:ecr:us-east-1:111122223333:repository/lora"]
    );
}

#[test]
fn the_clock_may_be_as_far_off_as_signatures_allow() {
    let state = |off| {
        let mut seen = found(aws());
        seen.clock_off_seconds = off;
        check(&wanted(), &seen, CheckName::Clock).state
    };
    assert_eq!(state(Some(2.0)), CheckState::Ok);
    assert_eq!(state(Some(-29.0)), CheckState::Ok);
    assert_eq!(state(Some(-120.0)), CheckState::Warning);
    assert_eq!(state(Some(301.0)), CheckState::Failed);
    assert_eq!(state(Some(-600.0)), CheckState::Failed);
    assert_eq!(state(None), CheckState::Unknown);
}

#[test]
fn without_credentials_nothing_is_said_about_aws() {
    let mut seen = found(aws());
    seen.caller = Err(AwsError::Expired("the token".to_owned()));
    seen.at_aws = None;
    let all = examine(&wanted(), &seen);
    let of = |state| all.iter().filter(|check| check.state == state).count();
    assert_eq!(of(CheckState::Failed), 1);
    assert_eq!(of(CheckState::Unknown), 12);
    assert_eq!(all.len(), CheckName::ALL.len());
    let expired = check(&wanted(), &seen, CheckName::Credentials);
    assert!(expired.fix.unwrap().contains("aws sso login"));
}

#[test]
fn a_lost_answer_is_no_denial() {
    let mut aws = aws();
    aws.logs = Err(AwsError::Unknown("timed out".to_owned()));
    aws.pass_role = Some(Err(AwsError::Throttled("later".to_owned())));
    let seen = found(aws);
    for name in [CheckName::Logs, CheckName::PassRole] {
        assert_eq!(check(&wanted(), &seen, name).state, CheckState::Unknown);
    }
}

#[test]
fn a_role_with_a_path_must_be_named_with_it() {
    let mut aws = aws();
    let whole = "arn:aws:iam::111122223333:role/service-role/training";
    aws.role = Some(Ok(RoleFound {
        arn: whole.to_owned(),
        trust_policy: trust(r#"{"Service": "sagemaker.amazonaws.com"}"#),
    }));
    let role = check(&wanted(), &found(aws), CheckName::Role);
    assert_eq!(role.state, CheckState::Failed);
    assert!(role.fix.unwrap().contains(whole));
}

#[test]
fn every_denied_action_is_named() {
    let mut aws = aws();
    let decision = |action: &str, is_allowed| Decision {
        action: action.to_owned(),
        resource: "arn".to_owned(),
        is_allowed,
        missing_context: Vec::new(),
    };
    aws.role_permissions = Some(Ok(vec![
        decision("s3:PutObject", false),
        decision("s3:GetObject", true),
        decision("logs:PutLogEvents", false),
    ]));
    let role = check(&wanted(), &found(aws), CheckName::RolePermissions);
    assert_eq!(
        role.detail,
        "its policies deny s3:PutObject on arn, logs:PutLogEvents on arn"
    );
}

#[test]
fn a_type_without_a_price_fails_only_if_it_is_wanted() {
    let mut seen = found(aws());
    seen.prices.push(PriceFound {
        instance_type: "ml.p6.48xlarge".to_owned(),
        status: None,
        usd_per_hour: None,
    });
    assert_eq!(
        check(&wanted(), &seen, CheckName::Prices).state,
        CheckState::Ok
    );
    let wants = CheckScope {
        instance_types: vec!["ml.p6.48xlarge".to_owned()],
        ..wanted()
    };
    let prices = check(&wants, &seen, CheckName::Prices);
    assert_eq!(prices.state, CheckState::Failed);
    assert!(prices.fix.unwrap().contains("region=us-east-1"));
}

#[test]
fn the_job_runs_on_the_cheapest_type_that_may_run() {
    let seen = found(aws());
    let job = |wanted: &CheckScope, kind| {
        job::experiment(wanted, seen.at_aws.as_ref().unwrap(), &seen.prices, kind)
    };
    let one = job(&wanted(), None).unwrap();
    assert_eq!(one.candidates[0].instance_type, "ml.g5.xlarge");
    assert_eq!(one.budget_usd, Usd(Decimal::from(2)));
    let chosen = job(&wanted(), Some("ml.p5.48xlarge")).unwrap();
    assert_eq!(chosen.candidates[0].instance_type, "ml.p5.48xlarge");
    let nowhere = CheckScope {
        places: Vec::new(),
        ..wanted()
    };
    assert_eq!(job(&nowhere, None), None);
}

#[test]
fn a_denial_for_want_of_a_condition_key_is_not_sure() {
    let mut aws = aws();
    aws.own_jobs = Ok(vec![Decision {
        action: "sagemaker:AddTags".to_owned(),
        resource: "arn".to_owned(),
        is_allowed: false,
        missing_context: vec!["aws:SourceVpc".to_owned()],
    }]);
    let own = check(&wanted(), &found(aws), CheckName::OwnJobs);
    assert_eq!(own.state, CheckState::Unknown);
    assert!(own.detail.contains("aws:SourceVpc"), "{}", own.detail);
}

#[test]
fn creating_jobs_is_asked_for_the_types_that_are_named_and_in_their_partition() {
    let caller = Caller {
        account: "111122223333".to_owned(),
        arn: "arn:aws-us-gov:sts::111122223333:assumed-role/b/1".to_owned(),
    };
    let asks = |wanted: &CheckScope| {
        let all = questions_of_service(wanted, &caller, "x");
        assert!(all[0].resource.starts_with("arn:aws-us-gov:sagemaker:"));
        all[0].actions.contains(&"sagemaker:CreateTrainingJob")
    };
    assert!(!asks(&wanted()));
    let state = check(&wanted(), &found(aws()), CheckName::OwnJobs).state;
    assert_eq!(state, CheckState::Unknown, "what was not asked is not said");
    let types = CheckScope {
        instance_types: vec!["ml.g5.xlarge".to_owned()],
        ..wanted()
    };
    assert!(asks(&types));
    assert_eq!(
        check(&types, &found(aws()), CheckName::OwnJobs).state,
        CheckState::Ok
    );
}

#[test]
fn quotas_are_held_against_instances_and_purchase_options() {
    use crate::spec::PurchaseOption;
    let state = |instances, options: &[PurchaseOption]| {
        let wanted = CheckScope {
            instance_types: vec!["ml.p5.48xlarge".to_owned()],
            instance_count: Some(instances),
            purchase_options: options.to_vec(),
            ..wanted()
        };
        check(&wanted, &found(aws()), CheckName::Quotas).state
    };
    assert_eq!(state(1, &[]), CheckState::Ok);
    assert_eq!(state(2, &[]), CheckState::Failed);
    assert_eq!(state(1, &[PurchaseOption::Spot]), CheckState::Failed);
    let both = [PurchaseOption::OnDemand, PurchaseOption::Spot];
    assert_eq!(state(1, &both), CheckState::Failed);
}

#[test]
fn a_bucket_passes_only_for_what_was_seen_of_it() {
    let state = |usage, listed| {
        let mut aws = aws();
        let place = S3Place {
            uri: "s3://b/x/".to_owned(),
            usage,
        };
        aws.buckets = vec![BucketFound {
            bucket: "b".to_owned(),
            region: Ok(Some("us-east-1".to_owned())),
            listed: vec![(place, listed)],
        }];
        check(&wanted(), &found(aws), CheckName::Bucket).state
    };
    let denied = || Err(AwsError::Denied("no".to_owned()));
    assert_eq!(state(S3Use::Input, Ok(true)), CheckState::Ok);
    assert_eq!(state(S3Use::Input, Ok(false)), CheckState::Failed);
    assert_eq!(state(S3Use::Output, Ok(false)), CheckState::Ok);
    // Only jobs have to see inputs.
    assert_eq!(state(S3Use::Input, denied()), CheckState::Unknown);
    assert_eq!(state(S3Use::Output, denied()), CheckState::Failed);
    assert_eq!(state(S3Use::Checkpoints, denied()), CheckState::Failed);
}

#[test]
fn no_answer_is_not_a_refusal() {
    let mut seen = found(aws());
    seen.caller = Err(AwsError::Unknown("dispatch failure".to_owned()));
    seen.at_aws = None;
    seen.clock_off_seconds = None;
    let credentials = check(&wanted(), &seen, CheckName::Credentials);
    assert_eq!(credentials.state, CheckState::Unknown);
    let logs = check(&wanted(), &seen, CheckName::Logs);
    assert_eq!(logs.detail, "not looked at: AWS did not answer");
    // An answer that nobody understands is one all the same.
    seen.clock_off_seconds = Some(0.0);
    let credentials = check(&wanted(), &seen, CheckName::Credentials);
    assert_eq!(credentials.state, CheckState::Failed);
}
