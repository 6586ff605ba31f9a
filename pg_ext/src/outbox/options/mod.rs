//! Options of topics and subscribers: `topic_set`, `topic_get`, `topic_drop`, `subscriber_set`, `subscriber_get`,
//! `subscriber_drop`. The hot path reads them in `outbox/topic.rs`.
//!
//! Every change locks the topic's row. So the changes of a topic happen one after another, and each is checked against
//! the owner that the topic has then.

mod idle;
mod lock;
mod subscriber;
mod topic;

pub use subscriber::{
    all_options as subscriber_options, subscriber_drop, subscriber_get, subscriber_set,
};
pub use topic::{options_if_there as topic_options, topic_drop, topic_get, topic_set};
