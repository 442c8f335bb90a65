//! The fence: a token outside the database (an object in S3) that only the installation's live
//! database can follow. A copy of that database has the same installation, names and rows, but
//! lacks the token's next value, since the owner changes it every minute. Pure: it reads neither a
//! clock nor S3.
//!
//! In effect a lease: a holder that cannot renew in time stops acting before another may take over.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// Interval between renewals.
pub const RENEW_EVERY: TimeDelta = TimeDelta::seconds(60);
/// A process that has not renewed or confirmed for this long stops acting.
pub const TRUSTED: TimeDelta = TimeDelta::seconds(120);
/// A stranger's token that has not changed for this long has no live owner: a restored backup takes
/// over.
pub const SILENCE: TimeDelta = TimeDelta::seconds(240);

/// Which database wrote the object, as far as it says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WrittenFrom {
    /// This one, or one indistinguishable from it: a copied data directory under the same address.
    #[default]
    Here,
    /// The same database and cluster under another server address: the server has moved, or this is
    /// a clone of the whole server.
    OtherServer,
    /// Another database.
    OtherDatabase,
}

impl WrittenFrom {
    /// Compares two identities, each `cluster/database/address`. An object without one was written
    /// before identities were recorded.
    pub fn of(written: Option<&str>, here: &str) -> Self {
        let database = |text: &str| {
            text.splitn(3, '/')
                .take(2)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        match written {
            None => Self::Here,
            Some(written) if written == here => Self::Here,
            Some(written) if database(written) == database(here) => Self::OtherServer,
            Some(_) => Self::OtherDatabase,
        }
    }
}

/// What this database and this process know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FenceFacts {
    /// The token written last, and the one about to be written: a crash may come in between.
    pub token: Option<Uuid>,
    pub next: Option<Uuid>,
    /// When the owner last renewed, according to the database.
    pub renewed_at: Option<DateTime<Utc>>,
    /// This process has seen the token change together with its own database, which is therefore
    /// the owner's.
    pub has_followed: bool,
    pub written_from: WrittenFrom,
    /// A stranger's token, and since when it has not changed; the nil token if the object was gone.
    pub stranger: Option<(Uuid, DateTime<Utc>)>,
    /// This database has coexisted with a stranger that renewed: it is a copy, and never takes over
    /// by itself.
    pub has_rival: bool,
}

/// The decision after reading the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceDecision {
    /// The token is ours: act, and renew it when due.
    Ours,
    /// There is no object yet: create it, and act.
    Make,
    /// The token is ours, but a copy made moments ago would have it too: wait to see whether
    /// someone else renews it.
    Unsure,
    /// Another database holds it.
    Stranger { token: Uuid, since: DateTime<Utc> },
    /// Its holder has been silent for long: take over, and sweep before submitting anything.
    TakeOver,
}

/// Decides from the token found in the object.
pub fn decide(facts: &FenceFacts, found: Option<Uuid>, now: DateTime<Utc>) -> FenceDecision {
    // If an existing object is gone, its owner recreates it within a minute, and a copy must not be
    // faster.
    let is_new = facts.token.is_none() && facts.next.is_none();
    if found.is_none() && (is_new || facts.has_followed) {
        return FenceDecision::Make;
    }
    let found = found.unwrap_or_default();
    let is_known = facts.token == Some(found) || facts.next == Some(found);
    let may_be_ours = match facts.written_from {
        WrittenFrom::Here => true,
        // A failover moves a server under running processes. A process started there may belong to
        // a clone.
        WrittenFrom::OtherServer => facts.has_followed,
        // Even if it knows the token, perhaps by replication.
        WrittenFrom::OtherDatabase => false,
    };
    if is_known && may_be_ours {
        // A live owner would have renewed by now; if none did, this is the owner, restarted.
        let is_settled = facts
            .renewed_at
            .is_none_or(|at| (now - at).abs() > RENEW_EVERY * 3 / 2);
        return if facts.has_followed || is_settled {
            FenceDecision::Ours
        } else {
            FenceDecision::Unsure
        };
    }
    match facts.stranger {
        Some((token, since)) if token == found && now - since >= SILENCE && !facts.has_rival => {
            FenceDecision::TakeOver
        }
        Some((token, since)) if token == found => FenceDecision::Stranger {
            token,
            since: since.min(now),
        },
        Some(_) | None => FenceDecision::Stranger {
            token: found,
            since: now,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn token(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    fn facts() -> FenceFacts {
        FenceFacts {
            token: Some(token(1)),
            renewed_at: Some(at(0)),
            ..FenceFacts::default()
        }
    }

    #[test]
    fn a_copy_made_a_moment_ago_waits_and_then_meets_a_stranger() {
        assert_eq!(
            decide(&facts(), Some(token(1)), at(20)),
            FenceDecision::Unsure
        );
        let met = decide(&facts(), Some(token(2)), at(70));
        assert_eq!(
            met,
            FenceDecision::Stranger {
                token: token(2),
                since: at(70)
            }
        );
    }

    /// The original pauses longer than the renewal interval: a failover, a deploy.
    #[test]
    fn a_copy_elsewhere_is_a_stranger_from_its_first_look_although_it_has_the_token() {
        let copy = FenceFacts {
            written_from: WrittenFrom::OtherServer,
            ..facts()
        };
        let met = decide(&copy, Some(token(1)), at(600));
        assert_eq!(
            met,
            FenceDecision::Stranger {
                token: token(1),
                since: at(600)
            }
        );
        let waiting = FenceFacts {
            stranger: Some((token(1), at(600))),
            ..copy.clone()
        };
        assert!(matches!(
            decide(&waiting, Some(token(1)), at(839)),
            FenceDecision::Stranger { .. }
        ));
        assert_eq!(
            decide(&waiting, Some(token(1)), at(840)),
            FenceDecision::TakeOver
        );
        // The server moved under a process that has seen its own database renew.
        let moved = FenceFacts {
            has_followed: true,
            ..copy
        };
        assert_eq!(decide(&moved, Some(token(1)), at(600)), FenceDecision::Ours);
        // A replica in another cluster receives each token by replication.
        let told = FenceFacts {
            written_from: WrittenFrom::OtherDatabase,
            ..moved
        };
        assert!(matches!(
            decide(&told, Some(token(1)), at(600)),
            FenceDecision::Stranger { .. }
        ));
    }

    #[test]
    fn a_database_is_known_by_its_cluster_and_number_and_a_server_by_its_address_too() {
        let here = "7710931235660695426/16384/10.0.0.7";
        assert_eq!(WrittenFrom::of(None, here), WrittenFrom::Here);
        assert_eq!(WrittenFrom::of(Some(here), here), WrittenFrom::Here);
        assert_eq!(
            WrittenFrom::of(Some("7710931235660695426/16384/10.0.0.8"), here),
            WrittenFrom::OtherServer
        );
        assert_eq!(
            WrittenFrom::of(Some("7710931235660695426/16384"), here),
            WrittenFrom::OtherServer
        );
        for other in [
            "7710931235660695426/16385/10.0.0.7",
            "7710931235660695427/16384/10.0.0.7",
            "",
        ] {
            assert_eq!(
                WrittenFrom::of(Some(other), here),
                WrittenFrom::OtherDatabase
            );
        }
    }

    #[test]
    fn the_owner_goes_on_after_a_restart_and_after_a_crash_in_the_middle_of_a_renewal() {
        assert_eq!(
            decide(&facts(), Some(token(1)), at(91)),
            FenceDecision::Ours
        );
        let followed = FenceFacts {
            has_followed: true,
            ..facts()
        };
        assert_eq!(
            decide(&followed, Some(token(1)), at(1)),
            FenceDecision::Ours
        );
        let crashed = FenceFacts {
            next: Some(token(9)),
            ..facts()
        };
        assert_eq!(
            decide(&crashed, Some(token(9)), at(500)),
            FenceDecision::Ours
        );
        assert_eq!(
            decide(&FenceFacts::default(), None, at(0)),
            FenceDecision::Make
        );
    }

    #[test]
    fn a_restored_backup_takes_over_only_when_nobody_renews() {
        let waiting = FenceFacts {
            stranger: Some((token(2), at(0))),
            ..facts()
        };
        assert!(matches!(
            decide(&waiting, Some(token(2)), at(239)),
            FenceDecision::Stranger { .. }
        ));
        assert_eq!(
            decide(&waiting, Some(token(2)), at(240)),
            FenceDecision::TakeOver
        );
        // It changed meanwhile: the owner is alive.
        let seen = decide(&waiting, Some(token(3)), at(240));
        assert_eq!(
            seen,
            FenceDecision::Stranger {
                token: token(3),
                since: at(240)
            }
        );
    }

    #[test]
    fn a_copy_beside_a_living_owner_never_takes_over_and_a_fence_that_is_gone_is_not_made_at_once()
    {
        let copy = FenceFacts {
            stranger: Some((token(2), at(0))),
            has_rival: true,
            ..facts()
        };
        assert!(matches!(
            decide(&copy, Some(token(2)), at(100_000)),
            FenceDecision::Stranger { .. }
        ));
        assert!(matches!(
            decide(&facts(), None, at(500)),
            FenceDecision::Stranger { .. }
        ));
        let gone = FenceFacts {
            stranger: Some((Uuid::nil(), at(500))),
            ..facts()
        };
        assert_eq!(decide(&gone, None, at(740)), FenceDecision::TakeOver);
        assert_eq!(
            decide(
                &FenceFacts {
                    has_followed: true,
                    ..facts()
                },
                None,
                at(500)
            ),
            FenceDecision::Make
        );
    }

    #[test]
    fn who_does_not_renew_stops_before_another_may_begin() {
        assert!(RENEW_EVERY < TRUSTED && TRUSTED < SILENCE);
    }
}
