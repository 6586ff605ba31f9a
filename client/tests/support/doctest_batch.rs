// Doc examples that need a taken event include this file in a hidden line. Passes a pool, the subscriber, and the batch
// with the event to the example.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest_topic.rs"));

fn with_batch<F>(example: F)
where
    F: AsyncFnOnce(
        deadpool_postgres::Pool,
        pg_once::Subscriber,
        pg_once::Batch,
    ) -> Result<(), Box<dyn std::error::Error>>,
{
    with_topic(async |pool, topic| {
        let payload = pg_once::Json::of("hello")?;
        topic.emit(&pool, &payload, &pg_once::EmitOptions::new()).await?;
        let subscriber = topic.default_subscriber();
        match subscriber.take(&pool, 10, None).await? {
            Some(batch) => example(pool, subscriber, batch).await,
            None => panic!("it is due"),
        }
    });
}
