//! What a janitor does: one bounded pass of every sweep, again and again.

use std::time::Duration;

use deadpool_postgres::Pool;
use pg_once::Error;

const SWEEP: &str = "select task, failed from once.sweep()";

/// One pass.
pub async fn sweep(pool: &Pool) -> Result<(), Error> {
    for row in pool.get().await?.query(SWEEP, &[]).await? {
        if row.get::<_, i64>("failed") > 0 {
            let task: &str = row.get("task");
            return Err(Error::Answer(format!("the sweep {task} has failed")));
        }
    }
    Ok(())
}

/// A pass after each nap, for ever.
pub async fn keep_sweeping(pool: Pool, nap: Duration) {
    loop {
        tokio::time::sleep(nap).await;
        if let Err(error) = sweep(&pool).await {
            // Its connection was cut: the next round sees to it.
            eprintln!("janitor: {error}");
        }
    }
}
