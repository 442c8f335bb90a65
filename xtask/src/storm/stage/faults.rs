//! Faults injected into the processes of a seed, and what they excuse.

use std::process::Child;
use std::time::{Duration, Instant, SystemTime};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;

use super::{
    ACCOUNT, COPY, Death, End, FOREIGN_ACCOUNT, FOREIGN_FOR, Freeze, SILENT_MAX, STRANGERS, Stage,
    free_port, is_stopped,
};
use crate::process::{Signal, signal, spawn};
use crate::storm::client::strangers_job;
use bakeoff_demo::http::{get, post};
use bakeoff_demo::stack::kill;

/// How long nobody is there, and how long the replicas need to come up after it.
const AWAY: Duration = Duration::from_secs(12);
const BACK: Duration = Duration::from_secs(3);

impl Stage {
    /// Kills a replica (`kill -9`) and starts it again soon after, with a shifted clock if
    /// requested.
    pub(in crate::storm) fn kill_replica(&mut self, index: usize, clock_shift: i64) {
        let Some(replica) = self
            .replicas
            .get_mut(index)
            .filter(|replica| !replica.is_lost)
        else {
            return;
        };
        if let Some(mut child) = replica.child.take() {
            self.deaths.push(Death {
                pid: child.id(),
                at: SystemTime::now(),
                end: End::Killed,
            });
            kill(&mut child);
            let kind = if clock_shift == 0 {
                "kill"
            } else {
                "clock_jump"
            };
            *self.injected.entry(kind).or_default() += 1;
        }
        replica.continue_at = None;
        replica.clock_shift = clock_shift;
        replica.restart_at = Some(Instant::now() + Duration::from_millis(100));
    }

    /// Kills all replicas, which stay away for longer than any reservation has slack: an hour of the region's time. What
    /// bills by itself must have an end that needs none of them.
    pub(in crate::storm) fn go_away(&mut self) {
        for index in 0..self.replicas.len() {
            self.kill_replica(index, 0);
            if let Some(replica) = self.replicas.get_mut(index) {
                replica.restart_at = replica.restart_at.map(|at| at + AWAY);
            }
        }
        let now = SystemTime::now();
        self.upgrades.push((now, now + AWAY + BACK));
        *self.injected.entry("away").or_default() += 1;
    }

    /// Stops a replica (SIGSTOP), to be continued later.
    pub(in crate::storm) fn freeze_replica(&mut self, index: usize, freeze: Duration) {
        let Some(replica) = self
            .replicas
            .get_mut(index)
            .filter(|replica| !replica.is_lost)
        else {
            return;
        };
        if let Some(child) = &replica.child {
            signal(i32::try_from(child.id()).unwrap_or_default(), Signal::STOP);
            replica.continue_at = Some(Instant::now() + freeze);
            let now = SystemTime::now();
            self.freezes.push(Freeze {
                pid: child.id(),
                from: now,
                to: now + freeze,
            });
            *self.injected.entry("freeze").or_default() += 1;
        }
    }

    /// Stops a replica (SIGSTOP) for good: to all others it is dead, yet it keeps its connections.
    /// Returns false when it was not up.
    pub(in crate::storm) fn lose_replica(&mut self, index: usize) -> bool {
        if self.replicas.iter().any(|replica| replica.is_lost) {
            return true;
        }
        let last_words = self.last_words(index);
        let Some(replica) = self.replicas.get_mut(index) else {
            return false;
        };
        if let Some(child) = &mut replica.child {
            // A replica that is starting, or refuses to start, holds nothing.
            let is_there = matches!(child.try_wait(), Ok(None));
            let answers = || get(&format!("http://127.0.0.1:{}/livez", replica.port), "").is_ok();
            let was_stopped = is_stopped(child.id());
            if !is_there || !(was_stopped || answers()) {
                return false;
            }
            signal(i32::try_from(child.id()).unwrap_or_default(), Signal::STOP);
            (replica.is_lost, replica.continue_at) = (true, None);
            let at = if was_stopped {
                last_words
            } else {
                SystemTime::now()
            };
            self.deaths.push(Death {
                pid: child.id(),
                at,
                end: End::Frozen,
            });
            *self.injected.entry("freeze_for_good").or_default() += 1;
        }
        self.replicas
            .get(index)
            .is_some_and(|replica| replica.is_lost)
    }

    pub(in crate::storm) fn silence_connections(&mut self) {
        *self.injected.entry("silent_connections").or_default() += 1;
        self.silences.push(SystemTime::now());
        self.proxy.silence();
    }

    /// Switches the credentials to another account for a while.
    pub(in crate::storm) fn use_foreign_credentials(&mut self) {
        if self.use_account(FOREIGN_ACCOUNT).is_ok() {
            *self.injected.entry("foreign_credentials").or_default() += 1;
            self.foreign_from.push(SystemTime::now());
            self.foreign_until = Some(Instant::now() + FOREIGN_FOR);
        }
    }

    pub(in crate::storm) fn start_strangers_job(&mut self) {
        let count = self
            .injected
            .get("strangers_job")
            .copied()
            .unwrap_or_default();
        if strangers_job(&self.region_url, &format!("{STRANGERS}{count}")).is_ok() {
            *self.injected.entry("strangers_job").or_default() += 1;
        }
    }

    /// Changes the price of a type at AWS, half an hour from now.
    pub(in crate::storm) fn change_price(
        &mut self,
        instance_type: &str,
        micro_usd: i64,
    ) -> Result<DateTime<Utc>, String> {
        let record = get(&format!("{}/_sim/record", self.region_url), "")?;
        let now: DateTime<Utc> = record["now"]
            .as_str()
            .and_then(|at| at.parse().ok())
            .ok_or("the region has no time")?;
        let from = now + TimeDelta::minutes(30);
        let new = json!({ "instance_type": instance_type, "micro_usd": micro_usd, "effective_from": from });
        post(&format!("{}/_sim/prices", self.region_url), "", &new)?;
        *self.injected.entry("price_change").or_default() += 1;
        Ok(from)
    }

    pub(super) fn use_account(&self, account: &str) -> Result<(), String> {
        post(
            &format!("{}/_sim/account", self.region_url),
            "",
            &json!({ "account": account }),
        )
        .map(drop)
    }

    pub(in crate::storm) fn cut_connections(&mut self) {
        *self.injected.entry("cut_connections").or_default() += 1;
        self.proxy.cut();
    }

    /// Spans in which no replica could do anything: connections were silent, the credentials
    /// belonged to another account, or no replica may run.
    pub(in crate::storm) fn hindrances(&self) -> impl Iterator<Item = (SystemTime, SystemTime)> {
        let silences = self.silences.iter().map(|from| (*from, *from + SILENT_MAX));
        let foreign = self
            .foreign_from
            .iter()
            .map(|from| (*from, *from + 2 * FOREIGN_FOR));
        silences.chain(foreign).chain(self.upgrades.iter().copied())
    }

    /// How often a replica's work may have been interrupted midway, by faults against it or against
    /// the shared database.
    pub(in crate::storm) fn disturbances(&self, outages: u64) -> u64 {
        let count = |of: usize| u64::try_from(of).unwrap_or(u64::MAX);
        let cuts = self
            .injected
            .get("cut_connections")
            .copied()
            .unwrap_or_default();
        let of_all = outages + cuts + count(self.silences.len()) + count(self.foreign_from.len());
        let restores = self
            .injected
            .get("restored_backup")
            .copied()
            .unwrap_or_default();
        count(self.deaths.len())
            + count(self.freezes.len())
            + self.ended
            + (of_all + restores) * count(self.replicas.len())
    }

    /// Ends the storm: disarms all faults, restores clocks and credentials, and continues every
    /// replica that is not lost.
    pub(in crate::storm) fn calm(&mut self) -> Result<(), String> {
        self.armed.clear();
        self.foreign_until = None;
        self.use_account(ACCOUNT)?;
        for index in 0..self.replicas.len() {
            let Some(replica) = self
                .replicas
                .get_mut(index)
                .filter(|replica| !replica.is_lost)
            else {
                continue;
            };
            if let Some(child) = &replica.child {
                signal(i32::try_from(child.id()).unwrap_or_default(), Signal::CONT);
            }
            replica.continue_at = None;
            let is_set_back = replica
                .armed
                .as_ref()
                .is_some_and(|armed| armed.starts_with("set-back"));
            if replica.clock_shift != 0 || is_set_back {
                self.kill_replica(index, 0);
            }
        }
        Ok(())
    }

    /// Copies the database as it is now; no session may be connected meanwhile.
    pub(in crate::storm) fn copy_database(&self) -> Result<(), String> {
        let name = self.direct.name();
        let admin = self.direct.beside("postgres");
        admin.execute(&format!("DROP DATABASE IF EXISTS {name}{COPY}"))?;
        admin.execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"))?;
        let end = format!(
            "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity WHERE datname = '{name}'"
        );
        let copied = admin
            .execute(&end)
            .and_then(|()| admin.execute(&format!("CREATE DATABASE {name}{COPY} TEMPLATE {name}")));
        while let Err(error) =
            admin.execute(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        {
            eprintln!("{name} takes no connections yet: {error}");
            std::thread::sleep(Duration::from_millis(500));
        }
        copied
    }

    /// Starts a replica on the copy, and returns its address.
    pub(in crate::storm) fn start_on_copy(&mut self) -> Result<(Child, String), String> {
        let port = free_port()?;
        let child =
            spawn(&mut self.serve("copy", port, 0, &format!("{}{COPY}", self.direct.url))?)?;
        *self.injected.entry("database_copy").or_default() += 1;
        Ok((child, format!("http://127.0.0.1:{port}")))
    }

    /// Replaces the lost database with its backup.
    pub(in crate::storm) fn restore_copy(&mut self) {
        for replica in self.replicas.iter_mut().filter(|replica| !replica.is_lost) {
            if let Some(mut child) = replica.child.take() {
                kill(&mut child);
            }
            (replica.continue_at, replica.restart_at) = (None, Some(Instant::now()));
        }
        self.database.push_str(COPY);
        *self.injected.entry("restored_backup").or_default() += 1;
    }
}
