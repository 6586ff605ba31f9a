//! An event that a retry names and that is not stored (yet): a restore brings table after table.

use crate::stage::Stage;

#[tokio::test]
async fn a_take_of_an_event_that_is_not_stored_fails_with_its_number_until_it_is_back() {
    let stage = Stage::open("{}").await;
    stage.emit_keyed("x", "k").await;
    let take = "select event_id, delivery_key, payload, emitted_at from once.outbox_take('t')";
    let first = stage.play.show(take).await;
    let token = "select max(token) from once.batch";
    let token: i64 = stage.play.show(token).await.parse().unwrap();
    stage.nack(token, "x", ", kind => 'released'").await;
    let lost = "create table lost as select * from once.event_0; truncate once.event_0";
    stage.play.show(lost).await;
    let refusal = stage.play.refused(take).await;
    let told = format!("event {} of topic \"t\" is not stored", stage.id("x"));
    assert_eq!((refusal.code.as_str(), refusal.message), ("XX000", told));
    let back = "insert into once.event_kept select * from lost";
    stage.play.show(back).await;
    assert_eq!(stage.play.show(take).await, first);
}
