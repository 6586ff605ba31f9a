//! Where a new subscriber begins: with what is emitted after it, by whomever and whenever it is committed.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::{LEVELS, drain, emit, subscriber_set, topic};

#[tokio::test]
async fn a_new_subscriber_gets_what_is_emitted_after_it_and_nothing_older() {
    for key in ["", ", 'key'"] {
        let play = Playground::open().await;
        topic(&play, "t", "{}").await;
        emit(&play, "before", key).await;
        play.show(&subscriber_set("new", "{}")).await;
        emit(&play, "after", key).await;
        assert_eq!(drain(&play, "new").await, "after");
        assert_eq!(drain(&play, "default").await, "after before");
    }
}

#[tokio::test]
async fn who_was_open_at_that_moment_and_commits_later_is_heard() {
    for key in ["", ", 'key'"] {
        for level in LEVELS {
            let play = Playground::open().await;
            topic(&play, "t", "{}").await;
            let open = play.another().await;
            open.show("begin").await;
            emit(&open, "early", key).await;
            let gone = play.another().await;
            gone.show("begin").await;
            emit(&gone, "rolled back", key).await;
            play.show(&format!(
                "begin isolation level {level}; select count(*) from pg_class"
            ))
            .await;
            play.show(&subscriber_set("new", "{}")).await;
            emit(&open, "late", key).await;
            let other = play.another().await;
            emit(&other, "before its commit", key).await;
            play.show("commit").await;
            emit(&play, "after", key).await;
            gone.show("rollback").await;
            assert_eq!(drain(&play, "new").await, "after before its commit");
            open.show("commit").await;
            assert_eq!(drain(&play, "new").await, "early late", "{level}");
        }
    }
}

#[tokio::test]
async fn in_one_transaction_it_begins_between_two_events() {
    let play = Playground::open().await;
    for key in ["", ", 'key'"] {
        play.show("begin").await;
        topic(&play, "t", "{}").await;
        emit(&play, "a", key).await;
        play.show(&subscriber_set("new", "{}")).await;
        emit(&play, "b", key).await;
        play.show("savepoint s").await;
        emit(&play, "c", key).await;
        play.show("rollback to s").await;
        emit(&play, "d", key).await;
        play.show("commit").await;
        assert_eq!(drain(&play, "new").await, "b d");
        assert_eq!(drain(&play, "default").await, "a b d");
        play.show("select once.subscriber_drop('t', 'new')").await;
    }
}

#[tokio::test]
async fn a_delayed_event_of_before_is_not_for_a_new_subscriber() {
    let play = Playground::open().await;
    play.clock("0").await;
    topic(&play, "t", "{}").await;
    emit(&play, "before", ", delay => '1 h'").await;
    play.show(&subscriber_set("new", "{}")).await;
    emit(&play, "after", ", delay => '1 h'").await;
    assert_eq!(drain(&play, "new").await, "");
    play.clock("2 h").await;
    assert_eq!(drain(&play, "new").await, "after");
    assert_eq!(drain(&play, "default").await, "after before");
}

/// A defect once: such a subscriber missed the event, although it was emitted after it.
#[tokio::test]
async fn a_delayed_emit_waits_for_who_makes_a_subscriber() {
    for level in LEVELS {
        for (end, rows) in [("commit", "2"), ("rollback", "1")] {
            let play = Playground::open().await;
            play.clock("0").await;
            topic(&play, "t", "{}").await;
            let creator = play.another().await;
            creator.show("begin").await;
            creator.show(&subscriber_set("new", "{}")).await;
            // Others do not wait.
            emit(&play, "plain", "").await;
            let emitter = play.another().await;
            emitter.clock("0").await;
            emitter
                .show(&format!(
                    "begin isolation level {level}; select count(*) from pg_class"
                ))
                .await;
            let delayed = crate::emit_sql("delayed", ", delay => '1 h'");
            let waiting = Waiting::begin(&play, emitter, &delayed).await;
            creator.show(end).await;
            let (emitter, answer) = waiting.end().await;
            answer.unwrap();
            emitter.show("commit").await;
            let retries = "select count(*) from once.retry";
            assert_eq!(play.show(retries).await, rows, "{level} {end}");
            play.clock("2 h").await;
            assert_eq!(drain(&play, "default").await, "delayed plain");
            if end == "commit" {
                assert_eq!(drain(&play, "new").await, "delayed plain");
            }
        }
    }
}

#[tokio::test]
async fn a_subscriber_that_waited_for_a_delayed_emit_begins_after_it() {
    let play = Playground::open().await;
    play.clock("0").await;
    topic(&play, "t", "{}").await;
    topic(&play, "other", "{}").await;
    let emitter = play.another().await;
    emitter.clock("0").await;
    emitter.show("begin").await;
    emit(&emitter, "delayed", ", delay => '1 h'").await;
    play.show("select once.subscriber_set('other', 'new')")
        .await;
    let creator = play.another().await;
    let waiting = Waiting::begin(&play, creator, &subscriber_set("new", "{}")).await;
    emitter.show("commit").await;
    waiting.end().await.1.unwrap();
    play.clock("2 h").await;
    assert_eq!(drain(&play, "new").await, "");
    assert_eq!(drain(&play, "default").await, "delayed");
}

#[tokio::test]
async fn of_a_topic_made_with_subscribers_all_get_the_first_event() {
    let play = Playground::open().await;
    topic(&play, "t", r#"{"subscribers": ["a", "b", "c"]}"#).await;
    emit(&play, "first", "").await;
    for subscriber in ["a", "b", "c"] {
        assert_eq!(drain(&play, subscriber).await, "first", "{subscriber}");
    }
}

/// A defect once: nobody saw that the new subscriber needs the segment.
#[tokio::test]
async fn no_segment_is_given_up_under_a_subscriber_that_is_not_committed_yet() {
    // A cluster of its own: a transaction in any database of a server holds the truncation back.
    let cluster = pg_once_tests::Cluster::launch().unwrap();
    cluster
        .create_database_with_extension("space")
        .await
        .unwrap();
    let play = Playground::on(&cluster, "space").await;
    play.clock("0").await;
    topic(&play, "t", "{}").await;
    let early = Playground::on(&cluster, "space").await;
    let creator = Playground::on(&cluster, "space").await;
    early.show("begin").await;
    emit(&early, "early", "").await;
    creator.show("begin").await;
    creator.show(&subscriber_set("new", "{}")).await;
    early.show("commit").await;
    assert_eq!(drain(&play, "default").await, "early");
    let sweep = "select sum(failed) from once.sweep(task => 'outbox_retire')";
    play.clock("2 days").await;
    for _ in 0..5 {
        assert_eq!(
            play.show(sweep).await,
            "1",
            "it says that it could do nothing"
        );
    }
    creator.show("commit").await;
    for _ in 0..10 {
        play.show(sweep).await;
    }
    assert_eq!(drain(&play, "new").await, "early");
    // Nobody needs it now: the space does come back.
    let used = "select count(*) from once.event_0";
    let emptied = pg_once_tests::race::poll_async("the segment to be empty", async || {
        play.show(sweep).await;
        Ok((play.show(used).await == "0").then_some(()))
    })
    .await;
    if emptied.is_err() {
        let state = "select pg_current_snapshot(), (select json_agg(s) from once.segment s), (select json_agg(e) from once.event_0 e),
                            (select count(*) from once.event_kept), (select json_agg(b) from once.batch b), (select json_agg(r) from once.receipt r),
                            (select json_agg(u) from once.subscriber u), (select json_agg(j) from once.janitor j where task = 'outbox_retire'),
                            (select json_agg(json_build_object('db', datname, 'xid', backend_xid, 'xmin', backend_xmin, 'state', state, 'query', left(query, 60)))
                               from pg_stat_activity where backend_xid is not null or backend_xmin is not null),
                            (select json_agg(l) from pg_locks l where relation = 'once.event_0'::regclass)";
        panic!("not emptied: {}", play.show(state).await);
    }
}
