//! The cases of keys, their sides and their bars.

use anyhow::Result;

use crate::database::Database;
use crate::measured::{Among, Case};
use crate::pgbench::{Script, Until};
use crate::rounds::{Before, Contender, Contest};
use crate::stock::MOST_FOR_PLPGSQL;

/// Of raw SQL that makes the same writes.
const OF_RAW: f64 = 0.85;
/// Of the application pattern's 8 round trips.
const OF_APPLICATION: f64 = 2.2;
/// "More than": two decimals are told.
const MORE_THAN: f64 = 1.005;
/// A replay, of a SELECT by primary key.
const OF_SELECT: f64 = 0.5;

const TWO_CALLS: &str = "claim + complete, two transactions";
const ONCE: &str = "pg_once";
const RAW: &str = "raw INSERT + UPDATE";
const PLPGSQL: &str = "PL/pgSQL functions";
const APPLICATION: &str = "application, 8 round trips";
const SELECT: &str = "raw SELECT by primary key";

macro_rules! script {
    ($name:literal) => {
        Script {
            name: $name,
            text: include_str!(concat!("scripts/", $name, ".sql")),
        }
    };
}
pub(crate) use script;

fn contender(name: &'static str, script: Script<'static>, at_least: Option<f64>) -> Contender {
    Contender {
        name,
        setup: "",
        script,
        at_least,
        proof: None,
    }
}

fn seconds(database: &Database) -> Until {
    Until::Seconds(database.settings.seconds())
}

/// On tables that begin each round empty.
pub async fn without_stock(database: &Database) -> Result<Vec<Case>> {
    let once = contender(ONCE, script!("claim_complete_once"), None);
    let raw = contender(RAW, script!("claim_complete_raw"), Some(OF_RAW));
    let plpgsql = contender(PLPGSQL, script!("claim_complete_plpgsql"), Some(MORE_THAN));
    let application = script!("claim_complete_application");
    let application = contender(APPLICATION, application, Some(OF_APPLICATION));
    let two_calls = Contest {
        name: TWO_CALLS,
        among: Among::FinishedKeys(0),
        stock: 0,
        before_round: Before::EmptyKeys,
        until: seconds(database),
        contenders: vec![once, raw, plpgsql, application],
    };
    let one_transaction = Contest {
        name: "claim + complete, one transaction",
        among: Among::FinishedKeys(0),
        stock: 0,
        before_round: Before::EmptyKeys,
        until: seconds(database),
        contenders: vec![
            contender(ONCE, script!("one_transaction_once"), None),
            contender(RAW, script!("one_transaction_raw"), Some(OF_RAW)),
            contender(PLPGSQL, script!("one_transaction_plpgsql"), Some(MORE_THAN)),
        ],
    };
    Ok(vec![
        two_calls.run(database).await?,
        one_transaction.run(database).await?,
    ])
}

/// With that many finished keys in every side's table.
pub async fn with_stock(database: &Database, keys: u64) -> Result<Vec<Case>> {
    let select = script!("replay_raw");
    let contest = |name, contenders: [Contender; 3]| Contest {
        name,
        among: Among::FinishedKeys(keys),
        stock: keys,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: contenders[..if keys > MOST_FOR_PLPGSQL { 2 } else { 3 }].to_vec(),
    };
    let replay = [
        contender(ONCE, script!("replay_once"), None),
        contender(SELECT, select, Some(OF_SELECT)),
        contender(PLPGSQL, script!("replay_plpgsql"), None),
    ];
    let in_progress = [
        contender(ONCE, script!("in_progress_once"), None),
        contender(SELECT, script!("in_progress_raw"), None),
        contender(PLPGSQL, script!("in_progress_plpgsql"), None),
    ];
    let claims = [
        contender(ONCE, script!("claim_complete_once"), None),
        contender(RAW, script!("claim_complete_raw"), Some(OF_RAW)),
        contender(PLPGSQL, script!("claim_complete_plpgsql"), Some(MORE_THAN)),
    ];
    Ok(vec![
        contest("replay", replay).run(database).await?,
        contest("in_progress", in_progress).run(database).await?,
        // Last: it makes the tables grow.
        contest(TWO_CALLS, claims).run(database).await?,
    ])
}
