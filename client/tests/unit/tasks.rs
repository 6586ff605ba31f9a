//! Unit tests of src/run/tasks.rs.

use super::super::stage::reached;
use super::*;

#[tokio::test]
async fn every_task_is_waited_for_the_slow_ones_when_they_have_given_back() {
    let (stage, seen) = watch::channel(Stage::Run);
    let mut tasks = Tasks::<u64>::default();
    tasks.begin(async { 1 });
    let mut told = seen.clone();
    tasks.begin(async move {
        reached(&mut told, Stage::GiveBack).await;
        10
    });
    assert_eq!(tasks.end(&stage, Duration::from_millis(10)).await, 11);
}

#[tokio::test]
async fn a_task_that_panics_takes_nothing_with_it() {
    let (stage, _seen) = watch::channel(Stage::Run);
    let mut tasks = Tasks::<u64>::default();
    tasks.begin(async { std::panic::resume_unwind(Box::new("poison")) });
    tasks.begin(async { 1 });
    assert_eq!(tasks.end(&stage, Duration::from_secs(10)).await, 1);
}
