//! The cases of machines, actions, refunds and guards: their sides and their bars.
//!
//! A "there and back" is two moves in two transactions, so that every call finds a row that it can move.

use anyhow::Result;

use crate::cases::script;
use crate::cost::{self, Cost, Work};
use crate::database::Database;
use crate::jobs::{Fill, SIDES};
use crate::measured::{Among, Asked, Case};
use crate::pgbench::{Script, Until};
use crate::rounds::{Before, Contender, Contest, Proof};
use crate::table;

const OF_UPDATE: Asked = Asked::Throughput(0.8);
const OF_GENERIC: Asked = Asked::Throughput(1.5);
const OF_LOAD_AND_SAVE: Asked = Asked::Throughput(1.5);
const OF_PATCH: Asked = Asked::Throughput(0.9);
const OF_HISTORY: Asked = Asked::Throughput(0.75);
const OF_ACTION: Asked = Asked::Throughput(0.7);
const OF_REFUND: Asked = Asked::Throughput(0.9);
const OF_NO_TRIGGER: Asked = Asked::Throughput(0.95);

/// Rows of a side where nothing else is said.
const ROWS: u64 = 100_000;
const MANY_ROWS: u64 = 1_000_000;
/// More actions than a second of any side has room for.
const FRESH_PER_SECOND: u64 = 100_000;
const ITEMS: u64 = 100;
/// Refunds of each client in a second, about.
const REFUNDS_PER_SECOND: u32 = 120;
/// Calls of one measurement of what is written, about.
const CALLS: u32 = 20_000;

const ONCE: &str = "pg_once";
const GUARDED: &str = "pg_once, guard on";

fn contender(
    name: &'static str,
    script: Script<'static>,
    asked: Option<Asked>,
    proof: Option<Proof>,
) -> Contender {
    Contender {
        proof,
        ..Contender::of(name, script, asked)
    }
}

/// Two moves of a side's jobs for each call.
macro_rules! moves {
    ($side:literal) => {
        Some(Proof {
            query: concat!(
                "SELECT coalesce(sum(version), 0)::bigint FROM ",
                $side,
                ".batch_job"
            ),
            per_call: 2,
        })
    };
}

macro_rules! refunds {
    ($side:literal) => {
        Some(Proof {
            query: concat!(
                "SELECT count(*) FROM ",
                $side,
                ".batch_item WHERE settled = 'returned'"
            ),
            per_call: 100,
        })
    };
}

/// Those that are asked for.
pub async fn all(database: &Database) -> Result<Vec<Case>> {
    let wants = |group| database.settings.wants_of_machines(group);
    let mut cases = Vec::new();
    if wants("transition") {
        cases.push(transitions(database, ROWS).await?);
        cases.push(transitions(database, MANY_ROWS).await?);
        let of = "transition, there and back, the status an enum";
        cases.push(transitions_of(database, of, [ENUM, NO_ENUM]).await?);
        let of = "transition, there and back, a CHECK of the status";
        cases.push(transitions_of(database, of, [CHECKED, NOT_CHECKED]).await?);
        cases.push(patched(database).await?);
    }
    if wants("history") {
        cases.push(history(database).await?);
    }
    if wants("guard") {
        cases.push(guard(database).await?);
        cases.push(items(database).await?);
    }
    let mut contests = Vec::new();
    if wants("action") {
        contests.extend(actions(database));
    }
    if wants("refund") {
        contests.extend(refunds_of(database));
    }
    for contest in contests {
        cases.push(contest.run(database).await?);
    }
    Ok(cases)
}

fn seconds(database: &Database) -> Until {
    Until::Seconds(database.settings.seconds())
}

fn fill(sides: &'static [&'static str], jobs: u64) -> Fill {
    Fill {
        sides,
        jobs,
        items: 0,
        cancelled: false,
    }
}

fn beside_raw() -> [Contender; 2] {
    let raw = "raw UPDATE ... status = ANY";
    [
        contender(ONCE, script!("transition_once"), None, moves!("job")),
        contender(
            raw,
            script!("transition_raw"),
            Some(OF_UPDATE),
            moves!("raw"),
        ),
    ]
}

async fn transitions(database: &Database, rows: u64) -> Result<Case> {
    table::say(&format!("Making {rows} rows on each side"));
    fill(&SIDES, rows).make(database).await?;
    let generic = script!("transition_plpgsql");
    let application = script!("transition_application");
    let [once, raw] = beside_raw();
    Contest {
        name: "transition, there and back",
        among: Among::Rows(rows),
        stock: rows,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: vec![
            once,
            raw,
            contender(
                "generic PL/pgSQL, EXECUTE format",
                generic,
                Some(OF_GENERIC),
                moves!("plpgsql"),
            ),
            contender(
                "application, load and save",
                application,
                Some(OF_LOAD_AND_SAVE),
                moves!("application"),
            ),
            contender(
                GUARDED,
                script!("transition_guarded"),
                None,
                moves!("guarded"),
            ),
        ],
    }
    .run(database)
    .await
}

const SIDES_ALIKE: [&str; 2] = ["job", "raw"];
const ENUM: &str = "CREATE TYPE SIDE.job_status AS ENUM ('queued', 'running', 'failed', 'done', 'cancelled'); \
    ALTER TABLE SIDE.batch_job ALTER status DROP DEFAULT, ALTER status TYPE SIDE.job_status \
        USING status::SIDE.job_status, ALTER status SET DEFAULT 'queued'; \
    VACUUM ANALYZE SIDE.batch_job";
const NO_ENUM: &str = "ALTER TABLE SIDE.batch_job ALTER status DROP DEFAULT, ALTER status TYPE text, \
        ALTER status SET DEFAULT 'queued'; \
    DROP TYPE SIDE.job_status";

const CHECKED: &str = "ALTER TABLE SIDE.batch_job ADD CONSTRAINT listed \
    CHECK (status IN ('queued', 'running', 'failed', 'done', 'cancelled'))";
const NOT_CHECKED: &str = "ALTER TABLE SIDE.batch_job DROP CONSTRAINT listed";

/// The same moves, of tables that were altered before and are altered back.
async fn transitions_of(
    database: &Database,
    name: &'static str,
    [before, after]: [&str; 2],
) -> Result<Case> {
    fill(&SIDES_ALIKE, ROWS).make(database).await?;
    on_each(database, before).await?;
    let case = Contest {
        name,
        among: Among::Rows(ROWS),
        stock: ROWS,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: beside_raw().into(),
    }
    .run(database)
    .await?;
    on_each(database, after).await?;
    Ok(case)
}

/// The same moves with a patch of scalars.
async fn patched(database: &Database) -> Result<Case> {
    fill(&SIDES_ALIKE, ROWS).make(database).await?;
    let once = script!("transition_patch_once");
    let raw = script!("transition_patch_raw");
    Contest {
        name: "transition, there and back, with a patch",
        among: Among::Rows(ROWS),
        stock: ROWS,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: vec![
            contender(ONCE, once, None, moves!("job")),
            contender(
                "raw UPDATE ... status = ANY",
                raw,
                Some(OF_PATCH),
                moves!("raw"),
            ),
        ],
    }
    .run(database)
    .await
}

/// The example's definition with another history; NULL: none.
macro_rules! history_of_job {
    ($history:literal) => {
        concat!(
            "TRUNCATE once.machine_move, raw.machine_move; SELECT once.machine_define(jsonb_set(",
            "once.machine_get('job')::jsonb, '{history}', '",
            $history,
            "')::json)"
        )
    };
}

/// The same moves with a history, beside the UPDATE and the INSERT of the same record in one statement.
async fn history(database: &Database) -> Result<Case> {
    fill(&SIDES_ALIKE, ROWS).make(database).await?;
    let once = script!("transition_once");
    let raw = script!("transition_history_raw");
    let side = |name, setup, script, asked, proof| Contender {
        setup,
        ..contender(name, script, asked, proof)
    };
    let [recorded, silent] = [history_of_job!("\"1 day\""), history_of_job!("null")];
    let case = Contest {
        name: "history of a transition, there and back",
        among: Among::Rows(ROWS),
        stock: ROWS,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: vec![
            side(ONCE, recorded, once, None, moves!("job")),
            side(
                "raw UPDATE and INSERT, one statement",
                silent,
                raw,
                Some(OF_HISTORY),
                moves!("raw"),
            ),
            side("pg_once, no history", silent, once, None, moves!("job")),
        ],
    }
    .run(database)
    .await?;
    database.client.batch_execute(silent).await?;
    Ok(case)
}

/// Runs statements, one by one, on both sides.
async fn on_each(database: &Database, sql: &str) -> Result<()> {
    for side in SIDES_ALIKE {
        for statement in sql.replace("SIDE", side).split("; ") {
            database.client.batch_execute(statement).await?;
        }
    }
    Ok(())
}

const UNGUARDED: &str = "SELECT once.machine_guard('guarded', false); \
    DROP TRIGGER IF EXISTS nothing ON guarded.batch_job";
const GUARD_ON: &str = "DROP TRIGGER IF EXISTS nothing ON guarded.batch_job; \
    SELECT once.machine_guard('guarded', true)";
/// The server's own trigger that does next to nothing: what any trigger before a row's UPDATE costs.
const EMPTY_TRIGGER: &str = "SELECT once.machine_guard('guarded', false); \
    CREATE OR REPLACE TRIGGER nothing BEFORE UPDATE ON guarded.batch_job \
    FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()";

/// An UPDATE of the machine's table that the guard has nothing to say to. All sides write one table, and put their
/// trigger on it before each run: like tables of their own differ by more than the triggers.
async fn guard(database: &Database) -> Result<Case> {
    fill(&["guarded"], ROWS).make(database).await?;
    let side = |name, setup, asked| Contender {
        setup,
        ..contender(name, script!("unrelated"), asked, None)
    };
    let case = Contest {
        name: "UPDATE of another column, by hand",
        among: Among::Rows(ROWS),
        stock: ROWS,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: vec![
            side("guard on", GUARD_ON, None),
            side("no trigger", UNGUARDED, Some(OF_NO_TRIGGER)),
            side("suppress_redundant_updates_trigger", EMPTY_TRIGGER, None),
        ],
    }
    .run(database)
    .await?;
    database.client.batch_execute(GUARD_ON).await?;
    Ok(case)
}

/// An UPDATE of an item: the guard locks the machine's row.
async fn items(database: &Database) -> Result<Case> {
    let fill = Fill {
        items: ITEMS,
        ..fill(&["guarded", "raw"], ROWS / ITEMS)
    };
    fill.make(database).await?;
    Contest {
        name: "UPDATE of an item's state, by hand",
        among: Among::Rows(ROWS),
        stock: ROWS,
        before_round: Before::Nothing,
        until: seconds(database),
        contenders: vec![
            contender("guard on", script!("item_guarded"), None, None),
            contender("no trigger", script!("item_raw"), None, None),
        ],
    }
    .run(database)
    .await
}

fn actions(database: &Database) -> [Contest; 2] {
    let jobs = FRESH_PER_SECOND * u64::from(database.settings.seconds());
    let finish = Contest {
        name: "action_claim + action_finish, two transactions",
        among: Among::Rows(jobs),
        stock: jobs,
        before_round: Before::Fill(fill(&["job", "guarded", "raw"], jobs)),
        until: seconds(database),
        contenders: vec![
            contender(ONCE, script!("claim_finish_once"), None, moves!("job")),
            contender(
                "raw CTEs, the lease inserted",
                script!("claim_finish_raw"),
                Some(OF_ACTION),
                moves!("raw"),
            ),
            contender(
                GUARDED,
                script!("claim_finish_guarded"),
                None,
                moves!("guarded"),
            ),
        ],
    };
    let release = Contest {
        name: "action_claim + action_release, again and again",
        among: Among::Rows(ROWS),
        stock: ROWS,
        before_round: Before::Fill(fill(&["job", "raw"], ROWS)),
        until: seconds(database),
        contenders: vec![
            contender(ONCE, script!("claim_release_once"), None, moves!("job")),
            contender(
                "raw CTEs, ON CONFLICT DO UPDATE",
                script!("claim_release_raw"),
                Some(OF_ACTION),
                moves!("raw"),
            ),
        ],
    };
    [finish, release]
}

fn refunds_of(database: &Database) -> [Contest; 2] {
    let each = REFUNDS_PER_SECOND * database.settings.seconds();
    let jobs = u64::from(each * database.settings.clients);
    let contest = |name, sides, contenders| Contest {
        name,
        among: Among::Rows(jobs * ITEMS),
        stock: jobs,
        before_round: Before::Fill(Fill {
            items: ITEMS,
            cancelled: true,
            ..fill(sides, jobs)
        }),
        until: Until::Transactions(each),
        contenders,
    };
    let raw = contender(
        "raw CTE",
        script!("refund_raw"),
        Some(OF_REFUND),
        refunds!("raw"),
    );
    let unlocked = contender(
        "raw CTE that may deadlock",
        script!("refund_unlocked"),
        None,
        refunds!("plpgsql"),
    );
    let once = contender(ONCE, script!("refund_once"), None, refunds!("job"));
    let guarded = contender(
        GUARDED,
        script!("refund_guarded"),
        None,
        refunds!("guarded"),
    );
    let unasked = |contender| Contender {
        asked: None,
        ..contender
    };
    [
        contest(
            "refund of 100 items",
            &["job", "raw", "plpgsql"],
            vec![once, raw, unlocked],
        ),
        contest(
            "refund of 100 items, guard on",
            &["guarded", "raw"],
            vec![guarded, unasked(raw)],
        ),
    ]
}

/// What a move and an action write.
pub async fn costs(database: &Database) -> Result<Vec<Cost>> {
    let clients = database.settings.clients;
    let jobs = u64::from(CALLS);
    let mut costs = Vec::new();
    for (side, tables, script) in [
        (ONCE, &["job.batch_job"][..], script!("transition_once")),
        (
            "raw UPDATE ... status = ANY",
            &["raw.batch_job"],
            script!("transition_raw"),
        ),
        (
            GUARDED,
            &["guarded.batch_job"],
            script!("transition_guarded"),
        ),
    ] {
        costs.push(("transition, there and back", side, tables, script));
    }
    for (side, tables, script) in [
        (
            ONCE,
            &["job.batch_job", "once.action_lease"][..],
            script!("claim_finish_once"),
        ),
        (
            "raw CTEs, the lease inserted",
            &["raw.batch_job", "raw.action_lease"],
            script!("claim_finish_raw"),
        ),
    ] {
        costs.push(("action_claim + action_finish", side, tables, script));
    }
    let mut measured = Vec::new();
    for (what, side, tables, script) in costs {
        table::say(&format!("What is written: {what}, {side}"));
        fill(&SIDES[..3], jobs).make(database).await?;
        let work = Work {
            what,
            side,
            tables,
            script,
            stock: jobs,
            until: Until::Transactions(CALLS / clients),
            in_flight: 1,
        };
        measured.push(cost::one(database, &work).await?);
    }
    Ok(measured)
}
