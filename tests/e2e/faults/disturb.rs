//! What happens to the sessions of the fuzz and of the load: cancels, terminations, changes of the tables beside them,
//! and prepared transactions that somebody else ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::Client;

use crate::fuzz::{Fuzz, connect};
use crate::victim::Chance;

/// Sessions of the fuzz, now and then of the load or a background worker; not those that look on.
const SUCH: [&str; 10] = {
    let mut such = ["application_name = 'fuzz'"; 10];
    such[8] = "application_name = 'load'";
    such[9] = "backend_type like 'pg_once%'";
    such
};

/// Nobody else ends it at this moment.
const PREPARED: &str = "select gid from pg_prepared_xacts
     where prepared < clock_timestamp() - interval '300 ms' and database = current_database()
     order by prepared limit 1";

const CHANGES: &str = include_str!("changes.sql");

/// What a REINDEX CONCURRENTLY that was cancelled has left: the next one would rebuild that, too, and leave twice as much.
const LEFTOVERS: &str = "select format('drop index %s', c.oid::regclass) from pg_class as c join pg_index as i on i.indexrelid = c.oid
     where c.relname ~ '_cc(new|old)[0-9]*$' and not exists (select from pg_class where oid = i.indrelid and relkind = 't')";

/// A change that gives way, or is cancelled; a concurrent build that was leaves its index, which then is there already.
const EXPECTED: [&str; 12] = [
    "55P03", "40P01", "57014", "57P01", "57P02", "57P03", "42P07", "42704", "55000", "40001",
    "XX002", "53100",
];

/// Starts all of them; they end with the fuzz.
pub fn start(fuzz: &Arc<Fuzz>, chance: &Chance) -> Vec<JoinHandle<()>> {
    let fuzz = || Arc::clone(fuzz);
    vec![
        tokio::spawn(cancel(fuzz(), chance.of(101))),
        tokio::spawn(change(fuzz(), chance.of(102))),
        tokio::spawn(end_prepared(fuzz(), chance.of(103))),
    ]
}

async fn enter(fuzz: &Fuzz) -> Option<Client> {
    let client = connect(&fuzz.url).await;
    if client.is_none() {
        sleep(Duration::from_millis(100)).await;
    }
    client
}

async fn cancel(fuzz: Arc<Fuzz>, mut chance: Chance) {
    while !fuzz.is_closed() {
        let Some(client) = enter(&fuzz).await else {
            continue;
        };
        while !fuzz.is_closed() && !client.is_closed() {
            let what = match chance.below(20) {
                0 => "pg_terminate_backend",
                _ => "pg_cancel_backend",
            };
            let sql = format!(
                "select {what}(pid) from (select pid from pg_stat_activity where {}
                  order by state = 'active' desc, pid offset {} limit 1) as p",
                SUCH[chance.below(SUCH.len())],
                chance.below(6)
            );
            // Whoever has ended by itself since is nobody's victim.
            let _ = client.batch_execute(&sql).await;
            sleep(Duration::from_millis(
                10 + u64::try_from(chance.below(90)).unwrap(),
            ))
            .await;
        }
    }
}

async fn change(fuzz: Arc<Fuzz>, mut chance: Chance) {
    let changes: Vec<_> = CHANGES
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("--"))
        .collect();
    while !fuzz.is_closed() {
        let Some(client) = enter(&fuzz).await else {
            continue;
        };
        let _ = client.batch_execute("set lock_timeout = '500 ms'; set deadlock_timeout = '200 ms'; set application_name = 'fuzz'").await;
        while !fuzz.is_closed() && !client.is_closed() {
            for row in client.query(LEFTOVERS, &[]).await.unwrap_or_default() {
                let _ = client.batch_execute(row.get(0)).await;
            }
            let sql = changes[chance.below(changes.len())];
            if let Err(error) = client.batch_execute(sql).await
                && let Some(refusal) = error.as_db_error()
            {
                let code = refusal.code().code();
                assert!(
                    EXPECTED.contains(&code),
                    "{code} {}\n{sql}",
                    refusal.message()
                );
            }
            sleep(Duration::from_millis(
                u64::try_from(chance.below(200)).unwrap(),
            ))
            .await;
        }
    }
}

async fn end_prepared(fuzz: Arc<Fuzz>, mut chance: Chance) {
    while !fuzz.is_closed() {
        let Some(client) = enter(&fuzz).await else {
            continue;
        };
        while !fuzz.is_closed() && !client.is_closed() {
            let _ = end_one(&client, &mut chance).await;
            sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Whether there was one.
async fn end_one(client: &Client, chance: &mut Chance) -> Result<bool, tokio_postgres::Error> {
    let Some(row) = client.query_opt(PREPARED, &[]).await? else {
        return Ok(false);
    };
    let how = ["commit", "commit", "rollback"][chance.below(3)];
    client
        .batch_execute(&format!("{how} prepared '{}'", row.get::<_, String>(0)))
        .await?;
    Ok(true)
}

/// Ends all that are left, a crash or not.
pub async fn end_all_prepared(client: &Client, chance: &mut Chance) {
    sleep(Duration::from_millis(400)).await;
    while end_one(client, chance).await.unwrap() {}
}
