//! The items of a job, as both services write them.
//!
//! Invariant: an item's points are burned in the transaction that says it succeeded. Which
//! transaction that is, and what fences it, is each service's own business.

use pg_once::Error;
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::Item;
use crate::store::Store;

const DECIDED: &str =
    "select input from batch_item where job_id = $1 and state in ('succeeded', 'failed')";
const BEGIN: &str = "insert into batch_item (job_id, input, state, points, artifact) \
                     select $1, $2, 'working', $3, $4 \
                     where not exists (select from batch_item where job_id = $1 and input = $2)";
const END: &str = "update batch_item set state = $3 where job_id = $1 and input = $2";
const BURN: &str = "update wallet w set points = w.points - $2 from batch_job j \
                    where j.id = $1 and w.customer = j.customer";
const KEEP: &str = "update batch_item set settled = 'kept' where job_id = $1";

/// The inputs that nothing is left to do for.
pub async fn decided(db: &impl GenericClient, job: i64) -> Result<Vec<String>, Error> {
    let rows = db.query_typed(DECIDED, &[(&job, Type::INT8)]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Writes the row of an item that begins, with its artifact's name; it may be there already.
pub async fn begin(db: &impl GenericClient, job: i64, item: &Item) -> Result<(), Error> {
    let name = Store::name(job, &item.input);
    let row = [
        (&job as _, Type::INT8),
        (&item.input as _, Type::TEXT),
        (&item.points as _, Type::INT8),
        (&name as _, Type::TEXT),
    ];
    db.query_typed(BEGIN, &row).await?;
    Ok(())
}

/// Success or failure, and what a success costs.
pub async fn end(db: &impl GenericClient, job: i64, item: &Item) -> Result<(), Error> {
    let state = if item.fails { "failed" } else { "succeeded" };
    let row = [
        (&job as _, Type::INT8),
        (&item.input as _, Type::TEXT),
        (&state as _, Type::TEXT),
    ];
    db.query_typed(END, &row).await?;
    if !item.fails {
        let cost = [(&job as _, Type::INT8), (&item.points as _, Type::INT8)];
        db.query_typed(BURN, &cost).await?;
    }
    Ok(())
}

/// The job is done: what its items have cost stays spent.
pub async fn keep(db: &impl GenericClient, job: i64) -> Result<(), Error> {
    db.query_typed(KEEP, &[(&job, Type::INT8)]).await?;
    Ok(())
}
