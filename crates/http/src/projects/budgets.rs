//! What a limit on dollars does not allow, in answers: refused before anything is written, with the figure to raise.

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{Shortfall, least_budget, limit_flaw};

use crate::plumbing::problem::{FieldError, Problem};
use bakeoff_service::app::App;
use bakeoff_store::money::caps::Purchase;

/// A shortfall as an error at a place in the body.
pub(crate) fn short(pointer: &str, short: &Shortfall) -> FieldError {
    FieldError {
        pointer: pointer.to_owned(),
        detail: short.detail(),
        fix: short.fix(),
        rule: "budget".to_owned(),
    }
}

/// Refuses what can never be reserved: a limit of the project or the installation is less than the least that it needs.
/// `stated`: its own budget, which is what a limit should hold.
pub(crate) async fn allow(
    app: &App,
    project: ProjectId,
    purchase: Purchase,
    least: Usd,
    stated: Usd,
) -> Result<(), Problem> {
    let now = app.clock.now();
    let store = &app.store;
    let Some(never) = store.can_never_buy(project, purchase, least, now).await? else {
        return Ok(());
    };
    let told = Shortfall {
        needed: stated.max(least),
        ..never
    };
    Err(Problem::invalid(vec![short("/budget_usd", &told)]))
}

/// What is wrong with a budget that a request names.
pub(crate) fn flaw(budget: Option<Usd>) -> Option<FieldError> {
    let detail = limit_flaw(budget?, least_budget())?;
    Some(FieldError {
        pointer: "/budget_usd".to_owned(),
        detail,
        fix: "name such an amount".to_owned(),
        rule: "budget".to_owned(),
    })
}
