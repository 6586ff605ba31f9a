//! Requests and messages that are soon forgotten: the sweeps have something to reap all the time.

use std::sync::Arc;
use std::time::Duration;

use super::Load;
use super::door::{Fault, Session};

/// Claims and completes one key after the other, each with a message, in one transaction.
pub async fn client(load: Arc<Load>) {
    let mut session = load.door.enter().await;
    let mut n = 0;
    while !load.door.is_quiet() {
        match request(&session, n).await {
            Ok(()) => n += 1,
            Err(fault) => session.recover(&fault).await,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A repeat after a lost answer finds its key finished, or forgotten already and new.
async fn request(session: &Session<'_>, n: usize) -> Result<(), Fault> {
    session
        .rows(&format!(
            "begin;
             select once.key_complete('brief', '{n}', c.token, 204)
               from once.key_claim('brief', '{n}', ttl => '1 s') as c where c.outcome = 'claimed';
             select accepted from once.inbox_accept('brief', '{n}', '1 s');
             commit"
        ))
        .await?;
    Ok(())
}
