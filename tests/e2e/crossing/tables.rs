//! Reaching the stored rows past the functions: each table and sequence by every statement there is, dumps, plans,
//! statistics, inheritance, keys, publications; and the extension's own objects.

use crate::services::{SECRET, Services, program};

/// `$T` is a table.
const STATEMENTS: [&str; 13] = [
    "select * from $T",
    "select count(*) from $T",
    "select ctid from only $T limit 1",
    "explain analyze select * from $T",
    "copy $T to stdout",
    "copy (select * from $T) to stdout",
    "declare c cursor with hold for select * from $T",
    "create materialized view bert.copied as select * from $T",
    "create table bert.alike (like $T including all)",
    "create table bert.child () inherits ($T)",
    "lock table $T in access exclusive mode",
    "create publication spy for table $T",
    "select row_to_json(t) from $T t",
];

const WRITES: [&str; 8] = [
    "delete from $T",
    "truncate $T",
    "insert into $T select * from $T",
    "create trigger t before insert on $T for each row execute function suppress_redundant_updates_trigger()",
    "alter table $T disable row level security",
    "create index on $T ((1))",
    "create policy p on $T",
    "merge into $T using (values (1)) v (x) on true when matched then delete",
];

/// With the rights of his service alone.
const BERT: &str = "begin; set local role cross_bert;";

async fn relations(services: &Services, kinds: &str) -> Vec<String> {
    let names = services
        .play
        .show(&format!(
            "select oid::regclass from pg_class where relnamespace = 'once'::regnamespace and relkind in ({kinds}) order by 1"
        ))
        .await;
    names.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn every_table_is_closed_to_every_statement() {
    let services = Services::open().await;
    let tables = relations(&services, "'r', 'v', 'm', 'p', 'f'").await;
    let views = relations(&services, "'v'").await;
    assert!(tables.len() > 20, "{tables:?}");
    // Statements of this kind ask for the same rights everywhere; all of them at the tables that hold the most.
    for table in &tables {
        let all = ["once.key", "once.event_0", "once.dead"].contains(&table.as_str());
        for statement in &STATEMENTS[..if all { STATEMENTS.len() } else { 1 }] {
            services
                .closed(&format!("{BERT} {}", statement.replace("$T", table)))
                .await;
        }
        if views.contains(table) {
            continue;
        }
        for statement in &WRITES[..if all { WRITES.len() } else { 1 }] {
            services
                .closed(&format!("{BERT} {}", statement.replace("$T", table)))
                .await;
        }
    }
    for table in ["anna.job", "anna.item", "anna.wallet"] {
        services.closed(&format!("select * from {table}")).await;
        services.closed(&format!("delete from {table}")).await;
    }
}

#[tokio::test]
async fn every_sequence_is_closed() {
    let services = Services::open().await;
    for sequence in relations(&services, "'S'").await {
        for call in [
            format!("select nextval('{sequence}')"),
            format!("select setval('{sequence}', 1)"),
            format!("select * from {sequence}"),
            format!("alter sequence {sequence} restart"),
        ] {
            services.closed(&call).await;
        }
    }
}

#[tokio::test]
async fn what_the_server_tells_everybody_has_nothing_of_the_others() {
    let services = Services::open().await;
    services.play.show("analyze").await;
    let seen = services
        .play
        .show("select count(*) from pg_stats where schemaname in ('once', 'anna') and most_common_vals is not null")
        .await;
    assert_ne!(seen, "0", "there is something to see");
    // Anna's last statement has a secret in it.
    services.anna.show(&format!("select '{SECRET}'")).await;
    for view in [
        "select * from pg_stats where schemaname in ('once', 'anna')",
        "select * from pg_stat_activity",
        "select * from pg_stats_ext",
        "select * from pg_prepared_statements",
        "select * from pg_cursors",
        "select pg_get_constraintdef(oid), pg_get_expr(conbin, conrelid) from pg_constraint",
        "select * from pg_locks",
        "select * from once.metrics()",
        "select * from once.doctor()",
        "select * from once.janitor_status()",
        "select * from once.machine_check()",
        "select * from once.sweep(1)",
    ] {
        services.learns_nothing(view).await;
    }
    for closed in [
        "select * from pg_statistic",
        "select pg_read_file('postgresql.conf')",
        "select pg_switch_wal()",
    ] {
        services.closed(closed).await;
    }
}

#[tokio::test]
async fn a_dump_gets_nothing() {
    let services = Services::open().await;
    for arguments in [
        &["-t", "once.key", "--data-only"][..],
        &["--data-only"],
        &["-n", "anna"],
        &["--enable-row-security", "-t", "once.*"],
    ] {
        let (success, said) = program(&services, "pg_dump", arguments);
        assert!(!success, "{arguments:?}: {said}");
        assert!(!said.contains(SECRET), "{arguments:?}");
    }
}

#[tokio::test]
async fn the_extensions_own_objects_stay_as_they_are() {
    let services = Services::open().await;
    for statement in [
        "alter extension pg_once update",
        "alter extension pg_once drop table once.key",
        "drop extension pg_once cascade",
        "alter function once.key_get(text, text) owner to cross_bert",
        "alter function once.key_get(text, text) security definer",
        "alter function once.key_get(text, text) set search_path = bert",
        "create or replace function once.key_get(scope text, key text) returns text language sql as 'select 1'",
        "create function once.mine() returns int language sql as 'select 1'",
        "create table once.mine (id int)",
        "create operator once.= (leftarg = text, rightarg = text, function = texteq)",
        "alter schema once rename to twice",
        "comment on table once.key is 'x'",
        "grant select on once.key to cross_bert",
        "create function bert.own_key_get() returns void language c as '$libdir/pg_once', 'pg_once_key_get'",
        "update pg_proc set prosecdef = true where proname = 'key_get'",
        "alter database postgres set once.fake_now = '2100-01-01'",
    ] {
        services.closed(&format!("{BERT} {statement}")).await;
    }
    // A right that is held without the option to grant it is not granted: a warning.
    services
        .learns_nothing("grant usage on schema once to public")
        .await;
    let open = "select has_schema_privilege('public', 'once', 'usage')";
    assert_eq!(services.play.show(open).await, "f");
    // A trigger's function needs its right from whoever makes the trigger.
    services.bert.show("set role cross_bert").await;
    services.bert.show("create table bert.own (id int)").await;
    services.bert.show("reset role").await;
    for function in ["machine_guard_row", "machine_guard_item"] {
        let trigger = "create trigger t before update on bert.own for each row execute function";
        let call = format!("once.{function}('anna.job')");
        services.closed(&format!("{BERT} {trigger} {call}")).await;
    }
}
