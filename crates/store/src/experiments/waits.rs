//! How long a project's starts have waited for instances: what plans expect of the next.

use std::collections::BTreeMap;

use bakeoff_domain::ids::ProjectId;
use bakeoff_domain::number::median;
use bakeoff_domain::ranking::outcome::Wait;
use bakeoff_domain::spec::PurchaseOption;

use crate::{Store, StoreError};

/// Experiments looked at, the newest first: capacity of last year says little.
const EXPERIMENTS: i64 = 50;
/// The fewest starts of which one that was odd is not the median.
const STARTS_MIN: usize = 3;

/// Waits by instance type and purchase option.
#[derive(Debug, Default)]
pub struct Waits(BTreeMap<(String, PurchaseOption), Wait>);

impl Waits {
    pub fn of(&self, instance_type: &str, option: PurchaseOption) -> Option<Wait> {
        self.0.get(&(instance_type.to_owned(), option)).copied()
    }
}

impl Store {
    /// The median wait of the newest starts on some types in a region: the time of a trial's jobs from
    /// creation to the first instance, those included that got none. What a trial waited for budget, or
    /// for a person, is not. Nothing is said from fewer than [`STARTS_MIN`] starts.
    pub async fn waits(
        &self,
        project: ProjectId,
        region: &str,
        instance_types: &[String],
    ) -> Result<Waits, StoreError> {
        let rows = sqlx::query!(
            r#"SELECT t.instance_type, t.purchase_option,
                      extract(epoch FROM sum(coalesce(j.started_at, j.ended_at, j.planned_at) - j.planned_at))::float8 AS "seconds!"
               FROM (SELECT id FROM experiments WHERE project_id = $1 AND region = $2 ORDER BY id DESC LIMIT $4) e
               JOIN trials t ON t.experiment_id = e.id AND t.instance_type = ANY($3)
               JOIN jobs j ON j.experiment_id = e.id AND j.trial_id = t.id
                AND j.planned_at <= (SELECT min(s.started_at) FROM jobs s WHERE s.experiment_id = e.id AND s.trial_id = t.id)
               GROUP BY t.id"#,
            project.0,
            region,
            instance_types,
            EXPERIMENTS,
        )
        .fetch_all(&self.pool)
        .await?;
        let mut all: BTreeMap<(String, PurchaseOption), Vec<f64>> = BTreeMap::new();
        for row in rows {
            if let Some(option) = PurchaseOption::parse(&row.purchase_option) {
                let hours = row.seconds.max(0.0) / 3600.0;
                all.entry((row.instance_type, option))
                    .or_default()
                    .push(hours);
            }
        }
        let wait = |hours: Vec<f64>| Wait {
            starts: u32::try_from(hours.len()).unwrap_or(u32::MAX),
            hours: median(hours),
        };
        all.retain(|_, hours| hours.len() >= STARTS_MIN);
        let all = all.into_iter().map(|(key, hours)| (key, wait(hours)));
        Ok(Waits(all.collect()))
    }
}
