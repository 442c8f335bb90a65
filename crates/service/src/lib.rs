//! The service without its doors: what it does when it is asked (`use_cases`), what it does by itself (`tasks`), what it
//! shows (`read`), what it looks up at AWS (`live`), and what keeps replicas apart (`replica`).

pub mod app;
pub mod auth;
pub mod aws;
pub mod document;
pub mod live;
pub mod outgoing;
pub mod read;
pub mod replica;
pub mod tasks;
pub mod use_cases;
