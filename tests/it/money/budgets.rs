//! A budget is a limit that silence never raises: of an endpoint, a pipeline, a CI template, a project and the
//! installation, in all, a day and a month.

use bakeoff_api::ci::{CiSecret, CiStarted};
use bakeoff_api::ci_runs::CiRunView;
use bakeoff_api::endpoints::EndpointView;
use bakeoff_api::pipelines::PipelineView;
use bakeoff_api::projects::ProjectView;
use bakeoff_domain::ci::gate::Verdict;
use bakeoff_domain::endpoint::EndpointState;
use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{BudgetLevel, InstallationCaps};
use bakeoff_domain::pipeline::PipelineState;
use bakeoff_process::ids;
use bakeoff_service::auth::keys::Role;
use chrono::TimeDelta;
use reqwest::{Method, StatusCode};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::ci::triggers::{REPOSITORY, created as template_of, trigger};
use crate::endpoints::lives::{body, created, endpoint, until};
use crate::pipelines::steps::{pipeline, run_pipeline, started, step, with_data};
use crate::support::{TestApp, listening, number, on_p5, problem};

fn usd(amount: i64) -> Usd {
    Usd(amount.into())
}

/// The first error of a 422.
#[track_caller]
fn refused(answer: &(StatusCode, Value)) -> String {
    let (status, said) = answer;
    assert_eq!(*status, StatusCode::UNPROCESSABLE_ENTITY, "{said:#}");
    let error = problem(said.clone()).errors.remove(0);
    format!("{}: {}; {}", error.pointer, error.detail, error.fix)
}

async fn project(test: &TestApp) -> ProjectView {
    test.read("/v1/projects/current").await
}

/// What is reserved in the ledger and not released, in millionths of a dollar, against what the experiments hold.
async fn assert_ledger_is_what_is_reserved(test: &TestApp) {
    let difference = "SELECT ((SELECT coalesce(sum(CASE kind WHEN 'reserved' THEN usd WHEN 'released' THEN -usd ELSE 0 END), 0)
                               FROM ledger) - (SELECT coalesce(sum(reserved_usd), 0) FROM experiments)) * 1000000";
    let difference = sqlx::query_scalar::<_, Decimal>(difference);
    let difference = difference.fetch_one(test.app.store.pool()).await.unwrap();
    assert!(difference.is_zero(), "{difference}");
}

#[sqlx::test(migrations = false)]
async fn a_pipelines_budget_holds_for_the_endpoint_that_it_deployed(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut serve = endpoint("one");
    serve.as_object_mut().unwrap().remove("role_arn");
    let mut spec = pipeline(&json!([{"name": "serve", "endpoint": serve}]));
    spec["budget_usd"] = json!(10);
    let id = started(&test, &spec).await;
    let view = run_pipeline(&test, &id).await;
    let outputs = step(&view, "serve").outputs.clone().unwrap();
    let path = format!("/v1/endpoints/{}", outputs["endpoint_id"].as_str().unwrap());
    let before = view.reserved_usd;
    assert!(before <= usd(10), "{before}");
    let long = json!({"time_to_live_hours": 720});
    let why = refused(&test.patch(&path, &long).await);
    let raise = format!("POST /v1/pipelines/{id}/resume with {{\"budget_usd\": ");
    assert!(
        why.contains("of the pipeline's budget, $10.00") && why.contains(&raise),
        "{why}"
    );
    let named = json!({"time_to_live_hours": 720, "budget_usd": 5000});
    let (status, answer) = test.patch(&path, &named).await;
    assert_eq!(
        (status, problem(answer).code.as_str()),
        (StatusCode::CONFLICT, "of_a_pipeline")
    );
    let view: PipelineView = test.read(&format!("/v1/pipelines/{id}")).await;
    assert_eq!((view.reserved_usd, view.budget_usd), (before, usd(10)));
    // The way out, although the pipeline has completed.
    let resume = format!("/v1/pipelines/{id}/resume");
    let (status, answer) = test.post(&resume, &json!({"budget_usd": 2000})).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let resumed: PipelineView = serde_json::from_value(answer).unwrap();
    assert_eq!(resumed.state, PipelineState::Completed);
    let (status, answer) = test.patch(&path, &long).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let view: PipelineView = test.read(&format!("/v1/pipelines/{id}")).await;
    assert!(
        view.reserved_usd > usd(1000) && view.reserved_usd <= usd(2000),
        "{}",
        view.reserved_usd
    );
    assert_ledger_is_what_is_reserved(&test).await;
}

#[sqlx::test(migrations = false)]
async fn a_stated_budget_of_an_endpoint_is_raised_by_no_silence(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let mut stated = body("one");
    stated["budget_usd"] = json!(10);
    let id = created(&test, &stated).await;
    let before = until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    let why = refused(&test.patch(&path, &json!({"time_to_live_hours": 720})).await);
    assert!(
        why.starts_with("/budget_usd: is $10.00, and 720 hours can cost $10"),
        "{why}"
    );
    let after: EndpointView = test.read(&path).await;
    assert_eq!(
        (after.budget_usd, after.reserved_usd),
        (usd(10), before.reserved_usd)
    );
    // Within it, nothing need be said.
    let (status, _) = test.patch(&path, &json!({"time_to_live_hours": 2})).await;
    assert_eq!(status, StatusCode::OK);
    let low = json!({"time_to_live_hours": 720, "budget_usd": 500});
    assert!(refused(&test.patch(&path, &low).await).contains("is $500.00, and 720 hours"));
    let named = json!({"time_to_live_hours": 720, "budget_usd": 1100});
    let (status, answer) = test.patch(&path, &named).await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    let after: EndpointView = test.read(&path).await;
    assert_eq!(after.budget_usd, usd(1100));
    assert!(after.reserved_usd > usd(1000) && after.reserved_usd <= usd(1100));
    assert_ledger_is_what_is_reserved(&test).await;
}

#[sqlx::test(migrations = false)]
async fn two_extensions_in_a_row_leave_the_ledger_as_what_is_reserved(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    for hours in [3, 5, 9] {
        let (status, answer) = test
            .patch(&path, &json!({"time_to_live_hours": hours}))
            .await;
        assert_eq!(status, StatusCode::OK, "{answer:#}");
        assert_ledger_is_what_is_reserved(&test).await;
    }
    test.delete(&path).await;
    until(&test, &id, EndpointState::Deleted).await;
    assert_ledger_is_what_is_reserved(&test).await;
    assert_eq!(project(&test).await.reserved_usd, Usd::ZERO);
}

#[sqlx::test(migrations = false)]
async fn a_fresh_project_may_spend_nothing_and_says_how_to_change_that(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let store = &test.app.store;
    let default = store.default_project_budget().await.unwrap();
    assert_eq!(default, Usd::ZERO);
    let fresh = ProjectId(ids::fresh());
    let now = test.app.clock.now();
    let made = store.ensure_project(fresh, "fresh", Some(default), now);
    assert_eq!(made.await.unwrap(), fresh);
    test.admin = test.key(fresh, Role::Admin).await;
    let mut large = body("one");
    large["endpoint"]["instance_type"] = json!("ml.p5.48xlarge");
    large["endpoint"]["instance_count"] = json!(20);
    large["endpoint"]["time_to_live_hours"] = json!(720);
    let answer = test.post("/v1/endpoints", &large).await;
    let why = refused(&answer);
    assert!(
        why.contains("and the project's budget is $0.00")
            && why.contains("PUT /v1/projects/current/budget with {\"budget_usd\": "),
        "{why}"
    );
    let answer = test.post("/v1/experiments", &on_p5(1)).await;
    assert!(refused(&answer).contains("the project's budget is $0.00"));
    let steps = json!([{"name": "serve", "endpoint": endpoint("one")}]);
    let answer = test.post("/v1/pipelines", &pipeline(&steps)).await;
    assert!(refused(&answer).contains("the project's budget is $0.00"));
    let (status, _) = test
        .put("/v1/projects/current/budget", &json!({"budget_usd": 500}))
        .await;
    assert_eq!(status, StatusCode::OK);
    assert!(refused(&test.post("/v1/endpoints", &large).await).contains("$500.00 is left"));
    test.start(&on_p5(1)).await;
    assert_eq!(
        number(test.app.store.pool(), "SELECT count(*) FROM endpoints").await,
        0
    );
}

#[sqlx::test(migrations = false)]
async fn an_installations_caps_hold_over_projects_and_for_each_endpoint(pool: PgPool) {
    let mut test = TestApp::new(pool).await;
    let caps = InstallationCaps {
        month_usd: Some(usd(400)),
        endpoint_usd: Some(usd(5)),
        experiment_usd: Some(usd(350)),
    };
    test.app.store = test.app.store.clone().capped(caps);
    test.url = listening(&test.app).await;
    let mut long = body("one");
    long["endpoint"]["time_to_live_hours"] = json!(100);
    let why = refused(&test.post("/v1/endpoints", &long).await);
    assert!(
        why.contains("the installation's limit on an endpoint, $5.00"),
        "{why}"
    );
    let id = created(&test, &body("one")).await;
    until(&test, &id, EndpointState::InService).await;
    let path = format!("/v1/endpoints/{id}");
    let why = refused(&test.patch(&path, &json!({"time_to_live_hours": 100})).await);
    assert!(why.contains("--endpoint-max-usd"), "{why}");
    test.delete(&path).await;
    until(&test, &id, EndpointState::Deleted).await;
    // Two projects, $271 each: one at a time.
    let first = test.start(&on_p5(1)).await;
    let second = test.other_project().await;
    let key = test.key(second, Role::Editor).await;
    let request = test.request(Method::POST, "/v1/experiments", &key);
    let (status, answer) = test.send(request.json(&on_p5(1))).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
    test.tick().await;
    let held = "SELECT ceil(sum(reserved_usd))::bigint FROM projects";
    let held = number(test.app.store.pool(), held).await;
    assert!((200..=400).contains(&held), "{held}");
    let waits = "SELECT count(*) FROM trials WHERE state = 'queued' AND reason LIKE '%free of the installation''s budget per month%'";
    assert_eq!(number(test.app.store.pool(), waits).await, 1);
    test.run_until_ended(&first, 24).await;
    for _ in 0..24 {
        test.tick().await;
        let used = "SELECT ceil(sum(reserved_usd + month_settled_usd))::bigint FROM projects";
        assert!(number(test.app.store.pool(), used).await <= 400);
        test.advance(TimeDelta::minutes(15)).await;
    }
    let ended = "SELECT count(*) FROM trials WHERE state IN ('completed', 'refused')";
    assert!(number(test.app.store.pool(), ended).await >= 2);
}

#[sqlx::test(migrations = false)]
async fn a_months_budget_begins_anew_with_the_month(pool: PgPool) {
    let test = TestApp::starting(pool, "2026-11-30T08:00:00Z".parse().unwrap()).await;
    let caps = json!({"monthly_budget_usd": 300});
    let (status, view) = test.put("/v1/projects/current/budget", &caps).await;
    assert_eq!(status, StatusCode::OK, "{view:#}");
    let view: ProjectView = serde_json::from_value(view).unwrap();
    assert_eq!(
        (view.budget_usd, view.monthly_budget_usd),
        (None, Some(usd(300)))
    );
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    let november = project(&test).await;
    let spent = november.month.settled_usd;
    assert!(
        spent > usd(29) && spent == november.settled_usd,
        "{november:#?}"
    );
    let forecast = november.month.forecast_usd.unwrap();
    assert!(
        forecast >= spent && forecast.as_f64() < spent.as_f64() * 1.04,
        "{forecast}"
    );
    let why = refused(&test.post("/v1/experiments", &on_p5(1)).await);
    assert!(
        why.contains("of the project's budget per month, $300.00")
            && why.contains("monthly_budget_usd")
            && why.contains("next month"),
        "{why}"
    );
    test.advance(TimeDelta::hours(16)).await;
    let december = project(&test).await;
    assert_eq!(
        (december.month.settled_usd, december.month.forecast_usd),
        (Usd::ZERO, None)
    );
    let id = test.start(&on_p5(1)).await;
    test.run_to_end(&id, 12).await;
    let december = project(&test).await;
    assert_eq!(december.month.settled_usd, december.settled_usd - spent);
}

/// Extensions of an endpoint meet each other, the conductor and the scheduler, which lock the same rows.
#[sqlx::test(migrations = false)]
async fn extensions_at_once_stay_within_the_pipelines_budget(pool: PgPool) {
    let test = with_data(pool.clone(), &[]).await;
    let mut serve = endpoint("one");
    serve.as_object_mut().unwrap().remove("role_arn");
    let mut other = serve.clone();
    other["time_to_live_hours"] = json!(5);
    let steps = json!([{"name": "serve", "endpoint": serve}, {"name": "other", "endpoint": other}]);
    let mut spec = pipeline(&steps);
    spec["budget_usd"] = json!(60);
    let id = started(&test, &spec).await;
    let view = run_pipeline(&test, &id).await;
    let path = |name: &str| {
        let outputs = step(&view, name).outputs.clone().unwrap();
        format!("/v1/endpoints/{}", outputs["endpoint_id"].as_str().unwrap())
    };
    let (one, two) = (path("serve"), path("other"));
    let extensions = (6..14).flat_map(|hours| {
        let body = json!({"time_to_live_hours": hours});
        [(one.clone(), body.clone()), (two.clone(), body)]
    });
    let extended = extensions.map(|(path, body)| {
        let test = &test;
        async move { test.patch(&path, &body).await.0 }
    });
    let (statuses, ..) = tokio::join!(
        futures::future::join_all(extended),
        bakeoff_service::tasks::conductor::tick(&test.app),
        bakeoff_service::tasks::scheduler::tick(&test.app),
    );
    assert!(statuses.contains(&StatusCode::OK), "{statuses:?}");
    assert!(
        statuses.iter().all(|status| status.as_u16() < 500),
        "{statuses:?}"
    );
    let view: PipelineView = test.read(&format!("/v1/pipelines/{id}")).await;
    assert!(
        view.reserved_usd + view.settled_usd <= usd(60),
        "{}",
        view.reserved_usd
    );
    let budgets = "SELECT ceil(sum(budget_usd))::bigint FROM experiments";
    assert!(number(&pool, budgets).await <= 60);
    assert_ledger_is_what_is_reserved(&test).await;
}

/// What is reserved before midnight counts in both months while it is held, and is spent in the one in which it is settled.
#[sqlx::test(migrations = false)]
async fn a_reservation_over_the_end_of_a_month_exceeds_neither(pool: PgPool) {
    let test = TestApp::starting(pool, "2026-11-30T23:40:00Z".parse().unwrap()).await;
    let caps = json!({"monthly_budget_usd": 300});
    test.put("/v1/projects/current/budget", &caps).await;
    let first = test.start(&on_p5(1)).await;
    test.tick().await;
    let second = test.start(&on_p5(1)).await;
    test.advance(TimeDelta::minutes(30)).await;
    test.tick().await;
    assert_eq!(test.jobs().await.len(), 1, "it is held in December, too");
    test.run_until_ended(&first, 12).await;
    let view = project(&test).await;
    assert!(view.month.settled_usd > Usd::ZERO && view.month.settled_usd == view.settled_usd);
    test.run_until_ended(&second, 24).await;
    assert!(project(&test).await.month.settled_usd <= usd(300));
}

/// A template of one trial of $271, with caps.
fn template(settings: &Value) -> Value {
    let mut spec = on_p5(1);
    spec["budget_usd"] = json!(300);
    spec["workload"]["image"] = json!(format!("{REPOSITORY}:${{ci.commit}}"));
    let mut settings = settings.clone();
    settings["supersede"] = json!(false);
    json!({"name": "nightly", "spec": spec, "settings": settings})
}

async fn push(test: &TestApp, own: &CiSecret, number: u32) -> String {
    let body = json!({"delivery_id": number.to_string(), "commit": format!("{number:040x}"), "branch": "main"});
    let (status, answer) = trigger(test, own, &body).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{answer:#}");
    let told: CiStarted = serde_json::from_value(answer).unwrap();
    told.run_id.unwrap().to_string()
}

/// What the template's runs have reserved and settled today, as the template and as its experiments have it; to the cent.
pub(crate) async fn used(test: &TestApp) -> Usd {
    let query = "SELECT t.reserved_usd + t.day_settled_usd, coalesce(sum(e.reserved_usd + e.settled_usd), 0)
                 FROM ci_templates t LEFT JOIN ci_runs r ON r.template_id = t.id
                 LEFT JOIN ci_rounds o ON o.run_id = r.id LEFT JOIN experiments e ON e.id = o.experiment_id GROUP BY t.id";
    let totals = sqlx::query_as::<_, (Decimal, Decimal)>(query);
    let (kept, summed) = totals.fetch_one(test.app.store.pool()).await.unwrap();
    assert_eq!(kept, summed);
    Usd(kept)
}

#[sqlx::test(migrations = false)]
async fn sixty_signed_pushes_cost_no_more_than_the_templates_day(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = template_of(&test, &template(&json!({"usd_per_day": 600}))).await;
    let runs = futures::future::join_all((1..=60).map(|number| push(&test, &own, number))).await;
    let ticks = (0..4).map(|_| bakeoff_service::tasks::scheduler::tick(&test.app));
    futures::future::try_join_all(ticks).await.unwrap();
    assert_eq!(test.jobs().await.len(), 2, "$271 each");
    assert!(used(&test).await <= usd(600));
    let open = "SELECT count(*) FROM ci_runs WHERE verdict IS NULL";
    for _ in 0..120 {
        test.tick().await;
        let used = used(&test).await;
        assert!(used <= usd(600), "{used}");
        if number(&pool, open).await == 0 {
            break;
        }
        test.advance(TimeDelta::minutes(20)).await;
    }
    let mut refused = 0;
    for id in &runs {
        let run: CiRunView = test.read(&format!("/v1/ci-runs/{id}")).await;
        let is_refused = run.verdict == Some(Verdict::Error);
        assert!(run.verdict.is_some(), "{run:#?}");
        assert!(
            !is_refused
                || run
                    .summary
                    .contains("is left of the CI template's budget per day"),
            "{}",
            run.summary
        );
        refused += u32::from(is_refused);
    }
    assert!((50..60).contains(&refused), "{refused}");
    // The next day is a new one.
    test.advance(TimeDelta::days(1)).await;
    push(&test, &own, 61).await;
    test.tick().await;
    let running = "SELECT count(*) FROM trials WHERE state = 'running' OR state = 'submitting'";
    assert_eq!(number(&pool, running).await, 1);
}

#[sqlx::test(migrations = false)]
async fn runs_of_a_template_take_turns(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    let own = template_of(&test, &template(&json!({"runs_at_once": 1}))).await;
    for number in 1..=3 {
        push(&test, &own, number).await;
    }
    let under_way =
        "SELECT count(*) FROM trials WHERE state IN ('submitting', 'running', 'stopping')";
    let waits = "SELECT count(*) FROM trials WHERE reason LIKE 'waiting for a turn: its CI template has 1 runs under way%'";
    test.tick().await;
    assert_eq!(
        (number(&pool, under_way).await, number(&pool, waits).await),
        (1, 2)
    );
    for _ in 0..120 {
        test.tick().await;
        assert!(number(&pool, under_way).await <= 1);
        test.advance(TimeDelta::minutes(20)).await;
    }
    let passed = "SELECT count(*) FROM ci_runs WHERE verdict = 'passed'";
    assert_eq!(number(&pool, passed).await, 3);
    let poor = test
        .post("/v1/ci-templates", &template(&json!({"usd_per_day": 100})))
        .await;
    assert!(
        refused(&poor).contains("is $100.00, and a trial may cost $2"),
        "{poor:?}"
    );
    let wrong = json!({"runs_at_once": 0, "usd_per_day": 1e-9, "usd_per_month": 1e12});
    let (status, answer) = test.post("/v1/ci-templates", &template(&wrong)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    let errors = problem(answer).errors;
    let pointers: Vec<&str> = errors.iter().map(|one| one.pointer.as_str()).collect();
    assert_eq!(
        pointers,
        [
            "/settings/runs_at_once",
            "/settings/usd_per_day",
            "/settings/usd_per_month"
        ]
    );
}

#[sqlx::test(migrations = false)]
async fn shares_of_a_cap_are_told_once_each(pool: PgPool) {
    let test = TestApp::new(pool.clone()).await;
    test.start(&on_p5(1)).await;
    test.tick().await;
    let one = project(&test).await.reserved_usd;
    let cap = one.as_f64() * 2.0 + 1.0;
    let (status, answer) = test
        .put("/v1/projects/current/budget", &json!({"budget_usd": cap}))
        .await;
    assert_eq!(status, StatusCode::OK, "{answer:#}");
    for _ in 0..3 {
        test.start(&on_p5(1)).await;
        test.tick().await;
        test.tick().await;
    }
    let told = "SELECT data->>'percent' FROM events WHERE kind = 'budget.threshold' ORDER BY id";
    let told: Vec<String> = sqlx::query_scalar(told).fetch_all(&pool).await.unwrap();
    assert_eq!(told, ["50", "80", "100"]);
    let view = project(&test).await;
    let alarms: Vec<_> = view
        .budget_alarms
        .iter()
        .map(|one| (one.level, one.percent))
        .collect();
    let level = BudgetLevel::Project;
    assert_eq!(alarms, [(level, 50), (level, 80), (level, 100)]);
    let hook = json!({"url": "https://hooks.example.com/x", "kinds": ["budget.threshold"]});
    let (status, answer) = test.post("/v1/webhook-endpoints", &hook).await;
    assert_eq!(status, StatusCode::CREATED, "{answer:#}");
}

/// Amounts that cannot be stored, or are no amounts, are refused where they stand, with what is allowed.
#[sqlx::test(migrations = false)]
async fn amounts_out_of_range_are_refused_with_the_range(pool: PgPool) {
    let test = TestApp::new(pool).await;
    let id = created(&test, &body("one")).await;
    let experiment = test.start(&on_p5(1)).await;
    for amount in [1e-9, 1e12, 1e19] {
        let budget = json!({"budget_usd": amount});
        let mut pipeline = pipeline(&json!([{"name": "serve", "endpoint": endpoint("one")}]));
        let mut serve = body("one");
        pipeline["budget_usd"] = json!(amount);
        serve["budget_usd"] = json!(amount);
        let extend = json!({"time_to_live_hours": 2, "budget_usd": amount});
        let monthly = json!({"monthly_budget_usd": amount});
        let mut own = on_p5(1);
        own["budget_usd"] = json!(amount);
        for answer in [
            test.put("/v1/projects/current/budget", &budget).await,
            test.put("/v1/projects/current/budget", &monthly).await,
            test.post("/v1/pipelines", &pipeline).await,
            test.post("/v1/endpoints", &serve).await,
            test.patch(&format!("/v1/endpoints/{id}"), &extend).await,
            test.patch(&format!("/v1/experiments/{experiment}"), &budget)
                .await,
            test.post("/v1/experiments", &own).await,
        ] {
            let why = refused(&answer);
            assert!(
                why.starts_with("/budget_usd: ") || why.starts_with("/monthly_budget_usd: "),
                "{why}"
            );
        }
    }
}
