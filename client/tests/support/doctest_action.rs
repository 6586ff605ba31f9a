// Doc examples that need a claimed row include this file in a hidden line. Passes a pool and the action of a job to the
// example.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_machine.rs"));

fn with_action<F>(example: F)
where
    F: AsyncFnOnce(deadpool_postgres::Pool, pg_once::Action) -> Result<(), Box<dyn std::error::Error>>,
{
    with_machine(async |pool, machine, job| {
        let options = pg_once::ActionOptions::new().requester("worker");
        match machine.row(job).claim(&pool, "run", &options).await? {
            pg_once::ActionClaim::Claimed(action) => example(pool, action).await,
            other => panic!("{other:?}"),
        }
    });
}
