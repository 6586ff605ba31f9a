// Included, hidden, by every example in the documentation that needs a topic: hands over a pool and a
// topic of its own with the subscriber `default`.
fn with_topic<F>(example: F)
where
    F: AsyncFnOnce(deadpool_postgres::Pool, pg_once::Topic) -> Result<(), Box<dyn std::error::Error>>,
{
    let url = std::env::var("PG_ONCE_URL")
        .expect("PG_ONCE_URL names no database with pg_once in it; `make test` starts one");
    let config = url.parse().expect("PG_ONCE_URL is a connection string");
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).build().expect("a pool");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let topic = pg_once::Topic::new(&format!("doc {}", uuid::Uuid::new_v4()));
    runtime
        .block_on(async {
            topic.set(&pool, &pg_once::TopicOptions::new()).await?;
            example(pool, topic).await
        })
        .expect("the example fails");
}
