//! A newer program migrates the database under running replicas: whoever runs has to notice and
//! stop, and whoever starts must not come up. Then the old program is put back.

use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use super::http::get;
use super::stage::{Replica, Stage};

/// A replica has to notice within this time that its database was migrated under it.
const NOTICE_MAX: Duration = Duration::from_mins(1);
/// Once all have stopped, they are started again and again for so long: none may come up.
const REFUSED_FOR: Duration = Duration::from_secs(2);
/// Then the old program is back after this.
const BACK: Duration = Duration::from_secs(2);
/// What a newer program leaves behind, and how it is taken back.
const UPGRADE: &str =
    "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
                       VALUES (9999, 'of a newer program', true, '', 0)";
const DOWNGRADE: &str = "DELETE FROM _sqlx_migrations WHERE version = 9999";

/// The schema is newer than the replicas that ran when it was migrated.
pub(super) struct Upgraded {
    since: Instant,
    pids: Vec<u32>,
    begun_at: SystemTime,
    /// When the last of them had stopped.
    gone_at: Option<Instant>,
    /// Somebody was started since, and ended at once.
    was_refused: bool,
    /// Somebody was started since, and answered.
    came_up: bool,
}

impl Upgraded {
    /// A process has ended by itself; true when it was started since, and so had to.
    pub(super) fn has_refused(&mut self, pid: u32) -> bool {
        let is_new = !self.pids.contains(&pid);
        self.was_refused |= is_new;
        is_new
    }

    fn runs(&self, replica: &Replica) -> bool {
        let pid = replica.child.as_ref().map(Child::id);
        !replica.is_lost && pid.is_some_and(|pid| self.pids.contains(&pid))
    }

    /// It was started since, and answers.
    fn has_come_up(&self, replica: &Replica) -> bool {
        let is_there = replica.child.is_some() && replica.continue_at.is_none() && !replica.is_lost;
        is_there
            && !self.runs(replica)
            && get(&format!("http://127.0.0.1:{}/livez", replica.port), "").is_ok()
    }
}

impl Stage {
    /// The database is migrated by a newer program, unless nobody runs who could notice.
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

    /// Once all have noticed, and nobody has come up for a while, the old program is put back.
    pub(super) fn follow_upgrade(&mut self) {
        let Some(upgraded) = &mut self.upgraded else {
            return;
        };
        let left = self
            .replicas
            .iter()
            .filter(|replica| upgraded.runs(replica))
            .count();
        if left == 0 && upgraded.gone_at.is_none() {
            upgraded.gone_at = Some(Instant::now());
        }
        upgraded.came_up |= self
            .replicas
            .iter()
            .any(|replica| upgraded.has_come_up(replica));
        let is_late = upgraded.since.elapsed() > NOTICE_MAX;
        let is_played = upgraded.was_refused
            && upgraded
                .gone_at
                .is_some_and(|gone| gone.elapsed() > REFUSED_FOR);
        if !is_played && !is_late {
            return;
        }
        let wrong = left + usize::from(upgraded.came_up);
        let span = (upgraded.begun_at, SystemTime::now() + BACK);
        if self.direct.execute(DOWNGRADE).is_ok() {
            self.unnoticed += u32::try_from(wrong).unwrap_or(u32::MAX);
            self.upgrades.push(span);
            self.upgraded = None;
            *self.blows.entry("upgrade").or_default() += 1;
        }
    }
}
