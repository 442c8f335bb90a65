//! A newer program migrates the database under running replicas: those that run must notice and
//! stop, and those that start must not come up. Then the old program is restored.

use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use super::stage::{Replica, Stage};
use bakeoff_demo::http::get;

/// Time within which a replica that is not frozen must notice that its database was migrated.
const NOTICE_MAX: Duration = Duration::from_mins(1);
/// How long stopped replicas are started again and again; none of them may come up.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// Time until the old program is back after that.
const BACK: Duration = Duration::from_secs(2);
/// What a newer program leaves behind, and how it is undone.
const UPGRADE: &str =
    "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                       VALUES (9999, 'of a newer program', true, '', 0)";
const DOWNGRADE: &str = "DELETE FROM _sqlx_migrations WHERE version = 9999";

/// A schema newer than the replicas that were running when it was migrated.
pub(super) struct Upgraded {
    since: Instant,
    pids: Vec<u32>,
    begun_at: SystemTime,
    /// When the last of them had stopped.
    gone_at: Option<Instant>,
    /// Whether a replica started since then, and ended at once.
    was_refused: bool,
    /// Whether a replica started since then, and answered.
    came_up: bool,
}

impl Upgraded {
    /// Records that a process ended by itself; true when it started after the migration, and so had
    /// to.
    pub(super) fn has_refused(&mut self, pid: u32) -> bool {
        let is_new = !self.pids.contains(&pid);
        self.was_refused |= is_new;
        is_new
    }

    fn runs(&self, replica: &Replica) -> bool {
        let pid = replica.child.as_ref().map(Child::id);
        !replica.is_lost && pid.is_some_and(|pid| self.pids.contains(&pid))
    }

    /// Whether a replica started after the migration answers. Asked with the seed's own key: while no
    /// replica holds the port, another seed's process may take it.
    fn has_come_up(&self, replica: &Replica, key: &str) -> bool {
        let is_there = replica.child.is_some() && replica.continue_at.is_none() && !replica.is_lost;
        is_there
            && !self.runs(replica)
            && get(
                &format!("http://127.0.0.1:{}/v1/projects/current", replica.port),
                key,
            )
            .is_ok()
    }
}

impl Stage {
    /// Migrates the database as a newer program would, unless no replica runs that could notice.
    pub(super) fn upgrade(&mut self) {
        let up = self.replicas.iter().filter(|replica| !replica.is_lost);
        let pids: Vec<u32> = up
            .filter_map(|replica| Some(replica.child.as_ref()?.id()))
            .collect();
        if self.upgraded.is_none() && !pids.is_empty() && self.direct.execute(UPGRADE).is_ok() {
            let (since, begun_at) = (Instant::now(), SystemTime::now());
            self.upgraded = Some(Upgraded {
                since,
                begun_at,
                pids,
                gone_at: None,
                was_refused: false,
                came_up: false,
            });
        }
    }

    /// Restores the old program once all replicas have noticed, and none has come up for a while.
    pub(super) fn follow_upgrade(&mut self) {
        let Some(upgraded) = &mut self.upgraded else {
            return;
        };
        let left = self
            .replicas
            .iter()
            .filter(|replica| upgraded.runs(replica))
            .count();
        // A frozen one notices nothing, and its time begins when it goes on.
        let is_frozen = |one: &Replica| upgraded.runs(one) && one.continue_at.is_some();
        if self.replicas.iter().any(is_frozen) {
            upgraded.since = Instant::now();
        }
        if left == 0 && upgraded.gone_at.is_none() {
            upgraded.gone_at = Some(Instant::now());
        }
        upgraded.came_up |= self
            .replicas
            .iter()
            .any(|replica| upgraded.has_come_up(replica, &self.api_key));
        let is_late = upgraded.since.elapsed() > NOTICE_MAX;
        let is_played = upgraded.was_refused
            && upgraded
                .gone_at
                .is_some_and(|gone| gone.elapsed() > REFUSED_FOR);
        if !is_played && !is_late {
            return;
        }
        let came_up = u32::from(upgraded.came_up);
        let span = (upgraded.begun_at, SystemTime::now() + BACK);
        if self.direct.execute(DOWNGRADE).is_ok() {
            self.unnoticed += u32::try_from(left).unwrap_or(u32::MAX);
            self.came_up += came_up;
            self.upgrades.push(span);
            self.upgraded = None;
            *self.injected.entry("upgrade").or_default() += 1;
        }
    }
}
