//! The budget of a pipeline is shared by its steps: what one holds, another waits for.

use bakeoff_domain::money::Usd;
use bakeoff_domain::pipeline::{PipelineState, StepState};
use serde_json::json;
use sqlx::PgPool;

use crate::pipelines::steps::{
    assert_billed, pipeline, prepare, read, run, started, step, turn, with_data,
};
use crate::support::on_p5;

#[sqlx::test(migrations = false)]
async fn the_budget_is_one_over_all_steps(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    // An hour of ml.m5.xlarge with its ends may cost about a third of a dollar.
    let mut body = pipeline(&json!([prepare("one"), prepare("two"), prepare("dear")]));
    body["budget_usd"] = json!(1);
    body["steps"][1]["processing"]["reuse_if_unchanged"] = json!(false);
    body["steps"][2]["processing"]["reuse_if_unchanged"] = json!(false);
    body["steps"][2]["processing"]["instance_type"] = json!("ml.g5.48xlarge");
    let id = started(&test, &body).await;
    turn(&test).await;
    let view = read(&test, &id).await;
    let budgets: f64 = view
        .steps
        .iter()
        .filter_map(|step| step.budget_usd)
        .map(Usd::as_f64)
        .sum();
    assert!(budgets <= 1.0 + 1e-9, "{budgets} of 1: {view:#?}");
    let waits = view
        .steps
        .iter()
        .find(|step| step.state == StepState::Waiting);
    assert!(
        waits
            .unwrap()
            .reason
            .clone()
            .unwrap()
            .contains("it waits for steps"),
        "{view:#?}"
    );
    let view = run(&test, &id).await;
    let states: Vec<StepState> = view.steps.iter().map(|step| step.state).collect();
    let (done, failed) = (StepState::Completed, StepState::Failed);
    assert_eq!(
        (view.state, states),
        (PipelineState::Failed, vec![done, done, failed])
    );
    let why = step(&view, "dear").reason.clone().unwrap();
    assert!(
        why.contains("of the pipeline's") && why.contains("is left"),
        "{why}"
    );
    assert!(view.settled_usd.as_f64() < 1.0);
    assert_billed(&test).await;
}

/// Of two comparisons side by side, the second waits for what the first may not need, and neither fails for it.
#[sqlx::test(migrations = false)]
async fn a_comparison_waits_for_money_that_another_holds(pool: PgPool) {
    let test = with_data(pool, &[]).await;
    let mut compare = on_p5(1);
    compare["stopping_policy"] = json!("full");
    let plan = test.plan(&compare).await;
    let worst = plan.candidates[0]
        .plan
        .worst_case
        .unwrap()
        .total_usd
        .as_f64();
    compare["budget_usd"] = json!((worst * 1.2).ceil());
    let steps = json!([{"name": "a", "experiment": compare}, {"name": "b", "experiment": compare}]);
    let mut body = pipeline(&steps);
    body["budget_usd"] = json!((worst * 2.0).ceil());
    let id = started(&test, &body).await;
    turn(&test).await;
    let view = read(&test, &id).await;
    let why = step(&view, "b").reason.clone().unwrap_or_default();
    assert_eq!(step(&view, "b").state, StepState::Waiting, "{why}");
    assert!(why.contains("it waits for steps"), "{why}");
    let view = run(&test, &id).await;
    let states: Vec<StepState> = view.steps.iter().map(|step| step.state).collect();
    assert_eq!(states, [StepState::Completed; 2], "{view:#?}");
}
