//! Options of topics and subscribers: `topic_set`, `topic_get`, `subscriber_set`, `subscriber_get`,
//! `subscriber_drop`. What the hot path reads of them is `outbox/topic.rs`.
//!
//! Every change holds the topic's row, so a topic's changes happen one after another, and the owner that it has
//! then is the one that the change is made under.

mod idle;
mod lock;
mod subscriber;
mod topic;

pub use subscriber::{subscriber_drop, subscriber_get, subscriber_set};
pub use topic::{topic_get, topic_set};
