//! One process among others: who may act, what is still moving, and who is told of news.

pub mod event_board;
pub mod fence;
pub mod leader;
pub mod pulse;
pub mod task_board;
