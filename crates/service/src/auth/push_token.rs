//! Push tokens: a training job's token for sending the metrics of its own trial, and nothing else.
//! Derived from the installation's key and the trial's id, so nothing is stored or handed out.
//! Anyone who may describe the job can read its environment, and so can anyone who receives the
//! account's SageMaker events; that bounds what such a token protects.

use bakeoff_domain::ids::TrialId;
use chrono::{DateTime, TimeDelta, Utc};
use hmac::Mac;
use subtle::ConstantTimeEq;

use crate::auth::secrets::mac;

const PREFIX: &str = "bkp_";
/// After a trial ends, metrics still in flight may arrive for this long; later, nothing may change
/// the data the decision was based on.
const GRACE: TimeDelta = TimeDelta::hours(1);

/// The token of a trial.
pub fn of(secret_key: &[u8; 32], trial: TrialId) -> String {
    let mac = mac(secret_key, format!("push/{trial}").as_bytes());
    format!("{PREFIX}{}", hex::encode(mac.finalize().into_bytes()))
}

/// Whether a text has the form of a push token.
pub fn is_one(text: &str) -> bool {
    text.starts_with(PREFIX)
}

/// Whether it is this trial's token; compared in constant time.
pub fn is_of(text: &str, secret_key: &[u8; 32], trial: TrialId) -> bool {
    bool::from(text.as_bytes().ct_eq(of(secret_key, trial).as_bytes()))
}

/// Whether the token of a trial that ended at `ended_at` is still accepted.
pub fn is_open(ended_at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> bool {
    ended_at.is_none_or(|end| now <= end + GRACE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(number: u128) -> TrialId {
        TrialId(uuid::Uuid::from_u128(number))
    }

    #[test]
    fn a_token_is_good_for_its_own_trial_and_installation() {
        let token = of(&[7; 32], trial(1));
        assert!(is_one(&token) && is_of(&token, &[7; 32], trial(1)));
        assert!(!is_of(&token, &[7; 32], trial(2)) && !is_of(&token, &[8; 32], trial(1)));
    }

    #[test]
    fn it_is_taken_for_an_hour_after_the_end() {
        let end = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        assert!(is_open(None, end) && is_open(Some(end), end + GRACE));
        assert!(!is_open(Some(end), end + GRACE + TimeDelta::seconds(1)));
    }
}
