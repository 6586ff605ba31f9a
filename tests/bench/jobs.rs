//! The batch job of `sql/examples`, once for every side, and how its rows are made.
//!
//! Invariant: all sides have the same tables and, after a fill, the same rows; `job` and `guarded` are
//! machines of the extension over theirs, with the guard off and on.

use anyhow::{Context, Result, ensure};

use crate::database::Database;

/// Every side's schema.
pub const SIDES: [&str; 5] = ["job", "guarded", "raw", "plpgsql", "application"];
/// Those of them that are machines, by their machine's name.
const MACHINES: [&str; 2] = ["job", "guarded"];

const TABLES: &str = include_str!("../../sql/examples/batch_job.sql");
const DEFINITION: &str = include_str!("../../sql/examples/batch_job.json");
const OTHER_SIDES: &str = include_str!("sql/machines.sql");

/// Rows are updated again and again, so pages leave room for HOT updates.
const ROOM: &str = "ALTER TABLE batch_job SET (fillfactor = 80); \
    ALTER TABLE batch_item SET (fillfactor = 50); \
    ALTER TABLE wallet SET (fillfactor = 50)";

/// The example's definition over a schema's tables.
const DEFINE: &str = "SELECT once.machine_define(jsonb_set(jsonb_set( \
      $1::text::jsonb || jsonb_build_object('machine', $2::text, 'table', $2 || '.batch_job'), \
      '{refund, items}', to_jsonb($2 || '.batch_item')), \
      '{refund, wallet}', to_jsonb($2 || '.wallet'))::json)";

/// What a side's tables are filled with. Without triggers: foreign keys and guards are not in the way.
const FILL: &str = "
    SET session_replication_role = replica;
    TRUNCATE SIDE.batch_item, SIDE.batch_job, SIDE.wallet;
    INSERT INTO SIDE.wallet SELECT 'customer ' || i, 0 FROM generate_series(0, 999) i;
    INSERT INTO SIDE.batch_job (id, customer) OVERRIDING SYSTEM VALUE
        SELECT i, 'customer ' || i % 1000 FROM generate_series(1, JOBS) i;
    INSERT INTO SIDE.batch_item (id, job_id, input, state, points, artifact) OVERRIDING SYSTEM VALUE
        SELECT (j - 1) * EACH + n, j, 'page ' || n, CASE WHEN n % 4 = 0 THEN 'failed' ELSE 'succeeded' END,
               n, 'job-' || j || '/page-' || n
          FROM generate_series(1, JOBS) j, generate_series(1, EACH) n;
    RESET session_replication_role";

/// Leases that ended long ago, as many on both sides: over an empty table the server would plan raw SQL's statements
/// with a scan of all of it, and keep that plan while the table grows.
const ENDED: &str = "
    TRUNCATE SCHEMA.action_lease;
    INSERT INTO SCHEMA.action_lease (token, lease_until, look_at, ended_at, last_call, failures, attempts, state, id,
                                     machine, row_id, claim_into, revert_to, step_key, successful_state)
        SELECT i, now(), now(), now(), 0, 0, 1, 'f', md5('ended ' || i)::uuid, 'job', 'ended ' || i,
               'running', 'queued', 'run', 'done'
          FROM generate_series(1, 10000) i;
    ANALYZE SCHEMA.action_lease";

const FLAG: &str = "UPDATE SIDE.batch_job SET cancel_requested = true";
const CANCEL: &str = "SELECT count(*) FROM generate_series(1, $2::bigint) i, \
    LATERAL once.cancel_request($1::text, i::text) c WHERE c.outcome = 'teardown'";

/// Rows that every side begins with.
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    pub sides: &'static [&'static str],
    pub jobs: u64,
    /// Of each job.
    pub items: u64,
    /// Every job's cancel flag is set, by cancel_request where it is ours.
    pub cancelled: bool,
}

/// Makes every side's tables and the machines; they are empty.
pub async fn make(database: &Database) -> Result<()> {
    let client = &database.client;
    for side in SIDES {
        let make = format!(
            "CREATE SCHEMA IF NOT EXISTS {side}; SET search_path = {side}; {TABLES}; {ROOM}; \
             RESET search_path"
        );
        client.batch_execute(&make).await?;
    }
    client.batch_execute(OTHER_SIDES).await?;
    for machine in MACHINES {
        client
            .execute(DEFINE, &[&DEFINITION, &machine])
            .await
            .context("machine_define")?;
    }
    let guard = "SELECT once.machine_guard('guarded', true)";
    client.batch_execute(guard).await?;
    Ok(())
}

impl Fill {
    /// Empties the sides' tables, and what the extension remembers of their rows, and fills them.
    pub async fn make(&self, database: &Database) -> Result<()> {
        let client = &database.client;
        for schema in ["once", "raw"] {
            let ended = ENDED.replace("SCHEMA", schema);
            client.batch_execute(&ended).await.context(ended)?;
        }
        client
            .batch_execute("TRUNCATE once.cancel, once.refund")
            .await?;
        for side in self.sides {
            let fill = FILL
                .replace("SIDE", side)
                .replace("JOBS", &self.jobs.to_string())
                .replace("EACH", &self.items.to_string());
            client.batch_execute(&fill).await.context(fill)?;
            if self.cancelled {
                self.cancel(database, side).await?;
            }
            for table in ["batch_job", "batch_item", "wallet"] {
                client
                    .batch_execute(&format!("VACUUM ANALYZE {side}.{table}"))
                    .await?;
            }
        }
        for table in ["action_lease", "cancel", "refund"] {
            client
                .batch_execute(&format!("VACUUM ANALYZE once.{table}"))
                .await?;
        }
        Ok(())
    }

    async fn cancel(&self, database: &Database, side: &str) -> Result<()> {
        let client = &database.client;
        if !MACHINES.contains(&side) {
            client.batch_execute(&FLAG.replace("SIDE", side)).await?;
            return Ok(());
        }
        let jobs = i64::try_from(self.jobs)?;
        let row = client.query_one(CANCEL, &[&side, &jobs]).await?;
        let cancelled: i64 = row.get(0);
        ensure!(
            cancelled == jobs,
            "{cancelled} of {jobs} jobs of {side} were cancelled"
        );
        Ok(())
    }
}

/// Drops the machines and every side's tables.
pub async fn drop(database: &Database) -> Result<()> {
    for machine in MACHINES {
        let drop = format!("SELECT once.machine_drop('{machine}'); DROP SCHEMA {machine} CASCADE");
        database.client.batch_execute(&drop).await?;
    }
    for side in &SIDES[2..] {
        let drop = format!("DROP TABLE {side}.batch_item, {side}.batch_job, {side}.wallet CASCADE");
        database.client.batch_execute(&drop).await?;
    }
    Ok(())
}
