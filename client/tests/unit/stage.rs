//! Unit tests of src/run/stage.rs.

use super::*;

#[tokio::test]
async fn a_worker_that_is_told_to_stop_is_waited_for_and_what_it_says_is_told() {
    let (stage, mut seen) = watch::channel(Stage::Run);
    let work = async {
        reached(&mut seen, Stage::Finish).await;
        tokio::task::yield_now().await; // what it is at
        7
    };
    assert_eq!(until_told(&stage, async {}, work).await, 7);
    assert_eq!(*stage.borrow(), Stage::Finish);
}
