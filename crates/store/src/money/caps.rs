//! The limits above an experiment: loads them, locked or for a look, and tells once when much of one is used.

use bakeoff_domain::event::{BudgetNews, Event};
use bakeoff_domain::ids::{ExperimentId, PipelineId, ProjectId, TemplateId};
use bakeoff_domain::lifecycle::state::ExperimentState;
use bakeoff_domain::money::Usd;
use bakeoff_domain::money::budget::{
    self, Balance, BudgetLevel, InstallationCaps, Limit, Shortfall, month_of,
};
use chrono::{DateTime, NaiveDate, Utc};
use rust_decimal::Decimal;
use sqlx::PgConnection;
use uuid::Uuid;

use crate::events::{self, EventSubject, NewEvent};
use crate::{Store, StoreError};

/// The period of a total.
const TOTAL: NaiveDate = match NaiveDate::from_ymd_opt(1970, 1, 1) {
    Some(day) => day,
    None => NaiveDate::MIN,
};

/// What is to be reserved, and for what.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) experiment: ExperimentId,
    pub(crate) project: ProjectId,
    pub(crate) amount: Usd,
    pub(crate) at: DateTime<Utc>,
}

/// Why nothing was reserved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotReserved {
    Short(Shortfall),
    /// Its CI template has as many runs under way as it may.
    RunsAtOnce(u32),
    /// The experiment is paused, or over.
    HeldBack(String),
}

impl NotReserved {
    /// It may fit later: other reservations are released, or another run ends.
    pub fn may_wait(&self) -> bool {
        match self {
            Self::Short(short) => !short.is_final,
            Self::RunsAtOnce(_) | Self::HeldBack(_) => true,
        }
    }

    /// In one sentence, for the reason of a trial.
    pub fn why(&self) -> String {
        match self {
            Self::Short(short) => short.to_string(),
            Self::HeldBack(why) => why.clone(),
            Self::RunsAtOnce(most) => format!(
                "waiting for a turn: its CI template has {most} runs under way, and may have no more at once \
                 (settings.runs_at_once)"
            ),
        }
    }
}

/// Those who are asked, locked.
#[derive(Debug)]
pub(super) struct LockedCaps {
    pub(super) limits: Vec<Limit>,
    pub(super) template: Option<AskedTemplate>,
}

/// The CI template whose run it is.
#[derive(Debug)]
pub(super) struct AskedTemplate {
    pub(super) id: TemplateId,
    name: String,
}

/// What is created, as far as an installation limits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purchase {
    Experiment,
    Endpoint,
    Pipeline,
}

fn balance(budget: Option<Decimal>, reserved: Decimal, settled: Decimal) -> Balance {
    Balance {
        budget_usd: budget.map(Usd),
        reserved_usd: Usd(reserved),
        settled_usd: Usd(settled),
    }
}

/// Locks the rows of all levels, in their order, and says how much of each is used.
pub(super) async fn ask(
    tx: &mut PgConnection,
    installation: InstallationCaps,
    ask: Ask,
) -> Result<Result<LockedCaps, NotReserved>, StoreError> {
    let mut limits = Vec::new();
    if let Some(why) = own(tx, installation, ask.experiment, &mut limits).await? {
        return Ok(Err(NotReserved::HeldBack(why)));
    }
    limits.extend(pipeline(tx, ask.experiment).await?);
    let template = match template(tx, ask, &mut limits).await? {
        Ok(template) => template,
        Err(most) => return Ok(Err(NotReserved::RunsAtOnce(most))),
    };
    limits.extend(project(tx, ask.project, ask.at).await?);
    if installation.month_usd.is_some() {
        sqlx::query!("SELECT id FROM installation FOR NO KEY UPDATE")
            .fetch_one(&mut *tx)
            .await?;
        limits.extend(all_projects(tx, installation, ask.at).await?);
    }
    Ok(Ok(LockedCaps { limits, template }))
}

/// The experiment's own budget, and what the installation allows one; why it may reserve nothing at all.
async fn own(
    tx: &mut PgConnection,
    installation: InstallationCaps,
    id: ExperimentId,
    limits: &mut Vec<Limit>,
) -> Result<Option<String>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT state, paused_reason, budget_usd, reserved_usd, settled_usd,
                  EXISTS (SELECT FROM endpoints p WHERE p.experiment_id = e.id) AS "is_endpoint!"
           FROM experiments e WHERE id = $1 FOR NO KEY UPDATE OF e"#,
        id.0,
    )
    .fetch_one(tx)
    .await?;
    let state = ExperimentState::parse(&row.state)
        .ok_or_else(|| StoreError::corrupt("experiments", id, "state"))?;
    let of = |budget| balance(budget, row.reserved_usd, row.settled_usd);
    limits.push(Limit::new(
        BudgetLevel::Experiment,
        of(Some(row.budget_usd)),
    ));
    let (level, most) = if row.is_endpoint {
        (BudgetLevel::EndpointMax, installation.endpoint_usd)
    } else {
        (BudgetLevel::ExperimentMax, installation.experiment_usd)
    };
    limits.push(Limit::new(level, of(most.map(|usd| usd.0))));
    Ok(held_back(state, row.paused_reason))
}

/// The pipeline whose step it is, locked; the sum over its works is that of the moment.
async fn pipeline(
    tx: &mut PgConnection,
    experiment: ExperimentId,
) -> Result<Option<Limit>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT p.id, p.budget_usd FROM pipelines p JOIN pipeline_works w ON w.pipeline_id = p.id
           WHERE w.experiment_id = $1 FOR NO KEY UPDATE OF p"#,
        experiment.0,
    );
    let Some(row) = row.fetch_optional(&mut *tx).await? else {
        return Ok(None);
    };
    let sum = sqlx::query!(
        r#"SELECT coalesce(sum(x.reserved_usd), 0) AS "reserved_usd!", coalesce(sum(x.settled_usd), 0) AS "settled_usd!"
           FROM pipeline_works w JOIN experiments x ON x.id = w.experiment_id WHERE w.pipeline_id = $1"#,
        row.id,
    )
    .fetch_one(tx)
    .await?;
    let of = balance(Some(row.budget_usd), sum.reserved_usd, sum.settled_usd);
    Ok(Some(Limit {
        pipeline: Some(PipelineId(row.id)),
        ..Limit::new(BudgetLevel::Pipeline, of)
    }))
}

/// The CI template whose run it is, locked. `Err`: it has as many other runs under way as it may.
async fn template(
    tx: &mut PgConnection,
    ask: Ask,
    limits: &mut Vec<Limit>,
) -> Result<Result<Option<AskedTemplate>, u32>, StoreError> {
    let row = sqlx::query!(
        r#"SELECT t.id, t.name, t.runs_at_once, t.usd_per_day, t.usd_per_month, t.reserved_usd, t.day, t.day_settled_usd,
                  t.month, t.month_settled_usd, o.run_id
           FROM ci_rounds o JOIN ci_runs r ON r.id = o.run_id JOIN ci_templates t ON t.id = r.template_id
           WHERE o.experiment_id = $1 AND o.is_counted FOR NO KEY UPDATE OF t"#,
        ask.experiment.0,
    );
    let Some(row) = row.fetch_optional(&mut *tx).await? else {
        return Ok(Ok(None));
    };
    let under_way = sqlx::query_scalar!(
        r#"SELECT (SELECT count(*) FROM ci_runs r
                   WHERE r.template_id = $1 AND r.verdict IS NULL AND r.id <> $2
                     AND EXISTS (SELECT FROM ci_rounds o WHERE o.run_id = r.id AND o.began_at IS NOT NULL))
                -- One that was superseded is billed until its jobs have stopped.
                + (SELECT count(DISTINCT r.id) FROM trials t JOIN ci_rounds o ON o.experiment_id = t.experiment_id
                          JOIN ci_runs r ON r.id = o.run_id
                   WHERE t.state IN ('submitting', 'running', 'stopping') AND r.template_id = $1 AND r.verdict IS NOT NULL
                     AND r.id <> $2) AS "count!""#,
        row.id,
        row.run_id,
    )
    .fetch_one(tx)
    .await?;
    if under_way >= i64::from(row.runs_at_once) {
        return Ok(Err(row.runs_at_once.unsigned_abs()));
    }
    let (today, this_month) = (ask.at.date_naive(), month_of(ask.at));
    let since = |stored: Option<NaiveDate>, period: NaiveDate, settled: Decimal| {
        if stored >= Some(period) {
            settled
        } else {
            Decimal::ZERO
        }
    };
    let day = since(row.day, today, row.day_settled_usd);
    let month = since(row.month, this_month, row.month_settled_usd);
    for (level, budget, settled) in [
        (BudgetLevel::TemplateDay, row.usd_per_day, day),
        (BudgetLevel::TemplateMonth, row.usd_per_month, month),
    ] {
        limits.push(Limit {
            template: Some(TemplateId(row.id)),
            ..Limit::new(level, balance(Some(budget), row.reserved_usd, settled))
        });
    }
    Ok(Ok(Some(AskedTemplate {
        id: TemplateId(row.id),
        name: row.name,
    })))
}

/// The project's total and its month, locked.
async fn project(
    tx: &mut PgConnection,
    id: ProjectId,
    at: DateTime<Utc>,
) -> Result<[Limit; 2], StoreError> {
    let row = sqlx::query!(
        r#"SELECT budget_usd, monthly_budget_usd, reserved_usd, settled_usd,
                  CASE WHEN month >= $2 THEN month_settled_usd ELSE 0 END AS "month_settled_usd!"
           FROM projects WHERE id = $1 FOR NO KEY UPDATE"#,
        id.0,
        month_of(at),
    )
    .fetch_one(tx)
    .await?;
    let total = balance(row.budget_usd, row.reserved_usd, row.settled_usd);
    let month = balance(
        row.monthly_budget_usd,
        row.reserved_usd,
        row.month_settled_usd,
    );
    Ok([
        Limit::new(BudgetLevel::Project, total),
        Limit::new(BudgetLevel::ProjectMonth, month),
    ])
}

/// The installation's month: the sum over its projects, exact once its row is locked, since only those who hold that lock
/// reserve.
async fn all_projects(
    tx: &mut PgConnection,
    installation: InstallationCaps,
    at: DateTime<Utc>,
) -> Result<Option<Limit>, StoreError> {
    let Some(month_usd) = installation.month_usd else {
        return Ok(None);
    };
    let sum = sqlx::query!(
        r#"SELECT coalesce(sum(reserved_usd), 0) AS "reserved_usd!",
                  coalesce(sum(month_settled_usd) FILTER (WHERE month >= $1), 0) AS "settled_usd!"
           FROM projects"#,
        month_of(at),
    )
    .fetch_one(tx)
    .await?;
    let of = balance(Some(month_usd.0), sum.reserved_usd, sum.settled_usd);
    Ok(Some(Limit::new(BudgetLevel::InstallationMonth, of)))
}

/// Why an experiment may reserve nothing, if it may not.
fn held_back(state: ExperimentState, paused_reason: Option<String>) -> Option<String> {
    match state {
        ExperimentState::Running => paused_reason,
        ExperimentState::Cancelling
        | ExperimentState::Completed
        | ExperimentState::Failed
        | ExperimentState::Cancelled => Some("cancelled".to_owned()),
    }
}

/// Whether a level's shares are told to people: what a single experiment or pipeline uses is its own matter.
fn is_told(level: BudgetLevel) -> bool {
    match level {
        BudgetLevel::Experiment
        | BudgetLevel::ExperimentMax
        | BudgetLevel::EndpointMax
        | BudgetLevel::Pipeline => false,
        BudgetLevel::TemplateDay
        | BudgetLevel::TemplateMonth
        | BudgetLevel::Project
        | BudgetLevel::ProjectMonth
        | BudgetLevel::InstallationMonth => true,
    }
}

/// Whose a level is, as alarms name it, and its period.
fn key(limit: &Limit, project: ProjectId, at: DateTime<Utc>) -> (Uuid, NaiveDate) {
    let owner = match limit.level {
        BudgetLevel::InstallationMonth => Uuid::nil(),
        BudgetLevel::TemplateDay | BudgetLevel::TemplateMonth => {
            limit.template.map_or_else(Uuid::nil, |template| template.0)
        }
        BudgetLevel::Experiment
        | BudgetLevel::ExperimentMax
        | BudgetLevel::EndpointMax
        | BudgetLevel::Pipeline
        | BudgetLevel::Project
        | BudgetLevel::ProjectMonth => project.0,
    };
    let period = match limit.level {
        BudgetLevel::TemplateDay => at.date_naive(),
        BudgetLevel::TemplateMonth | BudgetLevel::ProjectMonth | BudgetLevel::InstallationMonth => {
            month_of(at)
        }
        BudgetLevel::Experiment
        | BudgetLevel::ExperimentMax
        | BudgetLevel::EndpointMax
        | BudgetLevel::Pipeline
        | BudgetLevel::Project => TOTAL,
    };
    (owner, period)
}

/// Notes the shares of each limit that are reached once `ask` is reserved; returns an event for each that was not before.
pub(super) async fn alarms(
    tx: &mut PgConnection,
    asked: &LockedCaps,
    ask: Ask,
) -> Result<Vec<NewEvent>, StoreError> {
    let mut events = Vec::new();
    for limit in asked.limits.iter().filter(|limit| is_told(limit.level)) {
        let mut after = *limit;
        after.balance.reserved_usd += ask.amount;
        let percents: Vec<u32> = after.balance.shares_reached().collect();
        let template = asked
            .template
            .as_ref()
            .map(|template| template.name.as_str());
        events.extend(note(tx, &after, &percents, template, ask).await?);
    }
    Ok(events)
}

/// Notes shares of a limit, each once per period and amount.
async fn note(
    tx: &mut PgConnection,
    limit: &Limit,
    percents: &[u32],
    template: Option<&str>,
    ask: Ask,
) -> Result<Vec<NewEvent>, StoreError> {
    let Some(limit_usd) = limit.balance.budget_usd.filter(|_| !percents.is_empty()) else {
        return Ok(Vec::new());
    };
    let (owner, period) = key(limit, ask.project, ask.at);
    let used = limit.balance.used();
    let percents: Vec<i32> = percents
        .iter()
        .map(|percent| percent.cast_signed())
        .collect();
    let new = sqlx::query_scalar!(
        r#"INSERT INTO budget_alarms (owner_id, level, period, limit_usd, percent, used_usd, recorded_at)
           SELECT $1, $2, $3, $4, percent, $6, $7 FROM UNNEST($5::integer[]) AS p(percent) ORDER BY percent
           ON CONFLICT DO NOTHING RETURNING percent"#,
        owner,
        limit.level.as_str(),
        period,
        limit_usd.0,
        &percents,
        used.0,
        ask.at,
    );
    let subject = EventSubject {
        project: ask.project,
        experiment: ask.experiment,
        trial: None,
    };
    let news = |percent: i32| {
        subject.told(Event::BudgetThreshold(BudgetNews {
            level: limit.level,
            percent: percent.unsigned_abs(),
            limit_usd,
            used_usd: used,
            period: (period != TOTAL).then_some(period),
            template: limit.template.and(template).map(str::to_owned),
        }))
    };
    Ok(new.fetch_all(tx).await?.into_iter().map(news).collect())
}

/// A share of one of a project's limits that was reached.
#[derive(Debug, Clone)]
pub struct BudgetAlarm {
    pub level: BudgetLevel,
    pub percent: u32,
    pub limit_usd: Usd,
    pub used_usd: Usd,
    pub period: Option<NaiveDate>,
    pub at: DateTime<Utc>,
}

/// A project's month so far.
#[derive(Debug, Clone, Copy)]
pub struct MonthOfProject {
    pub begins: NaiveDate,
    pub settled_usd: Usd,
    /// Of jobs that run now, estimated.
    pub accrued_usd: Usd,
    pub forecast_usd: Option<Usd>,
}

impl Store {
    /// Tells once that a limit is used up: something that it would allow alone did not fit.
    #[tracing::instrument(level = "debug", skip_all)]
    pub(crate) async fn tell_used_up(&self, short: &Shortfall, ask: Ask) -> Result<(), StoreError> {
        if !is_told(short.limit.level) || !short.is_used_up() {
            return Ok(());
        }
        let mut tx = self.pool.begin().await?;
        let name = match short.limit.template {
            Some(id) => {
                sqlx::query_scalar!("SELECT name FROM ci_templates WHERE id = $1", id.0)
                    .fetch_optional(&mut *tx)
                    .await?
            }
            None => None,
        };
        let events = note(&mut tx, &short.limit, &[100], name.as_deref(), ask).await?;
        events::commit(tx, &events, ask.at).await
    }

    /// What can never be reserved in a project, asked before anything is written; the reservation asks again.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn can_never_buy(
        &self,
        project_id: ProjectId,
        purchase: Purchase,
        amount: Usd,
        now: DateTime<Utc>,
    ) -> Result<Option<Shortfall>, StoreError> {
        let mut tx = self.pool.begin().await?;
        let caps = self.caps;
        let (level, most) = match purchase {
            Purchase::Experiment => (BudgetLevel::ExperimentMax, caps.experiment_usd),
            Purchase::Endpoint => (BudgetLevel::EndpointMax, caps.endpoint_usd),
            Purchase::Pipeline => (BudgetLevel::Pipeline, None),
        };
        let alone = Balance {
            budget_usd: most,
            reserved_usd: Usd::ZERO,
            settled_usd: Usd::ZERO,
        };
        let mut limits = vec![Limit::new(level, alone)];
        limits.extend(project(&mut tx, project_id, now).await?);
        limits.extend(all_projects(&mut tx, caps, now).await?);
        Ok(budget::can_never(amount, &limits))
    }

    /// A project's month so far.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn month_of_project(
        &self,
        id: ProjectId,
        now: DateTime<Utc>,
    ) -> Result<MonthOfProject, StoreError> {
        let begins = month_of(now);
        let row = sqlx::query!(
            r#"SELECT CASE WHEN p.month >= $2 THEN p.month_settled_usd ELSE 0 END AS "settled_usd!",
                      coalesce((SELECT sum(least(j.usd_per_hour * t.instance_count
                                                 * greatest(extract(epoch FROM $3::timestamptz - j.started_at), 0) / 3600,
                                                 j.reserved_training_usd))
                                FROM jobs j JOIN trials t ON t.id = j.trial_id
                                WHERE j.project_id = p.id AND j.settled_at IS NULL AND j.started_at IS NOT NULL), 0)
                          AS "accrued_usd!"
               FROM projects p WHERE p.id = $1"#,
            id.0,
            begins,
            now,
        )
        .fetch_one(&self.pool)
        .await?;
        let (settled_usd, accrued_usd) = (Usd(row.settled_usd), Usd(row.accrued_usd).rounded());
        Ok(MonthOfProject {
            begins,
            settled_usd,
            accrued_usd,
            forecast_usd: budget::forecast(settled_usd + accrued_usd, now),
        })
    }

    /// The shares of a project's limits that were reached: of its total and of this month.
    #[tracing::instrument(level = "debug", skip_all)]
    pub async fn budget_alarms(
        &self,
        id: ProjectId,
        now: DateTime<Utc>,
    ) -> Result<Vec<BudgetAlarm>, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT a.level, a.period, a.limit_usd, a.percent, a.used_usd, a.recorded_at
               FROM budget_alarms a JOIN projects p ON p.id = a.owner_id
               WHERE a.owner_id = $1 AND ((a.level = 'project' AND a.limit_usd = p.budget_usd)
                                          OR (a.level = 'project_month' AND a.period = $2 AND a.limit_usd = p.monthly_budget_usd))
               ORDER BY a.recorded_at, a.level, a.percent"#,
            id.0,
            month_of(now),
        );
        let rows = rows.fetch_all(&self.pool).await?.into_iter();
        let alarms = rows.map(|row| {
            Ok(BudgetAlarm {
                level: BudgetLevel::parse(&row.level)
                    .ok_or_else(|| StoreError::corrupt("budget_alarms", id, "level"))?,
                percent: row.percent.unsigned_abs(),
                limit_usd: Usd(row.limit_usd),
                used_usd: Usd(row.used_usd),
                period: (row.period != TOTAL).then_some(row.period),
                at: row.recorded_at,
            })
        });
        alarms.collect()
    }
}
