//! IAM in the query protocol: GetRole and SimulatePrincipalPolicy. Every role exists unless none does;
//! what is not denied is allowed.

use axum::response::Response;

use super::query::{self, Form};
use crate::account::setup::Setup;

/// The operations known here.
pub(super) const OPERATIONS: [&str; 2] = ["GetRole", "SimulatePrincipalPolicy"];
const NAMESPACE: &str = "https://iam.amazonaws.com/doc/2010-05-08/";

pub(super) fn call(setup: &Setup, account: &str, operation: &str, form: &Form) -> Response {
    let action = format!("iam:{operation}");
    if setup.denies(&action) {
        let message = format!(
            "User: arn:aws:sts::{account}:assumed-role/bakeoff/simulated is not authorized to perform: {action}"
        );
        return query::error(403, "AccessDenied", &message);
    }
    if operation == "GetRole" {
        get_role(setup, account, form)
    } else {
        simulate(setup, form)
    }
}

/// The caller's own role always exists.
const CALLER: &str = "bakeoff";

fn get_role(setup: &Setup, account: &str, form: &Form) -> Response {
    let name = form.get("RoleName");
    if name != CALLER && !setup.has_role() {
        let message = format!("The role with name {name} cannot be found.");
        return query::error(404, "NoSuchEntity", &message);
    }
    let trust = query::percent_encoded(&setup.trust_policy(name).to_string());
    query::answer(
        "GetRole",
        NAMESPACE,
        &format!(
            "<Role><Path>/</Path><RoleName>{name}</RoleName><RoleId>AROASIMULATED</RoleId>\
             <Arn>arn:aws:iam::{account}:role/{name}</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate>\
             <AssumeRolePolicyDocument>{trust}</AssumeRolePolicyDocument></Role>"
        ),
    )
}

fn simulate(setup: &Setup, form: &Form) -> Response {
    let source = form.get("PolicySourceArn");
    let is_caller = source.ends_with(&format!("role/{CALLER}"));
    if !is_caller && !setup.has_role() {
        let message = format!("The policy source {source} cannot be found.");
        return query::error(404, "NoSuchEntity", &message);
    }
    let decision = |action: &str| {
        let is_denied = if is_caller {
            setup.denies(action)
        } else {
            setup.denies_role(action)
        };
        let decision = if is_denied { "implicitDeny" } else { "allowed" };
        format!(
            "<member><EvalActionName>{action}</EvalActionName><EvalResourceName>{}</EvalResourceName>\
             <EvalDecision>{decision}</EvalDecision></member>",
            form.get("ResourceArns.member.1")
        )
    };
    let all: String = form.list("ActionNames").map(decision).collect();
    query::answer(
        "SimulatePrincipalPolicy",
        NAMESPACE,
        &format!("<EvaluationResults>{all}</EvaluationResults><IsTruncated>false</IsTruncated>"),
    )
}
