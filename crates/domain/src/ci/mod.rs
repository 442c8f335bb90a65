//! CI: what a trigger tells of a commit, and the template that takes it in. Who sends a trigger, and how it is
//! signed, is the service's matter.

pub mod commit_status;
pub mod gate;
pub mod github;
pub mod gitlab;
pub mod template;
pub mod trigger;
pub mod unmeasured;
pub mod wording;

pub use self::trigger::{DeliveryContent, Event, Repository, Sender, Trigger};
