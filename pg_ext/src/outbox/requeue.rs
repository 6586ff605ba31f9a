//! The sweep task `outbox_requeue`: puts back batches whose lease expired.

use super::overdue;
use super::topic;
use crate::clock;
use crate::error::Result;
use crate::subxact;
use crate::swept::Swept;

pub const TASK: &str = "outbox_requeue";

/// Puts back expired batches until at least `max` events are put back. One subscriber's failure does not end the task.
pub fn requeue_overdue(max: i64) -> Result<Swept> {
    let now = clock::now_us()?;
    let mut all = Swept::default();
    for sub in topic::all_subscribers()? {
        let tokens = overdue::overdue_tokens(&sub, now)?;
        if tokens.is_empty() {
            continue;
        }
        let left = max - all.done;
        if left <= 0 {
            all.more = true;
            break;
        }
        match subxact::attempt_briefly(|| overdue::put_back(&sub, &tokens, left as usize))? {
            Ok(done) => {
                all.done += done.events;
                all.more |= done.more;
            }
            Err(failure) => {
                let said = format!("{}: {}", sub.shown(), failure.message);
                all.add(Swept::failure(1, &said));
            }
        }
    }
    Ok(all)
}
