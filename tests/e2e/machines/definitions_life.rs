//! The life of a definition: it is replaced as a whole or not at all, shown again, and dropped; a lease that
//! somebody holds keeps what it remembers; whose it is.

use crate::definitions::{define, open, right, without};
use crate::playground::{Playground, Refusal};
use crate::waiting::Waiting;
use serde_json::{Value, json};

async fn get(play: &Playground) -> Value {
    serde_json::from_str(&play.show("select once.machine_get('m')").await).unwrap()
}

/// The definition changed in one place.
fn with(change: impl FnOnce(&mut Value)) -> Value {
    let mut definition = right();
    change(&mut definition);
    definition
}

/// Defines `right()` and claims row 1 for its step.
async fn leased(play: &Playground) {
    play.show(&define(&right())).await;
    play.show(
        "insert into job (id, customer, status, version, cancelling, n) values (1, 'c', 'ready', 0, false, 1);
         select once.action_claim('m', '1', 'run', 'worker', '1 hour')",
    )
    .await;
}

async fn refused(play: &Playground, definition: &Value) -> Refusal {
    play.refused(&define(definition)).await
}

#[tokio::test]
async fn what_is_stored_is_what_machine_get_shows_and_can_be_defined_again() {
    let play = open().await;
    let told = play.show(&define(&right())).await;
    assert_eq!(told, play.show("select once.machine_get('m')").await);
    let mut expected = right();
    expected["table"] = json!("public.job");
    expected["refund"]["items"] = json!("public.item");
    expected["refund"]["wallet"] = json!("public.wallet");
    expected["refund"]["when"] = json!("(state OPERATOR(pg_catalog.=) 'ok'::pg_catalog.text)");
    expected["transitions"][0]["when"] = json!("(n OPERATOR(pg_catalog.>) 0)");
    assert_eq!(get(&play).await, expected);
    assert_eq!(play.show(&define(&expected)).await, told);
    // The examples of the two stories.
    for (tables, definition) in [
        (
            include_str!("../../../sql/examples/batch_job.sql").replace("wallet", "purse"),
            include_str!("../../../sql/examples/batch_job.json")
                .replace("\"wallet\": \"wallet\"", "\"wallet\": \"purse\""),
        ),
        (
            include_str!("../../../sql/examples/billing.sql").to_owned(),
            include_str!("../../../sql/examples/billing.json").to_owned(),
        ),
    ] {
        play.show(&tables).await;
        let definition: Value = serde_json::from_str(&definition).unwrap();
        let told: Value = serde_json::from_str(&play.show(&define(&definition)).await).unwrap();
        let again: Value = serde_json::from_str(&play.show(&define(&told)).await).unwrap();
        assert_eq!(again, told);
    }
}

#[tokio::test]
async fn a_new_definition_replaces_the_old_one_at_once_and_a_wrong_one_changes_nothing() {
    let play = open().await;
    play.show(&define(&right())).await;
    let row = "select revision, definition from once.machine";
    let before = play.show(row).await;
    let wrong = with(|d| d["version"] = json!("nope"));
    assert_eq!(refused(&play, &wrong).await.code, "ON003");
    assert_eq!(play.show(row).await, before);
    let revision = "select revision from once.machine";
    let mut last: i64 = play.show(revision).await.parse().unwrap();
    for next in [
        with(|d| without(d, "refund")),
        right(),
        with(|d| without(d, "refund")),
    ] {
        play.show(&define(&next)).await;
        let now = play.show(revision).await.parse().unwrap();
        assert!(now > last);
        last = now;
    }
    assert!(get(&play).await.get("refund").is_none());
    play.ask("select items, wallet from once.machine")
        .is("~|~")
        .await;
    // A revision grows even where the clock has gone back.
    play.show("update once.machine set revision = revision + 1000000000000")
        .await;
    last = play.show(revision).await.parse().unwrap();
    play.show(&define(&right())).await;
    assert_eq!(play.show(revision).await.parse::<i64>().unwrap(), last + 1);
    play.show("begin; select once.machine_drop('m'); rollback")
        .await;
    assert_eq!(play.show("select count(*) from once.machine").await, "1");
}

#[tokio::test]
async fn the_same_definition_again_writes_nothing() {
    let play = open().await;
    let told = play.show(&define(&right())).await;
    let row = "select ctid, xmin, revision from once.machine";
    let before = play.show(row).await;
    assert_eq!(play.show(&define(&right())).await, told);
    let again: Value = serde_json::from_str(&told).unwrap();
    let in_a_transaction = format!(
        "begin; {}; select pg_current_xact_id_if_assigned() is null",
        define(&again)
    );
    assert_eq!(play.show(&in_a_transaction).await, "t");
    play.show("commit").await;
    assert_eq!(play.show(row).await, before);
}

/// A rolling deployment: services define their machines at boot while others have open claims.
#[tokio::test]
async fn the_same_definition_again_waits_for_no_claim_also_where_the_machine_has_an_owner() {
    let play = open().await;
    play.show("create role def_same; insert into job values (1, 'c', 'ready', 0, false)")
        .await;
    let mut owned = right();
    owned["owner"] = "def_same".into();
    play.show(&define(&owned)).await;
    let row = "select ctid, xmin, revision from once.machine";
    let before = play.show(row).await;
    let worker = play.another().await;
    worker
        .show("begin; select once.action_claim('m', 1, 'run', 'worker')")
        .await;
    play.show("set lock_timeout = '1ms'").await;
    play.show(&define(&owned)).await;
    assert_eq!(play.show(row).await, before);
    owned["steps"][0]["lease"] = "1 minute".into();
    assert_eq!(play.code(&define(&owned)).await, "55P03");
    worker.show("rollback").await;
    play.show(&define(&owned)).await;
    assert_ne!(play.show(row).await, before);
}

#[tokio::test]
async fn a_held_lease_keeps_its_statuses_its_claim_state_and_its_table() {
    let play = open().await;
    leased(&play).await;
    let lease = "select * from once.action_lease";
    let before = play.show(lease).await;
    let drop_status = |status: &'static str| {
        move |d: &mut Value| {
            let all = d["status_types"].as_array_mut().unwrap();
            all.retain(|s| s != status);
        }
    };
    let in_use = "machine \"m\" is in use: row \"1\" is leased, so";
    let mut cases: Vec<(Value, String)> = Vec::new();
    let mut no_running = with(drop_status("running"));
    no_running["steps"] = json!([]);
    cases.push((
        no_running,
        format!("{in_use} status \"running\" cannot be removed"),
    ));
    let mut no_done = with(drop_status("done"));
    no_done["terminal"] = json!(["cancelled"]);
    no_done["steps"][0]["successful_state"]["worker"] = json!("failed");
    cases.push((
        no_done,
        format!("{in_use} status \"done\" cannot be removed"),
    ));
    let mut no_ready = with(drop_status("ready"));
    no_ready["transitions"][0]["to"] = json!("failed");
    no_ready["steps"][0]["status"] = json!("new");
    no_ready["steps"][0]["claim_state"]["worker"] = json!(["running", "new"]);
    cases.push((
        no_ready,
        format!("{in_use} status \"ready\" cannot be removed"),
    ));
    cases.push((
        with(|d| d["steps"] = json!([])),
        format!("{in_use} status \"running\" must stay a claim state"),
    ));
    play.show("create table other (like job including all)")
        .await;
    cases.push((
        with(|d| d["table"] = json!("other")),
        format!("{in_use} another table or column cannot be taken"),
    ));
    cases.push((
        with(|d| d["status"] = json!("note")),
        format!("{in_use} another table or column cannot be taken"),
    ));
    for (definition, message) in &cases {
        let refusal = refused(&play, definition).await;
        assert_eq!(
            (refusal.code.as_str(), refusal.message.as_str()),
            ("55006", message.as_str())
        );
        assert!(!refusal.hint.is_empty());
    }
    let refusal = play.refused("select once.machine_drop('m')").await;
    assert_eq!(refusal.code, "55006");
    assert_eq!(
        refusal.message,
        "machine \"m\" is in use: row \"1\" is leased"
    );
    // An overdue lease is still somebody's; what does not touch it may change.
    play.show("update once.action_lease set lease_until = clock_timestamp() - interval '1 hour'")
        .await;
    assert_eq!(refused(&play, &cases[0].0).await.code, "55006");
    play.show("update once.action_lease set lease_until = clock_timestamp() + interval '1 hour'")
        .await;
    play.show(&define(&with(|d| {
        d["steps"][0]["claim_state"]["worker"] = json!(["running", "new"]);
        d["steps"][0]["successful_state"]["worker"] = json!("failed");
        d["steps"][0]["lease"] = json!("1 second");
    })))
    .await;
    let stable = "select machine, row_id, claim_into, revert_to, successful_state, token, state from once.action_lease";
    assert_eq!(play.show(stable).await.split('|').nth(3), Some("ready"));
    assert_eq!(
        before.split('|').next(),
        play.show(lease).await.split('|').next()
    );
    // Once it has ended everything goes.
    play.show("select once.action_release('m', '1', token) from once.action_lease")
        .await;
    for (definition, _) in &cases {
        play.show(&format!("begin; {}; rollback", define(definition)))
            .await;
    }
    play.show("select once.machine_drop('m')").await;
    assert_eq!(play.show(lease).await, "");
}

#[tokio::test]
async fn what_was_cancelled_and_refunded_stays_on_record_after_a_drop() {
    let play = open().await;
    play.show(&define(&right())).await;
    play.show(
        "insert into wallet values ('c', 0);
         insert into job (id, customer, status, version, cancelling, n) values (1, 'c', 'ready', 0, false, 1);
         insert into item (id, job_id, points, state) values (1, 1, 5, 'ok');
         select once.cancel_request('m', '1'); select once.cancel_refund('m', '1'); select once.machine_drop('m')",
    )
    .await;
    assert_eq!(play.show("select count(*) from once.cancel").await, "1");
    play.ask("select items, amount from once.refund")
        .is("1|5")
        .await;
}

/// Roles of one test: `{prefix}_a`, `{prefix}_b` and `{prefix}_team`, of which a is a member.
async fn roles(play: &Playground, prefix: &str) {
    for suffix in ["a", "b", "team"] {
        crate::world::role(play, &format!("{prefix}_{suffix}"), "operate").await;
    }
    play.show(&format!(
        "grant {prefix}_team to {prefix}_a; grant create on schema public to {prefix}_a, {prefix}_b"
    ))
    .await;
}

#[tokio::test]
async fn only_the_owner_of_the_table_defines_redefines_and_drops() {
    let play = open().await;
    roles(&play, "def_owner").await;
    play.show(
        "alter table job owner to def_owner_a; grant all on job, item, wallet to def_owner_b",
    )
    .await;
    let (a, b) = (
        play.another_as("def_owner_a").await,
        play.another_as("def_owner_b").await,
    );
    let refusal = refused(&b, &right()).await;
    assert_eq!(
        (refusal.code.as_str(), refusal.message.as_str()),
        ("42501", "must be owner of table public.job")
    );
    // The items and wallets need not be the definer's.
    a.show(&define(&right())).await;
    assert_eq!(refused(&b, &right()).await.code, "42501");
    assert_eq!(b.code("select once.machine_drop('m')").await, "42501");
    b.show("select once.machine_get('m')").await;
    // Taking the name for a table of one's own needs the old table, too.
    b.show("create table mine (like job including all)").await;
    let stolen = with(|d| d["table"] = json!("mine"));
    assert_eq!(refused(&b, &stolen).await.code, "42501");
    // A table that is gone leaves the machine to superusers.
    a.show("create table gone (like job including all)").await;
    a.show(&define(&with(|d| {
        d["machine"] = json!("gone");
        d["table"] = json!("gone");
        without(d, "refund");
    })))
    .await;
    a.show("drop table gone").await;
    for session in [&a, &b] {
        let refusal = session.refused("select once.machine_drop('gone')").await;
        assert_eq!(refusal.code, "42501");
    }
    let shown: Value =
        serde_json::from_str(&a.show("select once.machine_get('gone')").await).unwrap();
    assert!(
        shown["table"].as_str().unwrap().parse::<u32>().is_ok(),
        "{shown}"
    );
    play.show("select once.machine_drop('gone')").await;
    a.show("select once.machine_drop('m')").await;
}

#[tokio::test]
async fn a_machine_with_an_owner_is_its_members_and_setting_one_needs_membership_in_both() {
    let play = open().await;
    roles(&play, "def_team").await;
    play.show("alter table job owner to def_team_a; grant all on job, item, wallet to def_team_b")
        .await;
    let (a, b) = (
        play.another_as("def_team_a").await,
        play.another_as("def_team_b").await,
    );
    let owned = |owner: &str| with(|d| d["owner"] = json!(owner));
    assert_eq!(refused(&a, &owned("def_team_b")).await.code, "42501");
    let refusal = refused(&a, &owned("def_team_nobody")).await;
    assert_eq!(
        (refusal.code.as_str(), refusal.detail.as_str()),
        ("ON003", "owner: there is no role \"def_team_nobody\"")
    );
    a.show(&define(&owned("def_team_team"))).await;
    assert_eq!(get(&a).await["owner"], "def_team_team");
    for call in ["machine_get('m')", "machine_drop('m')"] {
        assert_eq!(b.code(&format!("select once.{call}")).await, "42501");
    }
    // Without membership in the old owner even the table's owner cannot take it away.
    play.show("revoke def_team_team from def_team_a").await;
    assert_eq!(refused(&a, &right()).await.code, "42501");
    assert_eq!(a.code("select once.machine_drop('m')").await, "42501");
    play.show("grant def_team_team to def_team_a").await;
    // A renamed owner is the same; one that is gone leaves it to superusers.
    play.show("alter role def_team_team rename to def_team_renamed")
        .await;
    assert_eq!(get(&a).await["owner"], "def_team_renamed");
    let again = get(&a).await;
    a.show(&define(&again)).await;
    play.show("drop owned by def_team_renamed; drop role def_team_renamed")
        .await;
    assert_eq!(a.code("select once.machine_get('m')").await, "42501");
    assert_eq!(get(&play).await["owner"], "def_team_renamed");
    play.show(&define(&right())).await;
    assert!(get(&a).await.get("owner").is_none());
}

#[tokio::test]
async fn two_sessions_that_define_the_same_machine_converge() {
    let play = open().await;
    for isolation in ["read committed", "repeatable read", "serializable"] {
        play.show("delete from once.machine; delete from once.janitor")
            .await;
        let (a, b) = (play.another().await, play.another().await);
        a.show("begin").await;
        a.show(&define(&right())).await;
        b.show(&format!("begin isolation level {isolation}; select 1"))
            .await;
        let other = with(|d| d["terminal"] = json!(["cancelled"]));
        let waiting = Waiting::begin(&play, b, &define(&other)).await;
        a.show("commit").await;
        let (b, outcome) = waiting.end().await;
        match outcome.map_err(|refusal| refusal.code) {
            Ok(_) => {
                b.show("commit").await;
                assert_eq!(get(&play).await["terminal"], json!(["cancelled"]));
            }
            // Above READ COMMITTED the row of the winner cannot be seen.
            Err(code) => {
                assert_ne!(isolation, "read committed");
                assert_eq!(code, "40001");
                b.show("rollback").await;
            }
        }
        assert_eq!(play.show("select count(*) from once.machine").await, "1");
    }
}

#[tokio::test]
async fn two_machines_over_one_status_column_cannot_both_be_defined() {
    let play = open().await;
    for isolation in ["read committed", "repeatable read"] {
        play.show("delete from once.machine; delete from once.janitor")
            .await;
        let (a, b) = (play.another().await, play.another().await);
        a.show("begin").await;
        a.show(&define(&right())).await;
        b.show(&format!("begin isolation level {isolation}; select 1"))
            .await;
        let other = define(&with(|d| d["machine"] = json!("n")));
        let waiting = Waiting::begin(&play, b, &other).await;
        a.show("commit").await;
        let refusal = waiting.end().await.1.unwrap_err();
        assert_eq!(refusal.code, "ON003");
        assert_eq!(
            refusal.detail,
            "table: machine \"m\" has public.job and its column \"status\" already"
        );
    }
}

#[tokio::test]
async fn a_definition_waits_for_a_claim_that_is_not_committed_yet() {
    let play = open().await;
    play.show(&define(&right())).await;
    play.show("insert into job (id, customer, status, version, cancelling, n) values (1, 'c', 'ready', 0, false, 1)").await;
    for isolation in ["read committed", "repeatable read"] {
        let (worker, owner) = (play.another().await, play.another().await);
        worker
            .show("begin; select once.action_claim('m', '1', 'run', 'worker', '1 hour')")
            .await;
        owner
            .show(&format!("begin isolation level {isolation}; select 1"))
            .await;
        let other = define(&with(|d| d["steps"] = json!([])));
        let waiting = Waiting::begin(&play, owner, &other).await;
        worker.show("commit").await;
        assert_eq!(waiting.end().await.1.unwrap_err().code, "55006");
        play.show("select once.action_release('m', '1', token) from once.action_lease")
            .await;
    }
}

#[tokio::test]
async fn a_redefined_machine_is_the_new_one_in_every_session() {
    let play = open().await;
    play.show(&define(&right())).await;
    play.show("insert into job (id, customer, status, version, cancelling, n) values (1, 'c', 'new', 0, false, 0)").await;
    let session = play.another().await;
    let moves = "select moved, reason from once.transition('m', '1', 'ready')";
    assert_eq!(session.show(moves).await, "f|guard");
    play.show(&define(&with(|d| {
        d["transitions"][0]["when"] = json!("n = 0")
    })))
    .await;
    assert_eq!(session.show(moves).await, "t|~");
    play.show("select once.machine_drop('m')").await;
    assert_eq!(session.code(moves).await, "42704");
}
