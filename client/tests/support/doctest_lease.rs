// Doc examples that need a claimed key include this file in a hidden line. Passes a pool, a fresh key and its lease to
// the example.
include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));

fn with_lease<F>(example: F)
where
    F: AsyncFnOnce(
        deadpool_postgres::Pool,
        pg_once::Key,
        pg_once::Lease,
    ) -> Result<(), Box<dyn std::error::Error>>,
{
    with_database(async |pool, key| {
        let key = pg_once::Scope::new("payments.create").key(&key);
        match key.claim(&pool, &pg_once::ClaimOptions::new()).await? {
            pg_once::Claim::Claimed(lease) => example(pool, key, lease).await,
            other => panic!("{other:?}"),
        }
    });
}
