//! Secrets that have to be used later, encrypted: others' tokens. Our own are derived ([`super::secrets`]) or hashed
//! ([`super::keys`]), and stored nowhere.

use hmac::Mac;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use super::secrets::{mac, secret as random};

/// The key of this purpose; the first byte of what is sealed names it.
const VERSION: u8 = 1;

fn key(secret_key: &[u8; 32]) -> LessSafeKey {
    let derived = mac(secret_key, b"seal/1").finalize().into_bytes();
    let key = UnboundKey::new(&AES_256_GCM, &derived)
        .unwrap_or_else(|_| unreachable!("an HMAC-SHA-256 has the 32 bytes of the key"));
    LessSafeKey::new(key)
}

/// Encrypts a secret with the installation's key (AES-256-GCM, a random nonce). It opens only for the same `purpose`:
/// moved to another row it is worth nothing.
pub fn seal(secret_key: &[u8; 32], purpose: &str, secret: &[u8]) -> Vec<u8> {
    let mut nonce = [0; NONCE_LEN];
    nonce
        .iter_mut()
        .zip(random())
        .for_each(|(byte, new)| *byte = new);
    let mut sealed = secret.to_vec();
    let aad = Aad::from(purpose.as_bytes());
    key(secret_key)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed)
        .unwrap_or_else(|_| unreachable!("a secret is shorter than 64 GiB"));
    let mut whole = vec![VERSION];
    whole.extend_from_slice(&nonce);
    whole.extend_from_slice(&sealed);
    whole
}

/// The secret; `None` if it was sealed with another key, for another purpose, or was changed.
pub fn open(secret_key: &[u8; 32], purpose: &str, sealed: &[u8]) -> Option<Vec<u8>> {
    let (version, rest) = sealed.split_first()?;
    let (nonce, rest) = rest.split_at_checked(NONCE_LEN)?;
    if *version != VERSION {
        return None;
    }
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    let mut secret = rest.to_vec();
    let aad = Aad::from(purpose.as_bytes());
    let length = key(secret_key)
        .open_in_place(nonce, aad, &mut secret)
        .ok()?
        .len();
    secret.truncate(length);
    Some(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_sealed_opens() {
        let sealed = seal(&[7; 32], "here", b"github_pat_1");
        assert_eq!(
            open(&[7; 32], "here", &sealed).as_deref(),
            Some(&b"github_pat_1"[..])
        );
        assert_eq!(open(&[8; 32], "here", &sealed), None);
        assert_eq!(open(&[7; 32], "there", &sealed), None);
        assert_eq!(open(&[7; 32], "here", &[]), None);
        for index in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[index] ^= 1;
            assert_eq!(open(&[7; 32], "here", &changed), None, "byte {index}");
            assert_eq!(open(&[7; 32], "here", &sealed[..index]), None);
        }
        assert!(!sealed.windows(4).any(|part| part == b"gith"));
    }

    #[test]
    fn the_same_secret_looks_different_each_time() {
        assert_ne!(seal(&[7; 32], "x", b"y"), seal(&[7; 32], "x", b"y"));
    }
}
