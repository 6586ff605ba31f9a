// Included, hidden, by examples in the documentation that need a topic: hands over a pool and a
// topic of its own with the subscriber `default`.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));

fn with_topic<F>(example: F)
where
    F: AsyncFnOnce(deadpool_postgres::Pool, pg_once::Topic) -> Result<(), Box<dyn std::error::Error>>,
{
    with_database(async |pool, key| {
        let topic = pg_once::Topic::new(&format!("doc {key}"));
        topic.set(&pool, &pg_once::TopicOptions::new()).await?;
        example(pool, topic).await
    });
}
