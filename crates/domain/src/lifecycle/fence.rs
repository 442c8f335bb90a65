//! The fence: a token outside the database (an object in S3) that only the installation's living
//! database knows how to follow. A copy of that database has the same installation, the same names
//! and the same rows; what it lacks is the token's next value, since the owner changes it every
//! minute. Pure: it reads no clock and no S3.
//!
//! In effect a lease: a holder that cannot renew in time stops acting before anyone else may take
//! over.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// Between two renewals.
pub const RENEW_EVERY: TimeDelta = TimeDelta::seconds(60);
/// Whoever has not renewed or confirmed for so long no longer acts.
pub const TRUSTED: TimeDelta = TimeDelta::seconds(120);
/// A stranger's token that has not changed for so long belongs to nobody who lives: a restored
/// backup takes over.
pub const SILENCE: TimeDelta = TimeDelta::seconds(240);

/// Which database wrote the object, as far as it says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum WrittenFrom {
    /// This one, or one that cannot be told from it: a copied data directory under the same
    /// address.
    #[default]
    Here,
    /// This one, of this cluster, when its server had another address: it has moved, or this is a
    /// clone of the whole server.
    OtherServer,
    /// Another one.
    OtherDatabase,
}

impl WrittenFrom {
    /// Compares what two looks say: cluster, database and address, with strokes between them. Who
    /// says nothing wrote before that was asked for.
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
    /// The token that was written last, and the one that was about to be: a crash lies between.
    pub token: Option<Uuid>,
    pub next: Option<Uuid>,
    /// When the database's owner renewed last, as the database has it.
    pub renewed_at: Option<DateTime<Utc>>,
    /// This process has seen the token change together with its own database: it is the owner's.
    pub has_followed: bool,
    pub written_from: WrittenFrom,
    /// A stranger's token, and since when it has not changed; the nil token when the object was
    /// gone.
    pub stranger: Option<(Uuid, DateTime<Utc>)>,
    /// This database has lived beside a stranger that renewed: it is a copy, and never takes over
    /// by itself.
    pub has_rival: bool,
}

/// What follows from a look at the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceDecision {
    /// It is ours: act, and renew it when that is due.
    Ours,
    /// There is none yet: make it, and act.
    Make,
    /// The token is ours, but a copy made moments ago would have it too: wait to see whether
    /// someone else renews it.
    Unsure,
    /// Somebody else holds it.
    Stranger { token: Uuid, since: DateTime<Utc> },
    /// Its holder has been silent for long: take it over, and sweep before anything is submitted.
    TakeOver,
}

/// Decides on what the object says.
pub fn decide(facts: &FenceFacts, found: Option<Uuid>, now: DateTime<Utc>) -> FenceDecision {
    // Gone although there was one: its owner makes it anew within a minute, and a copy must not be
    // faster.
    let is_new = facts.token.is_none() && facts.next.is_none();
    if found.is_none() && (is_new || facts.has_followed) {
        return FenceDecision::Make;
    }
    let found = found.unwrap_or_default();
    let is_known = facts.token == Some(found) || facts.next == Some(found);
    let may_be_ours = match facts.written_from {
        WrittenFrom::Here => true,
        // A failover moves a server under its processes. Whoever starts there may be a clone's.
        WrittenFrom::OtherServer => facts.has_followed,
        // Whatever it knows, by replication perhaps.
        WrittenFrom::OtherDatabase => false,
    };
    if is_known && may_be_ours {
        // A living owner would have renewed it by now; or it is us, started again.
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

    /// Its original pauses for longer than between two renewals: a failover, a deploy.
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
        // A replica of another cluster is told each token by replication.
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
        // It changed meanwhile: somebody lives.
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
