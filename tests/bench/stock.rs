//! Tables full of finished keys, made as a superuser can: one INSERT ... SELECT per side.
//!
//! Invariant: the extension answers for every key of the stock as if it had been claimed and
//! completed through it (the row is a copy of one that was; only its name, its id and the times by
//! which the indexes sort it are its own), and every side has the same rows.

use std::path::Path;

use anyhow::{Context, Result};

use crate::database::{Database, TABLES};
use crate::pgbench::{HELD, REQUEST, RESPONSE, digest};
use crate::table;

/// Space that a key takes with its indexes, on all sides together and in the log.
const BYTES_PER_KEY: u64 = 4_200;

/// PL/pgSQL is not measured on larger tables: what is asked there is how ours and raw SQL compare.
pub const MOST_FOR_PLPGSQL: u64 = 1_000_000;

/// A key claimed and completed through the API: what every key of the stock is a copy of.
const TEMPLATE: &str = "SELECT once.key_complete('stock', $1, c.token, 201, $3::text::json) \
    FROM once.key_claim('stock', $1, $2::text::json, ttl => '30 days') c";
const SMALL: &str = "template";
const LARGE: &str = "large template";
/// An answer that is stored apart from its row.
const LARGE_RESPONSE: &str = "SELECT json_build_object('document', string_agg(md5(i::text), ''))::text FROM generate_series(1, 80) i";

/// Keys that somebody holds.
const HOLD: &str = "SELECT count(*) FROM generate_series(1, $2::bigint) i, \
    LATERAL once.key_claim('held', i::text, $1::text::json, '6 hours') c WHERE c.outcome = 'claimed'";
const HOLD_PLPGSQL: &str = "SELECT count(*) FROM generate_series(1, $2::bigint) i, \
    LATERAL plpgsql.key_claim('held', i::text, $1::text::json, '6 hours') c WHERE c.outcome = 'claimed'";

/// Finished keys whose fingerprint the caller gives.
const PRINTED: &str = "SELECT count(once.key_complete('printed', i::text, c.token, 201, $2::text::json)) \
    FROM generate_series(1, $1::bigint) i, \
    LATERAL once.key_claim('printed', i::text, fingerprint => $3::text::bytea) c";

/// The lean table has the same keys.
const LEAN: &str = "INSERT INTO raw.lean SELECT scope, key, fingerprint, 'completed', token, lease_until, reap_at, \
    response_code, response_body, response_headers FROM raw.key";

/// How each side names a row. The extension's: the first 16 bytes of SHA-256(scope, 0x00, key).
const IDS: [(&str, &str); 3] = [
    (
        "once.key",
        "substr(encode(sha256(t.scope::bytea || '\\x00'::bytea || i::text::bytea), 'hex'), 1, 32)::uuid",
    ),
    ("raw.key", "md5(i::text)::uuid"),
    ("plpgsql.key", "md5(t.scope || chr(1) || i::text)::uuid"),
];

/// What a sweep does with a finished key.
#[derive(Clone, Copy, Debug)]
pub enum Due {
    /// It is past gone_for.
    Deletion,
    /// Its answer is large, and it is past its ttl.
    Emptying,
}

impl Due {
    /// The sweep task.
    pub fn task(self) -> &'static str {
        match self {
            Self::Deletion => "key_reap",
            Self::Emptying => "key_tombstone",
        }
    }
}

/// Why a stock of that size does not fit here; none if it does.
pub fn room_for(keys: u64, directory: &Path) -> Result<Option<String>> {
    let disk = nix::sys::statvfs::statvfs(directory)?;
    let free = disk.blocks_available() as u64 * disk.fragment_size() as u64;
    let needed = keys * BYTES_PER_KEY + 10_000_000_000;
    Ok((free < needed).then(|| {
        format!(
            "needs {} GB of disk, {} GB are free",
            needed >> 30,
            free >> 30
        )
    }))
}

/// Empties every table and fills it with `keys` finished keys, and with the held ones.
pub async fn remake(database: &Database, keys: u64) -> Result<()> {
    let client = &database.client;
    client
        .batch_execute(&format!("TRUNCATE {}", TABLES.join(", ")))
        .await?;
    if keys > 0 {
        table::say(&format!("Making {keys} finished keys on each side"));
        client
            .execute(TEMPLATE, &[&SMALL, &REQUEST, &RESPONSE])
            .await
            .context("the template key")?;
        let spread =
            "t.COLUMN - (TO - i) * interval '1 millisecond'".replace("TO", &keys.to_string());
        for (into, id) in IDS {
            // PL/pgSQL prints the request to compare it.
            let printed = format!("sha256('{REQUEST}'::jsonb::text::bytea)");
            match into {
                "plpgsql.key" if keys > MOST_FOR_PLPGSQL => {}
                "plpgsql.key" => {
                    let others = [("fingerprint", printed.as_str())];
                    fill(SMALL, database, into, id, keys, &spread, &others).await?;
                }
                _ => fill(SMALL, database, into, id, keys, &spread, &[]).await?,
            }
        }
        client.batch_execute(LEAN).await?;
    }
    let held = i64::try_from(HELD)?;
    client.execute(HOLD, &[&REQUEST, &held]).await?;
    client.execute(HOLD_PLPGSQL, &[&REQUEST, &held]).await?;
    client
        .execute(PRINTED, &[&held, &RESPONSE, &digest()])
        .await?;
    for each in TABLES {
        client
            .batch_execute(&format!("VACUUM ANALYZE {each}"))
            .await?;
    }
    client.batch_execute("CHECKPOINT").await?;
    check(database, keys).await
}

/// A stock that answered `mismatched` would be cheaper to ask, and nobody would see it.
async fn check(database: &Database, keys: u64) -> Result<()> {
    let ask = format!(
        "SELECT count(*) FROM once.key_claim('printed', '1', fingerprint => '{}') WHERE outcome = 'replayed'",
        digest()
    );
    anyhow::ensure!(database.number(&ask).await? == 1, "printed is not replayed");
    for side in ["once", "plpgsql"] {
        let has_stock = keys > 0 && (side == "once" || keys <= MOST_FOR_PLPGSQL);
        for (scope, want) in [("stock", "replayed"), ("held", "in_progress")] {
            if scope == "stock" && !has_stock {
                continue;
            }
            let ask = format!("SELECT outcome FROM {side}.key_claim($1, '1', $2::text::json)");
            let row = database.client.query_one(&ask, &[&scope, &REQUEST]).await?;
            let outcome: String = row.get(0);
            anyhow::ensure!(
                outcome == want,
                "{side} answers {outcome} for a key of {scope}, not {want}"
            );
        }
    }
    Ok(())
}

/// Empties the table and fills it with `keys` finished keys past gone_for: what the sweep task key_reap deletes.
pub async fn remake_expired(database: &Database, keys: u64) -> Result<()> {
    remake_ours(database, keys, "t.COLUMN - interval '1000 days'").await
}

/// Empties the table and fills it with `keys` finished keys whose answers are still replayed.
pub async fn remake_finished(database: &Database, keys: u64) -> Result<()> {
    let spread = format!("t.COLUMN - ({keys} - i) * interval '1 millisecond'");
    remake_ours(database, keys, &spread).await
}

async fn remake_ours(database: &Database, keys: u64, times: &str) -> Result<()> {
    let client = &database.client;
    client.batch_execute("TRUNCATE once.key").await?;
    let large: String = client.query_one(LARGE_RESPONSE, &[]).await?.get(0);
    for (name, response) in [(SMALL, RESPONSE), (LARGE, &*large)] {
        client
            .execute(TEMPLATE, &[&name, &REQUEST, &response])
            .await
            .with_context(|| format!("the key {name}"))?;
    }
    fill(SMALL, database, IDS[0].0, IDS[0].1, keys, times, &[]).await?;
    Ok(client.batch_execute("VACUUM ANALYZE once.key").await?)
}

/// Adds keys that are due until there are `keys` of them; each round gives them new names.
pub async fn fill_up(database: &Database, due: Due, keys: u64, round: &str) -> Result<()> {
    let (template, stage, past) = match due {
        Due::Deletion => (SMALL, '0', "1000 days"),
        Due::Emptying => (LARGE, '1', "30 days 1 hour"),
    };
    let there =
        format!("SELECT count(*) FROM once.key WHERE reap_stage = '{stage}' AND reap_at < now()");
    let missing = keys.saturating_sub(u64::try_from(database.number(&there).await?)?);
    let key = format!("'{due:?} {round} ' || i");
    let id = format!(
        "substr(encode(sha256(t.scope::bytea || '\\x00'::bytea || ({key})::bytea), 'hex'), 1, 32)::uuid"
    );
    let others = [("key", key.as_str()), ("id", id.as_str())];
    // Each key at a time of its own, as claims have.
    let past = format!("t.COLUMN - interval '{past}' + i * interval '1 microsecond'");
    if missing > 0 {
        let into = IDS[0].0;
        fill(template, database, into, &id, missing, &past, &others).await?;
        database.client.batch_execute("VACUUM once.key").await?;
    }
    database.client.batch_execute("CHECKPOINT").await?;
    Ok(())
}

/// Copies a template `keys` times. `times` is what becomes of a column of times; `others` replaces
/// further columns.
async fn fill(
    template: &str,
    database: &Database,
    into: &str,
    id: &str,
    keys: u64,
    times: &str,
    others: &[(&str, &str)],
) -> Result<()> {
    let rows = database
        .client
        .query(
            "SELECT attname::text, atttypid = 'timestamptz'::regtype FROM pg_attribute \
             WHERE attrelid = 'once.key'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            &[],
        )
        .await?;
    let mut columns = Vec::new();
    let mut values = Vec::new();
    for row in rows {
        let (name, is_time): (String, bool) = (row.get(0), row.get(1));
        let other = others.iter().find(|(column, _)| *column == name);
        values.push(match (name.as_str(), other) {
            (_, Some((_, value))) => (*value).to_owned(),
            ("id", _) => id.to_owned(),
            ("key", _) => "i::text".to_owned(),
            (column, _) if is_time => times.replace("COLUMN", column),
            (column, _) => format!("t.{column}"),
        });
        columns.push(name);
    }
    let copy = format!(
        "INSERT INTO {into} ({}) SELECT {} FROM generate_series(1, {keys}) i, \
         (SELECT * FROM once.key WHERE scope = 'stock' AND key = '{template}') t",
        columns.join(", "),
        values.join(", ")
    );
    let copied = database.client.execute(&copy, &[]).await.context(copy)?;
    anyhow::ensure!(
        copied == keys,
        "{copied} keys were made in {into}, not {keys}"
    );
    Ok(())
}
