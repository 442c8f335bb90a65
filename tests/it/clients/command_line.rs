//! The command line as people type it, against a service: what is printed for them, for other programs, and on mistakes.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use bakeoff_api::experiments::ExperimentSummary;
use bakeoff_api::trials::TrialView;
use regex::Regex;
use serde_json::json;
use sqlx::PgPool;

use crate::support::{TestApp, scratch, spec};

/// What a command printed, and its exit code.
pub(crate) struct Said {
    code: Option<i32>,
    pub(crate) out: String,
    err: String,
}

impl Said {
    /// What was printed for a person, with ids and times that are the same in each run.
    fn shown(&self) -> String {
        let ids = Regex::new("_[0-9a-f]{32}|bakeoff-[0-9a-f]{8}-[0-9a-f]{32}").unwrap();
        ids.replace_all(&self.out, "…").into_owned()
    }
}

/// Runs `bakeoff` with this environment; in a thread, because the service runs in this one.
pub(crate) async fn run(words: &[&str], environment: &[(&str, &str)], input: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bakeoff"));
    command
        .args(words)
        .env_remove("BAKEOFF_URL")
        .env_remove("BAKEOFF_API_KEY")
        .env_remove("BAKEOFF_PROFILE")
        .env("BAKEOFF_CONFIG", "/nowhere/config.toml")
        .envs(environment.iter().copied())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let input = input.to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().expect("bakeoff");
        let mut stdin = child.stdin.take().expect("its input");
        stdin.write_all(input.as_bytes()).expect("it reads");
        drop(stdin);
        child.wait_with_output().expect("its output")
    });
    let output = ended.await.expect("its thread");
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

async fn bakeoff(test: &TestApp, words: &[&str]) -> Said {
    let key = [
        ("BAKEOFF_URL", test.url.as_str()),
        ("BAKEOFF_API_KEY", &test.admin),
    ];
    run(words, &key, "").await
}

/// The same, which must succeed.
async fn ok(test: &TestApp, words: &[&str]) -> Said {
    let said = bakeoff(test, words).await;
    assert_eq!(said.code, Some(0), "{words:?}: {}", said.err);
    said
}

#[sqlx::test(migrations = false)]
async fn what_there_is_can_be_listed_shown_and_compared(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let said = ok(&test, &["ls"]).await;
    assert!(said.out.starts_with("none found\nnext: "), "{}", said.out);
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 30).await;
    let trials = test.trials(&id).await;
    let trial = trials[0].id.to_string();

    // An experiment stands for its only completed trial; here are two.
    let words = [
        "models",
        "register",
        &id,
        "--group",
        "legal",
        "--image",
        "1.dkr.ecr.us-east-1.amazonaws.com/serve:1",
    ];
    let said = bakeoff(&test, &words).await;
    assert!(
        said.code == Some(1) && said.err.contains("several trials of") && said.err.contains(&trial),
        "{}",
        said.err
    );
    insta::assert_snapshot!("listed", ok(&test, &["ls"]).await.shown());
    insta::assert_snapshot!(
        "listed_as_markdown",
        ok(&test, &["ls", "--output", "md"]).await.shown()
    );
    insta::assert_snapshot!("trial_shown", ok(&test, &["show", &trial]).await.shown());
    insta::assert_snapshot!(
        "spent",
        ok(&test, &["spend", "--by", "experiment"]).await.shown()
    );
    insta::assert_snapshot!("compared", ok(&test, &["compare", &id]).await.shown());

    let listed = ok(&test, &["ls", "--json"]).await;
    let listed: Vec<ExperimentSummary> = serde_json::from_str(&listed.out).unwrap();
    assert_eq!(listed[0].id.to_string(), id);
    let shown = ok(&test, &["show", &trial, "--json"]).await;
    let shown: TrialView = serde_json::from_str(&shown.out).unwrap();
    assert_eq!(shown.id.to_string(), trial);
    let table = ok(&test, &["compare", &trial, "--output", "csv"]).await;
    let mut table = csv::Reader::from_reader(table.out.as_bytes());
    let rows: Vec<BTreeMap<String, String>> = table.deserialize().map(Result::unwrap).collect();
    let [row] = rows.as_slice() else {
        panic!("one trial was asked for: {rows:?}");
    };
    assert_eq!(row["trial_id"], trial);
    assert!(row.contains_key("tokens_per_second_half_width"), "{row:?}");
    let both = ok(&test, &["compare", &id, &id, "--output", "md"]).await;
    assert!(both.out.starts_with("| of | candidate |"), "{}", both.out);
    let answer = ok(&test, &["show", &id]).await;
    assert!(answer.out.contains(" is completed: $"), "{}", answer.out);
    assert!(
        answer
            .out
            .trim_end()
            .lines()
            .next_back()
            .unwrap()
            .starts_with("next: bakeoff buy exp_")
    );
    // One row for the price in force, by the clock of the service, whatever came before it.
    let price = json!({"region": "us-east-1", "usd_per_hour": 60, "source": "our contract"});
    test.put("/v1/prices/ml.p5.48xlarge", &price).await;
    let words = [
        "prices",
        "ml.p5.48xlarge",
        "--region",
        "us-east-1",
        "--output",
        "csv",
    ];
    let prices = ok(&test, &words).await;
    assert!(
        prices.out.starts_with("instance,region,$/h,"),
        "{}",
        prices.out
    );
    assert_eq!(prices.out.lines().count(), 2, "{}", prices.out);
    assert!(prices.out.contains(",60,negotiated,"), "{}", prices.out);
    let spent = ok(&test, &["spend", "--by", "experiment", "--output", "csv"]).await;
    let mut spent = csv::Reader::from_reader(spent.out.as_bytes());
    let sums: Vec<BTreeMap<String, String>> = spent.deserialize().map(Result::unwrap).collect();
    assert_eq!(sums.len(), 1, "a sum would count twice: {sums:?}");
    assert!(sums[0]["total_usd"].parse::<f64>().is_ok(), "{sums:?}");
    let other = bakeoff(&test, &["ls", "pipelines", "--state", "running"]).await;
    assert_eq!(
        other.code,
        Some(1),
        "a filter is not passed over in silence"
    );
    let link = ok(&test, &["open", &id]).await;
    assert!(
        link.out
            .starts_with(&format!("{}/experiments/{id}#login=", test.url)),
        "{}",
        link.out
    );
}

#[sqlx::test(migrations = false)]
async fn what_runs_can_be_stopped_done_again_and_cancelled(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.tick().await;
    let trial = test.trials(&id).await[0].id.to_string();
    let said = ok(
        &test,
        &["stop", &trial, "--reason", "the loss has diverged"],
    )
    .await;
    assert!(
        said.out
            .contains("is being stopped\nnext: bakeoff show exp_"),
        "{}",
        said.out
    );
    test.run_until_ended(&id, 30).await;
    let stopped = ok(&test, &["show", &trial]).await;
    assert!(
        stopped.out.contains("the loss has diverged"),
        "{}",
        stopped.out
    );
    let again = ok(&test, &["retry", &trial]).await;
    assert!(again.out.contains(", for at most $"), "{}", again.out);
    assert_eq!(test.trials(&id).await.len(), 3);
    let ended = ok(&test, &["stop", &trial]).await;
    assert!(
        ended.out.contains("already: nothing was stopped"),
        "{}",
        ended.out
    );
    let said = ok(&test, &["cancel", &id]).await;
    assert!(said.out.contains(" is cancelling: "), "{}", said.out);
    test.run_until_ended(&id, 30).await;
    let again = ok(&test, &["cancel", &id]).await;
    assert!(
        again.out.contains("already: nothing was stopped"),
        "{}",
        again.out
    );
    // In a path, this would be another request.
    let other = format!("exp_a/../../trials/{trial}/retry#");
    let wrong = bakeoff(&test, &["cancel", &other]).await;
    assert_eq!(wrong.code, Some(64), "{}", wrong.err);
    let wrong = bakeoff(&test, &["cancel", &trial]).await;
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong.err.contains("`bakeoff stop` ends a trial"),
        "{}",
        wrong.err
    );
}

#[sqlx::test(migrations = false)]
async fn a_login_is_kept_for_this_user_alone_and_names_the_way_where_there_is_none(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let file = scratch("profiles").join("own/config.toml");
    let config = ("BAKEOFF_CONFIG", file.to_str().unwrap());
    let without = run(&["ls", "--url", &test.url], &[config], "").await;
    assert_eq!(without.code, Some(1));
    assert!(
        without.err.contains("to fix it: bakeoff login"),
        "{}",
        without.err
    );

    let words = ["login", "--url", &test.url, "--profile", "research"];
    let wrong = run(&words, &[config], "bk_wrong\n").await;
    assert_eq!(wrong.code, Some(1), "{}", wrong.out);
    assert!(!file.exists(), "a key that the service refuses is not kept");
    let said = run(&words, &[config], &format!("{}\n", test.admin)).await;
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(!said.out.contains(&test.admin), "the key is not shown");
    assert!(said.out.ends_with("next: bakeoff ls\n"), "{}", said.out);
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let listed = run(&["ls", "--json"], &[config], "").await;
    assert_eq!(
        (listed.code, listed.out.trim()),
        (Some(0), "[]"),
        "{}",
        listed.err
    );
    let elsewhere = [
        config,
        ("BAKEOFF_URL", "http://127.0.0.1:9"),
        ("BAKEOFF_API_KEY", "bk_other"),
    ];
    let named = run(&["ls", "--json", "--profile", "research"], &elsewhere, "").await;
    assert_eq!(
        (named.code, named.out.trim()),
        (Some(0), "[]"),
        "{}",
        named.err
    );
    let none = run(&["login", "--url", "no scheme"], &[config], "bk_x\n").await;
    assert!(!none.err.contains("trying again"), "{}", none.err);
    // Somewhere else, it is not sent.
    let other = run(
        &["ls", "--url", &test.url.replace("127.0.0.1", "localhost")],
        &[config],
        "",
    )
    .await;
    assert!(
        other.err.contains("to fix it: bakeoff login"),
        "{}",
        other.err
    );
}

/// Described with the credentials of whoever asks: the members are AWS's own, so that what an experiment has no place for is
/// named, too.
#[sqlx::test(migrations = false)]
async fn a_job_of_ones_own_becomes_an_experiment(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = test.start(&spec()).await;
    test.run_to_end(&id, 30).await;
    let job = test.trials(&id).await[0].attempts[0].job_name.clone();
    let file = scratch("init").join("experiment.json");
    let aws = [
        ("AWS_ENDPOINT_URL", test.region.url.as_str()),
        ("AWS_ACCESS_KEY_ID", "simulated"),
        ("AWS_SECRET_ACCESS_KEY", "simulated"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ];
    let named = file.to_str().unwrap();
    let words = [
        "init",
        "--job",
        &job,
        "--region",
        "us-east-1",
        "--yes",
        "--file",
        named,
    ];
    let said = run(&words, &aws, "").await;
    // Its length in tokens is for a person to say.
    assert_eq!(said.code, Some(1), "{}{}", said.out, said.err);
    assert!(said.out.contains("Still needed:"), "{}", said.out);
    let made: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let was = spec();
    for member in ["image", "role_arn"] {
        assert_eq!(
            made["workload"][member], was["workload"][member],
            "{made:#}"
        );
    }
    assert_eq!(
        made["candidates"][0]["instance_type"],
        was["candidates"][0]["instance_type"]
    );
    let said = run(
        &["init", "--job", "nobodys", "--region", "us-east-1"],
        &aws,
        "",
    )
    .await;
    assert_eq!(said.code, Some(1));
    assert!(
        said.err.contains("nobodys in us-east-1: not found"),
        "{}",
        said.err
    );
}

#[tokio::test]
async fn completions_load_where_their_shell_is_installed() {
    for (shell, check) in [
        ("bash", "source /dev/stdin && complete -p bakeoff"),
        (
            "zsh",
            "autoload -U compinit && compinit -u && source /dev/stdin",
        ),
        (
            "fish",
            "source && complete -C 'bakeoff ls --out' | string match -q -- '--output*'",
        ),
    ] {
        let said = run(&["completions", shell], &[], "").await;
        assert!(said.out.contains("compare"), "{shell}: {}", said.err);
        if Command::new(shell).arg("--version").output().is_err() {
            eprintln!("skipped: {shell} is not installed");
            continue;
        }
        let mut child = Command::new(shell)
            .args(["-c", check])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(said.out.as_bytes()).unwrap();
        drop(stdin);
        assert!(child.wait().unwrap().success(), "{shell}");
    }
}
