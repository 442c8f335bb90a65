//! Default values of optional members.

pub(super) fn one() -> u32 {
    1
}
