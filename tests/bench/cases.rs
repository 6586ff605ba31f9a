//! The cases of keys, their sides and their bars.

use anyhow::Result;

use crate::database::{Database, SNAPSHOT};
use crate::measured::{Among, Asked, Case};
use crate::pgbench::{Script, Until};
use crate::rounds::{Before, Contender, Contest};
use crate::stock::MOST_FOR_PLPGSQL;

/// Of raw SQL that makes the same writes, and of a SELECT that reads the same row.
const OF_RAW: Asked = Asked::Cpu(1.0);
/// Of the same without the snapshot; the median of two equal sides of nine rounds differs by as much.
const UNCHANGED: Asked = Asked::Cpu(0.97);
/// Of the application pattern's 8 round trips.
const OF_APPLICATION: Asked = Asked::Throughput(2.2);
/// "More than": two decimals are told.
const MORE_THAN: Asked = Asked::Throughput(1.005);

const TWO_CALLS: &str = "claim + complete, two transactions";
pub const ONCE: &str = "pg_once";
pub const RAW: &str = "raw INSERT + UPDATE";
pub const LEAN: &str = "raw INSERT + UPDATE, a lean table";
/// What one writes by hand where a duplicate must not raise an error.
const ON_CONFLICT: &str = "raw INSERT ... ON CONFLICT DO NOTHING + UPDATE";
pub const PLPGSQL: &str = "PL/pgSQL functions";
pub const APPLICATION: &str = "application, 8 round trips";
const BESIDE_SNAPSHOT: &str = "claim + complete, two transactions, an old snapshot held";
const NO_SNAPSHOT: &str = "pg_once, no snapshot held";
const SELECT: &str = "raw SELECT by primary key";
const LEAN_SELECT: &str = "raw SELECT, a lean table";

macro_rules! script {
    ($name:literal) => {
        $crate::pgbench::Script {
            name: $name,
            text: include_str!(concat!("scripts/", $name, ".sql")),
        }
    };
}
pub(crate) use script;

fn seconds(database: &Database) -> Until {
    Until::Seconds(database.settings.seconds())
}

/// The two raw sides of claims, which have one bar.
fn raw(plain: Script<'static>, on_conflict: Script<'static>) -> [Contender; 2] {
    [
        Contender::of(RAW, plain, Some(OF_RAW)),
        Contender::of(ON_CONFLICT, on_conflict, Some(OF_RAW)),
    ]
}

fn raw_claims() -> [Contender; 2] {
    raw(
        script!("claim_complete_raw"),
        script!("claim_complete_conflict"),
    )
}

fn claims() -> Vec<Contender> {
    let [plain, on_conflict] = raw_claims();
    vec![
        Contender::of(ONCE, script!("claim_complete_once"), None),
        plain,
        on_conflict,
        Contender::of(LEAN, script!("claim_complete_lean"), None),
        Contender::of(PLPGSQL, script!("claim_complete_plpgsql"), Some(MORE_THAN)),
    ]
}

/// On tables that begin each round empty.
pub async fn without_stock(database: &Database) -> Result<Vec<Case>> {
    let mut claims = claims();
    let application = script!("claim_complete_application");
    claims.push(Contender::of(
        APPLICATION,
        application,
        Some(OF_APPLICATION),
    ));
    let two_calls = Contest {
        name: TWO_CALLS,
        among: Among::FinishedKeys(0),
        stock: 0,
        before_round: Before::EmptyKeys,
        until: seconds(database),
        contenders: claims,
    };
    let [plain, on_conflict] = raw(
        script!("one_transaction_raw"),
        script!("one_transaction_conflict"),
    );
    let one_transaction = Contest {
        name: "claim + complete, one transaction",
        contenders: vec![
            Contender::of(ONCE, script!("one_transaction_once"), None),
            plain,
            on_conflict,
            Contender::of(PLPGSQL, script!("one_transaction_plpgsql"), Some(MORE_THAN)),
        ],
        ..two_calls.clone()
    };
    let [plain, on_conflict] = raw_claims();
    let fingerprint = Contest {
        name: "claim + complete with a fingerprint, two transactions",
        contenders: vec![
            Contender::of(ONCE, script!("claim_complete_fingerprint"), None),
            plain,
            on_conflict,
        ],
        ..two_calls.clone()
    };
    Ok(vec![
        two_calls.run(database).await?,
        fingerprint.run(database).await?,
        one_transaction.run(database).await?,
    ])
}

/// With that many finished keys in every side's table.
pub async fn with_stock(database: &Database, keys: u64) -> Result<Vec<Case>> {
    let select = script!("replay_raw");
    let contest = |name, mut contenders: Vec<Contender>| {
        contenders.retain(|side| side.name != PLPGSQL || keys <= MOST_FOR_PLPGSQL);
        Contest {
            name,
            among: Among::FinishedKeys(keys),
            stock: keys,
            before_round: Before::Nothing,
            until: seconds(database),
            contenders,
        }
    };
    let replay = vec![
        Contender::of(ONCE, script!("replay_once"), None),
        Contender::of(SELECT, select, Some(OF_RAW)),
        Contender::of(LEAN_SELECT, script!("replay_lean"), None),
        Contender::of(PLPGSQL, script!("replay_plpgsql"), None),
    ];
    let in_progress = vec![
        Contender::of(ONCE, script!("in_progress_once"), None),
        Contender::of(SELECT, script!("in_progress_raw"), None),
        Contender::of(PLPGSQL, script!("in_progress_plpgsql"), None),
    ];
    let fingerprint = vec![
        Contender::of(ONCE, script!("replay_fingerprint_once"), None),
        Contender::of(SELECT, script!("replay_fingerprint_raw"), Some(OF_RAW)),
    ];
    let held = vec![
        Contender {
            setup: SNAPSHOT,
            ..Contender::of(ONCE, script!("claim_complete_once"), None)
        },
        Contender {
            setup: "COMMIT",
            ..Contender::of(NO_SNAPSHOT, script!("claim_complete_once"), Some(UNCHANGED))
        },
    ];
    let cases = vec![
        contest("replay", replay).run(database).await?,
        contest("replay with a fingerprint, of 1,000 keys", fingerprint)
            .run(database)
            .await?,
        contest("in_progress", in_progress).run(database).await?,
        // Last: they make the tables grow.
        contest(TWO_CALLS, claims()).run(database).await?,
        contest(BESIDE_SNAPSHOT, held).run(database).await?,
    ];
    database.client.batch_execute("COMMIT").await?;
    Ok(cases)
}
