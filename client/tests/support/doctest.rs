// Doc examples that need a database include this file in a hidden line. Connects to the database of PG_ONCE_URL, and
// passes a pool and a fresh key to the example.
fn with_database<F>(example: F)
where
    F: AsyncFnOnce(deadpool_postgres::Pool, String) -> Result<(), Box<dyn std::error::Error>>,
{
    let url = std::env::var("PG_ONCE_URL")
        .expect("PG_ONCE_URL names no database with pg_once in it; `make test` starts one");
    let config = url.parse().expect("PG_ONCE_URL is a connection string");
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).build().expect("a pool");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let key = uuid::Uuid::new_v4().to_string();
    runtime.block_on(example(pool, key)).expect("the example fails");
}
