// The tests include this file, and so does doctest_machine.rs for doc examples. Makes the tables and the machine of
// sql/examples/batch_job.sql and .json in a fresh schema, with a job of three items at 10 points each and a wallet of
// 100.
async fn make_machine(
    mut config: tokio_postgres::Config,
) -> Result<(deadpool_postgres::Pool, pg_once::Machine, i64), Box<dyn std::error::Error>> {
    const TABLES: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../sql/examples/batch_job.sql"
    ));
    const DEFINITION: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../sql/examples/batch_job.json"
    ));
    const JOB: &str = "WITH wallet AS (INSERT INTO wallet VALUES ('ada', 100)), \
        job AS (INSERT INTO batch_job (customer) VALUES ('ada') RETURNING id), \
        items AS (INSERT INTO batch_item (job_id, input, points, artifact) \
            SELECT job.id, 'page ' || n, 10, 'item-' || n FROM job, generate_series(1, 3) n) \
        SELECT id FROM job";

    let name = format!("jobs_{}", uuid::Uuid::new_v4().simple());
    // The search_path is a setting of the role, because a pooler does not pass on the options of a connection.
    let role = format!(
        "CREATE SCHEMA {name}; CREATE ROLE {name} LOGIN SUPERUSER; ALTER ROLE {name} SET search_path = {name}"
    );
    let (admin, connection) = config.connect(tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    admin.batch_execute(&role).await?;
    config.user(&name);
    let manager = deadpool_postgres::Manager::new(config, tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).build()?;
    let client = pool.get().await?;
    client.batch_execute(TABLES).await?;
    let mut definition: serde_json::Value = serde_json::from_str(DEFINITION)?;
    definition["machine"] = name.as_str().into();
    pg_once::Machine::define(&client, &definition.into()).await?;
    let job = client.query_typed_one(JOB, &[]).await?.try_get(0)?;
    Ok((pool, pg_once::Machine::new(&name), job))
}
