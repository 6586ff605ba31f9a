//! The life of a definition: it is replaced as a whole or not at all, shown again, and dropped; a lease that
//! somebody holds keeps what it remembers; whose it is.

use crate::cases::{define, open, right, with};
use crate::playground::{Playground, Refusal};
use crate::waiting::Waiting;
use serde_json::{Value, json};

async fn get(play: &Playground) -> Value {
    serde_json::from_str(&play.show("select once.machine_get('m')").await).unwrap()
}

/// `right()` is defined, and row 1 is ready.
async fn defined() -> Playground {
    let play = open().await;
    play.show(&define(&right())).await;
    play.show("insert into job values (1, 'c', 'ready', 0, false, 1)")
        .await;
    play
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
    let wrong = with(r#"/version = "nope""#);
    assert_eq!(refused(&play, &wrong).await.code, "ON003");
    assert_eq!(play.show(row).await, before);
    let revision = "select revision from once.machine";
    let mut last: i64 = play.show(revision).await.parse().unwrap();
    for next in [with("/refund gone"), right(), with("/refund gone")] {
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
    let play = defined().await;
    play.show("select once.action_claim('m', '1', 'run', 'worker', '1 hour')")
        .await;
    let lease = "select * from once.action_lease";
    let before = play.show(lease).await;
    play.show("create table other (like job including all)")
        .await;
    let other = "its table and columns cannot change";
    let cases = [
        (
            r#"/status_types = ["new", "ready", "done", "failed", "cancelled"]
               /steps = []"#,
            "status \"running\" cannot be removed",
        ),
        (
            r#"/status_types = ["new", "ready", "running", "failed", "cancelled"]
               /terminal = ["cancelled"]
               /steps/0/successful_state/worker = "failed""#,
            "status \"done\" cannot be removed",
        ),
        (
            r#"/status_types = ["new", "running", "done", "failed", "cancelled"]
               /transitions/0/to = "failed"
               /steps/0/status = "new"
               /steps/0/claim_state/worker = ["running", "new"]"#,
            "status \"ready\" cannot be removed",
        ),
        ("/steps = []", "status \"running\" must stay a claim state"),
        (r#"/table = "other""#, other),
        (r#"/status = "note""#, other),
    ];
    for (changes, message) in cases {
        let refusal = refused(&play, &with(changes)).await;
        let message = format!("machine \"m\" is in use: row \"1\" is leased, so {message}");
        assert_eq!((refusal.code, refusal.message), ("55006".into(), message));
        assert!(!refusal.hint.is_empty(), "{changes}");
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
    assert_eq!(refused(&play, &with(cases[0].0)).await.code, "55006");
    play.show("update once.action_lease set lease_until = clock_timestamp() + interval '1 hour'")
        .await;
    let untouched = r#"
        /steps/0/claim_state/worker = ["running", "new"]
        /steps/0/successful_state/worker = "failed"
        /steps/0/lease = "1 second""#;
    play.show(&define(&with(untouched))).await;
    let stable = "select machine, row_id, claim_into, revert_to, successful_state, token, state from once.action_lease";
    assert_eq!(play.show(stable).await.split('|').nth(3), Some("ready"));
    assert_eq!(
        before.split('|').next(),
        play.show(lease).await.split('|').next()
    );
    // Once it has ended everything goes.
    play.show("select once.action_release('m', '1', token) from once.action_lease")
        .await;
    for (changes, _) in cases {
        play.show(&format!("begin; {}; rollback", define(&with(changes))))
            .await;
    }
    play.show("select once.machine_drop('m')").await;
    assert_eq!(play.show(lease).await, "");
}

#[tokio::test]
async fn no_status_becomes_terminal_while_a_row_is_torn_down() {
    let play = defined().await;
    play.show("select once.cancel_request('m', '1')").await;
    let ends = r#"/terminal = ["done", "failed", "cancelled", "ready"]
        /transitions = []
        /steps = []"#;
    assert_eq!(refused(&play, &with(ends)).await.code, "55006");
}

#[tokio::test]
async fn what_was_cancelled_and_refunded_stays_on_record_after_a_drop() {
    let play = defined().await;
    play.show(
        "insert into wallet values ('c', 0);
         insert into item (id, job_id, points, state) values (1, 1, 5, 'ok');
         select once.cancel_request('m', '1'); select once.cancel_refund('m', '1'); select once.machine_drop('m')",
    )
    .await;
    assert_eq!(play.show("select count(*) from once.cancel").await, "1");
    play.ask("select items, amount from once.refund")
        .is("1|5")
        .await;
}

/// Roles of one test: `{prefix}_a`, `{prefix}_b` and `{prefix}_team`, of which a is a member; sessions of a and b.
async fn roles(play: &Playground, prefix: &str) -> (Playground, Playground) {
    for suffix in ["a", "b", "team"] {
        crate::world::role(play, &format!("{prefix}_{suffix}"), "operate").await;
    }
    play.show(&format!(
        "grant {prefix}_team to {prefix}_a; grant create on schema public to {prefix}_a, {prefix}_b"
    ))
    .await;
    let [a, b] = ["a", "b"].map(|suffix| format!("{prefix}_{suffix}"));
    (play.another_as(&a).await, play.another_as(&b).await)
}

#[tokio::test]
async fn only_the_owner_of_the_table_defines_redefines_and_drops() {
    let play = open().await;
    let (a, b) = roles(&play, "def_owner").await;
    play.show(
        "alter table job owner to def_owner_a; grant all on job, item, wallet to def_owner_b",
    )
    .await;
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
    let stolen = with(r#"/table = "mine""#);
    assert_eq!(refused(&b, &stolen).await.code, "42501");
    // A table that is gone leaves the machine to superusers.
    a.show("create table gone (like job including all)").await;
    let gone = "
        /machine = \"gone\"
        /table = \"gone\"
        /refund gone";
    a.show(&define(&with(gone))).await;
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
    let (a, b) = roles(&play, "def_team").await;
    play.show("alter table job owner to def_team_a; grant all on job, item, wallet to def_team_b")
        .await;
    let owned = |owner: &str| with(&format!("/owner = \"{owner}\""));
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

/// Two sessions in transactions; the first has defined `right()`, as the only machine.
async fn two_begin(play: &Playground, isolation: &str) -> (Playground, Playground) {
    play.show("delete from once.machine; delete from once.janitor")
        .await;
    let (a, b) = (play.another().await, play.another().await);
    a.show(&format!("begin; {}", define(&right()))).await;
    b.show(&format!("begin isolation level {isolation}; select 1"))
        .await;
    (a, b)
}

#[tokio::test]
async fn two_sessions_that_define_the_same_machine_converge() {
    let play = open().await;
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let (a, b) = two_begin(&play, isolation).await;
        let other = with(r#"/terminal = ["cancelled"]"#);
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
        let (a, b) = two_begin(&play, isolation).await;
        let other = define(&with(r#"/machine = "n""#));
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
    let play = defined().await;
    for isolation in ["read committed", "repeatable read"] {
        let (worker, owner) = (play.another().await, play.another().await);
        worker
            .show("begin; select once.action_claim('m', '1', 'run', 'worker', '1 hour')")
            .await;
        owner
            .show(&format!("begin isolation level {isolation}; select 1"))
            .await;
        let other = define(&with("/steps = []"));
        let waiting = Waiting::begin(&play, owner, &other).await;
        worker.show("commit").await;
        assert_eq!(waiting.end().await.1.unwrap_err().code, "55006");
        play.show("select once.action_release('m', '1', token) from once.action_lease")
            .await;
    }
}

#[tokio::test]
async fn a_redefined_machine_is_the_new_one_in_every_session() {
    let play = defined().await;
    play.show("update job set status = 'new', n = 0").await;
    let session = play.another().await;
    let moves = "select moved, reason from once.transition('m', '1', 'ready')";
    assert_eq!(session.show(moves).await, "f|guard");
    let zero = with(r#"/transitions/0/when = "n = 0""#);
    play.show(&define(&zero)).await;
    assert_eq!(session.show(moves).await, "t|~");
    play.show("select once.machine_drop('m')").await;
    assert_eq!(session.code(moves).await, "42704");
}
