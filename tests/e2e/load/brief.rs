//! Requests and messages that are soon forgotten: the sweeps have something to reap all the time. Every fourth request
//! would stay for a day if nobody forgot it.

use std::sync::Arc;
use std::time::Duration;

use super::Load;
use super::door::{Fault, Session, text};

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
    if n % 4 == 3 {
        return lasting(session, n).await;
    }
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

/// A few names again and again: each is finished, or was forgotten with all that it had.
async fn lasting(session: &Session<'_>, n: usize) -> Result<(), Fault> {
    let key = format!("lasting {}", n % 5);
    let claim = format!(
        "begin; select outcome || coalesce(' ' || attempt, ''), token from once.key_claim('brief', '{key}')"
    );
    let row = session.row(&claim).await?;
    let end = match text(&row, 0) {
        "replayed" => "rollback".to_owned(),
        "claimed 1" => {
            let of = format!("'brief', '{key}', {}", text(&row, 1));
            let step = format!("select done, attempted from once.key_step({of}, 'look')");
            let step = session.row(&step).await?;
            assert_eq!((text(&step, 0), text(&step, 1)), ("f", "0"), "{key}");
            format!("select once.key_complete({of}, 204); commit")
        }
        other => panic!("{key}: {other}"),
    };
    session.rows(&end).await?;
    Ok(())
}

/// Forgets what no sweep would.
pub async fn forgetter(load: Arc<Load>) {
    const FORGET: &str = "
        select once.key_forget('brief', key) from once.key where scope = 'brief' and key like 'lasting %'";
    let mut session = load.door.enter().await;
    while !load.door.is_closed() {
        match session.rows(FORGET).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(150)).await,
            Err(fault) => session.recover(&fault).await,
        }
    }
}
