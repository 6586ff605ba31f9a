//! Inbox messages that are received more than once.

use pg_once::{Accepted, Barrier, Error, Handled, Inbox, Json, Operation};
use tokio_postgres::types::Type;

use crate::support::{a_year_later, backend_pid, code, connect, connect_to, directly, pool};

fn fresh_inbox() -> Inbox {
    Inbox::new(&format!("inbox {}", uuid::Uuid::new_v4()))
}

#[tokio::test]
async fn a_message_is_new_once_and_then_its_verdict_is_told() {
    let (inbox, pool) = (fresh_inbox(), pool());
    let duplicate = |verdict| Accepted::Duplicate { verdict };
    let mut client = pool.get().await.unwrap();
    let handler = client.transaction().await.unwrap();
    assert_eq!(inbox.accept(&handler, "m-1").await.unwrap(), Accepted::New);
    assert_eq!(
        inbox.accept(&handler, "m-1").await.unwrap(),
        duplicate(None)
    );
    let verdict = Json::from_text("{\"id\":  7}");
    inbox.record(&handler, "m-1", &verdict).await.unwrap();
    handler.commit().await.unwrap();
    let repeated = inbox.record(&pool, "m-1", &verdict).await;
    assert_eq!(code(repeated), "ON006");
    let again = inbox.accept(&pool, "m-1").await.unwrap();
    assert_eq!(again, duplicate(Some(verdict)));
    let other = inbox.record(&pool, "m-1", &Json::from_text("8")).await;
    assert_eq!(code(other), "ON006");
    let nobody = inbox.record(&pool, "m-2", &Json::from_text("8")).await;
    assert_eq!(code(nobody), "ON001");
    inbox.accept(&pool, "m-3").await.unwrap();
    let late = inbox.record(&pool, "m-3", &Json::from_text("8")).await;
    assert_eq!(code(late), "ON001");
}

#[tokio::test]
async fn a_message_is_as_new_as_its_handlers_transaction_leaves_it() {
    let (inbox, pool) = (fresh_inbox(), pool());
    let mut client = pool.get().await.unwrap();
    let mut run = async |fails: bool| {
        let transaction = client.transaction().await.unwrap();
        let handled: Result<Handled<i32>, Error> = inbox
            .once(&transaction, "m-1", async || match fails {
                true => Err(Error::other("the disk is full")),
                false => Ok(7),
            })
            .await;
        match handled {
            Ok(handled) => transaction.commit().await.map(|()| Some(handled)),
            Err(_) => transaction.rollback().await.map(|()| None),
        }
        .unwrap()
    };
    assert_eq!(run(true).await, None);
    assert_eq!(run(false).await, Some(Handled::Now(7)));
    assert_eq!(run(true).await, Some(Handled::Before(7)));
}

#[tokio::test]
async fn a_duplicate_waits_for_the_handler_that_is_at_work() {
    let (inbox, mut working, watching) = (fresh_inbox(), connect().await, connect().await);
    let transaction = working.transaction().await.unwrap();
    assert_eq!(
        inbox.accept(&transaction, "m-1").await.unwrap(),
        Accepted::New
    );

    let duplicate = connect_to(directly("its backend is watched from outside")).await;
    let pid = backend_pid(&duplicate).await;
    let theirs = inbox.clone();
    let waiting = tokio::spawn(async move { theirs.accept(&duplicate, "m-1").await });
    let waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $1";
    while watching
        .query_typed_one(waits, &[(&pid, Type::INT4)])
        .await
        .unwrap()
        .get::<_, Option<bool>>(0)
        != Some(true)
    {
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "it did not wait");
    }
    let verdict = Json::from_text("\"done\"");
    inbox.record(&transaction, "m-1", &verdict).await.unwrap();
    transaction.commit().await.unwrap();
    let told = waiting.await.unwrap().unwrap();
    assert_eq!(
        told,
        Accepted::Duplicate {
            verdict: Some(verdict)
        }
    );
}

#[tokio::test]
async fn a_message_is_forgotten_after_its_ttl() {
    let inbox = fresh_inbox().ttl(std::time::Duration::from_secs(60));
    let pool = pool();
    assert_eq!(inbox.accept(&pool, "m-1").await.unwrap(), Accepted::New);
    let later = a_year_later().await;
    assert_eq!(inbox.accept(&later, "m-1").await.unwrap(), Accepted::New);
}

#[tokio::test]
async fn a_barrier_lets_an_action_and_its_compensation_run_once_each_and_in_that_order() {
    use Operation::{Action, Compensation};
    let (inbox, pool) = (fresh_inbox(), pool());
    let ask = async |saga: &str, operation| {
        inbox
            .barrier(&pool, saga, "reserve", operation)
            .await
            .unwrap()
    };
    assert_eq!(ask("one", Action).await, Barrier::Run);
    assert_eq!(ask("one", Action).await, Barrier::Duplicate);
    assert_eq!(ask("one", Compensation).await, Barrier::Run);
    assert_eq!(ask("one", Compensation).await, Barrier::Duplicate);

    assert_eq!(ask("two", Compensation).await, Barrier::Skipped);
    assert_eq!(ask("two", Action).await, Barrier::Refused);
}
