// Doc examples that need a topic include this file in a hidden line. Passes a pool and a fresh topic with the
// subscriber `default` to the example.
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
