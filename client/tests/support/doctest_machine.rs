// Doc examples that need a machine include this file in a hidden line. Passes three values to the example: a pool whose
// sessions find the machine's tables, the machine, and a job's id.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/machine.rs"));

fn with_machine<F>(example: F)
where
    F: AsyncFnOnce(
        deadpool_postgres::Pool,
        pg_once::Machine,
        i64,
    ) -> Result<(), Box<dyn std::error::Error>>,
{
    let url = std::env::var("PG_ONCE_URL")
        .expect("PG_ONCE_URL names no database with pg_once in it; `make test` starts one");
    let config = url.parse().expect("PG_ONCE_URL is a connection string");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime
        .block_on(async {
            let (pool, machine, job) = make_machine(config).await?;
            example(pool, machine, job).await
        })
        .expect("the example fails");
}
