//! How jobs behave on the machines: how fast they are, how their time is laid out, and how they fail.

#[cfg(test)]
pub(crate) mod commits;
pub(crate) mod curve;
pub(crate) mod failures;
pub(crate) mod images;
pub(crate) mod lively;
pub(crate) mod physics;
pub(crate) mod saves;
pub(crate) mod speeds;
pub(crate) mod timeline;
