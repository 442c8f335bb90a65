//! What members are when nobody says.

pub(super) fn one() -> u32 {
    1
}
