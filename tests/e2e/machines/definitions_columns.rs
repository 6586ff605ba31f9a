//! The machine's own table and its columns: what fits, and for each check a table or a definition that breaks
//! only it.

use crate::definitions::{
    define, faults, fits_after, only, only_after, open, right, told, without,
};
use crate::playground::cluster;
use serde_json::{Value, json};

fn nothing(_: &mut Value) {}

#[tokio::test]
async fn a_column_that_is_not_there_is_one_fault() {
    let play = open().await;
    for (pointer, path) in [
        ("/id", "id"),
        ("/status", "status"),
        ("/version", "version"),
        ("/cancel/flag", "cancel.flag"),
        ("/refund/account", "refund.account"),
    ] {
        let fault = format!("{path}: public.job has no column \"nope\"");
        told(&play, &fault)
            .of(|d| *d.pointer_mut(pointer).unwrap() = json!("nope"))
            .await;
    }
    // Names are exact; a dropped column is gone, and a system column is no column.
    told(&play, "status: public.job has no column \"Status\"")
        .of(|d| d["status"] = json!("Status"))
        .await;
    told(&play, "version: public.job has no column \"xmin\"")
        .of(|d| d["version"] = json!("xmin"))
        .await;
    let setup = "alter table job drop column version";
    told(&play, "version: public.job has no column \"version\"")
        .after(setup)
        .of(nothing)
        .await;
}

#[tokio::test]
async fn a_missing_table_is_one_fault_and_the_other_checks_still_run() {
    let play = open().await;
    told(&play, "table: there is no table \"nope\"")
        .of(|d| d["table"] = json!("nope"))
        .await;
    told(&play, "table: there is no table \"no.pe\"")
        .of(|d| d["table"] = json!("no.pe"))
        .await;
    // Before 16 the server says that these are no names at all.
    for no_name in ["a b", "\"a", "a.b.c.d"] {
        let mut d = right();
        d["table"] = json!(no_name);
        let found = faults(&play, &d).await;
        assert!(
            matches!(found.as_slice(), [only] if only.starts_with("table: ")),
            "{found:?}"
        );
    }
    told(&play, "refund.items: there is no table \"nope\"")
        .of(|d| d["refund"]["items"] = json!("nope"))
        .await;
    told(&play, "refund.wallet: there is no table \"nope\"")
        .of(|d| d["refund"]["wallet"] = json!("nope"))
        .await;
}

#[tokio::test]
async fn a_machine_is_over_an_ordinary_or_partitioned_table() {
    let play = open().await;
    let no_table = "is neither an ordinary nor a partitioned table";
    let as_table = |name: &'static str| {
        move |d: &mut Value| {
            d["table"] = json!(name);
            without(d, "refund");
            without(d, "cancel");
            without(d, "version");
            without(&mut d["transitions"][0], "when");
        }
    };
    // A view has no index either.
    for (setup, kind) in [
        ("create view v as select * from job", no_table),
        ("create sequence v", no_table),
        ("create index v on job (n)", no_table),
    ] {
        play.show(&format!("begin; {setup}")).await;
        let mut d = right();
        as_table("v")(&mut d);
        let found = faults(&play, &d).await;
        assert_eq!(found[0], format!("table: public.v {kind}"), "{found:#?}");
        play.show("rollback").await;
    }
    let setup = "create materialized view v as select * from job; create unique index on v (id)";
    play.show(&format!("begin; {setup}")).await;
    let mut d = right();
    as_table("v")(&mut d);
    let found = faults(&play, &d).await;
    let expected = [
        "table: public.v is neither an ordinary nor a partitioned table",
        "id: column \"id\" must be NOT NULL",
    ];
    assert_eq!(found, expected);
    play.show("rollback").await;
    let setup = "create temp table t (like job including all)";
    let schema = "(select nspname from pg_namespace where oid = pg_my_temp_schema())";
    play.show(&format!("begin; {setup}")).await;
    let name = play.show(&format!("select {schema}")).await;
    let fault = format!("table: {name}.t is a temporary table");
    only(&play, as_table("t"), &fault).await;
    play.show("rollback").await;
    let fault = "table: once.scope is a system table";
    let scope = |d: &mut Value| {
        as_table("once.scope")(d);
        d["id"] = json!("scope");
        d["status"] = json!("on_expiry");
    };
    only(&play, scope, fault).await;
    let setup = "create table heir () inherits (job)";
    let fault = "table: other tables inherit from public.job; its ids are not unique over them";
    only_after(&play, setup, nothing, fault).await;
    fits_after(
        &play,
        "create table v (like job including all) partition by hash (id);
        create table v0 partition of v for values with (modulus 1, remainder 0)",
        as_table("v"),
    )
    .await;
    fits_after(
        &play,
        "create unlogged table v (like job including all)",
        as_table("v"),
    )
    .await;
}

#[tokio::test]
async fn a_rule_on_one_of_the_tables_is_refused_unless_it_is_disabled() {
    let play = open().await;
    for (path, table) in [
        ("table", "job"),
        ("refund.items", "item"),
        ("refund.wallet", "wallet"),
    ] {
        let rule = format!("create rule keep as on delete to {table} do instead nothing");
        let problem = format!(
            "{path}: public.{table} has the rule \"keep\": drop or disable it, or write a trigger instead"
        );
        only_after(&play, &rule, nothing, &problem).await;
        let off = format!("{rule}; alter table {table} disable rule keep");
        fits_after(&play, &off, nothing).await;
    }
}

#[tokio::test]
async fn an_id_may_be_of_every_type_with_one_canonical_text() {
    let play = open().await;
    play.show("create domain d_int as int; create domain d_d as d_int check (value > 0); create domain d_text as text")
        .await;
    let machine = |d: &mut Value| {
        d["table"] = json!("t");
        without(d, "refund");
    };
    for id in [
        "smallint",
        "int",
        "bigint",
        "uuid",
        "text",
        "varchar",
        "varchar(40)",
        "d_int",
        "d_d",
        "d_text",
        "text collate \"C\"",
    ] {
        let setup = format!(
            "create table t (like job); alter table t drop column id; alter table t add id {id} primary key"
        );
        fits_after(&play, &setup, machine).await;
    }
    for (id, shown) in [
        ("numeric", "numeric"),
        ("char(8)", "character(8)"),
        ("timestamptz", "timestamp with time zone"),
        ("bytea", "bytea"),
        ("oid", "oid"),
        ("int[]", "integer[]"),
        ("name", "name"),
        ("double precision", "double precision"),
    ] {
        let setup = format!(
            "create table t (like job); alter table t drop column id; alter table t add id {id} primary key"
        );
        let fault = format!(
            "id: column \"id\" is of type {shown}; a key is an integer, uuid, text or varchar, or a domain over one of these"
        );
        only_after(&play, &setup, machine, &fault).await;
    }
}

#[tokio::test]
async fn an_id_is_not_null_and_unique_by_itself() {
    let play = open().await;
    let machine = |d: &mut Value| {
        d["table"] = json!("t");
        without(d, "refund");
    };
    let table = "create table t (like job); alter table t alter id set not null;";
    let fault =
        "id: column \"id\" needs a valid unique index on it alone, not partial and not deferrable";
    for index in [
        "",
        "create index on t (id)",
        "create unique index on t (id) where n > 0",
        "create unique index on t (id, n)",
        "create unique index on t ((id + 0))",
        "create unique index on t (n) include (id)",
        "alter table t add unique (id) deferrable",
        "create unique index i on t (id); update pg_index set indisvalid = false where indexrelid = 'i'::regclass",
        "create unique index i on t (id); update pg_index set indisready = false where indexrelid = 'i'::regclass",
    ] {
        only_after(&play, &format!("{table} {index}"), machine, fault).await;
    }
    for index in [
        "create unique index on t (id) include (n)",
        "alter table t add unique (id)",
        "alter table t add primary key (id) include (n, status)",
        "create unique index on t (id desc)",
    ] {
        fits_after(&play, &format!("{table} {index}"), machine).await;
    }
    let generated = "create table t (like job); alter table t drop id; alter table t add id bigint generated always as";
    let key = "not null primary key";
    fits_after(&play, &format!("{generated} identity {key}"), machine).await;
    only_after(
        &play,
        &format!("{generated} (n) stored {key}"),
        machine,
        "id: column \"id\" is generated: the guard cannot see what it becomes",
    )
    .await;
    let setup = "create table t (like job); alter table t alter id drop not null; create unique index on t (id)";
    only_after(&play, setup, machine, "id: column \"id\" must be NOT NULL").await;
}

#[tokio::test]
async fn a_partitioned_table_is_unique_by_its_own_index() {
    let play = open().await;
    let machine = |d: &mut Value| {
        d["table"] = json!("t");
        without(d, "refund");
    };
    let parts = "create table t (like job) partition by range (id);
        create table t0 partition of t for values from (0) to (100);
        create table t1 partition of t for values from (100) to (200) partition by hash (id);
        create table t10 partition of t1 for values with (modulus 1, remainder 0);";
    fits_after(
        &play,
        &format!("{parts} alter table t add primary key (id)"),
        machine,
    )
    .await;
    let fault =
        "id: column \"id\" needs a valid unique index on it alone, not partial and not deferrable";
    // An index of the parent that its partitions do not have yet.
    let setup = format!("{parts} create unique index i on only t (id)");
    only_after(&play, &setup, machine, fault).await;
    let setup = format!("{parts} create unique index on t0 (id); create unique index on t10 (id)");
    only_after(&play, &setup, machine, fault).await;
}

#[tokio::test]
async fn the_table_is_not_partitioned_by_what_is_written_at_any_level() {
    let play = open().await;
    let fault = "status: the table is partitioned by column \"status\"";
    // An id that is unique over partitions by status cannot be; a table's own partition can.
    let setup = "create table above (like job) partition by list (status);
        create table t partition of above (primary key (id)) for values in ('new', 'ready')";
    only_after(&play, setup, |d| d["table"] = json!("t"), fault).await;
    let setup = "create table above (like job) partition by list (lower(status));
        create table between partition of above for values in ('new') partition by hash (id);
        create table t partition of between (primary key (id)) for values with (modulus 1, remainder 0)";
    only_after(&play, setup, |d| d["table"] = json!("t"), fault).await;
    let setup = "create table t (like job, primary key (id)) partition by hash (id);
        create table below partition of t for values with (modulus 1, remainder 0)";
    fits_after(&play, setup, |d| d["table"] = json!("t")).await;
    let setup = "create table above (like job) partition by list (cancelling);
        create table t partition of above (primary key (id)) for values in (false)";
    let fault = "cancel.flag: the table is partitioned by column \"cancelling\"";
    only_after(&play, setup, |d| d["table"] = json!("t"), fault).await;
    let setup = "create table above (like job) partition by range (version);
        create table t partition of above (primary key (id)) for values from (0) to (10)";
    let fault = "version: the table is partitioned by column \"version\"";
    only_after(&play, setup, |d| d["table"] = json!("t"), fault).await;
}

#[tokio::test]
async fn a_partition_below_may_not_be_by_status_either() {
    let play = open().await;
    let setup = "create table t (like job) partition by hash (id);
        create table below partition of t for values with (modulus 1, remainder 0) partition by list (status)";
    let mut d = right();
    d["table"] = json!("t");
    play.show(&format!("begin; {setup}")).await;
    let found = faults(&play, &d).await;
    // No unique index over such a table is possible either.
    assert_eq!(
        found,
        [
            "id: column \"id\" needs a valid unique index on it alone, not partial and not deferrable",
            "status: the table is partitioned by column \"status\"",
        ]
    );
    play.show("rollback").await;
}

#[tokio::test]
async fn every_status_fits_its_column() {
    let play = open().await;
    let retype = |type_name: &str| {
        format!("alter table job alter status type {type_name} using status::{type_name}")
    };
    for (setup, type_name) in [
        (
            "create type st as enum ('new', 'ready', 'running', 'done', 'failed', 'cancelled', 'more')",
            "st",
        ),
        (
            "create type st as enum ('new', 'ready', 'running', 'done', 'failed', 'cancelled'); create domain ds as st",
            "ds",
        ),
        ("create domain ds as text check (value ~ '^[a-z]+$')", "ds"),
        ("create domain ds as varchar(9)", "ds"),
        ("", "varchar"),
        ("", "varchar(9)"),
        ("", "text collate \"C\""),
    ] {
        fits_after(
            &play,
            &format!(
                "{setup}; {}",
                retype(type_name).replace("using status::text collate \"C\"", "")
            ),
            nothing,
        )
        .await;
    }
    let misfit = "status_types[5]: \"cancelled\" does not fit column \"status\":";
    for (setup, type_name, fault) in [
        (
            "create type st as enum ('new', 'ready', 'running', 'done', 'failed')",
            "st",
            format!("{misfit} invalid input value for enum st: \"cancelled\""),
        ),
        (
            "create type st as enum ('new', 'ready', 'running', 'done', 'failed'); create domain ds as st",
            "ds",
            format!("{misfit} invalid input value for enum st: \"cancelled\""),
        ),
        (
            "create domain ds as text check (value <> 'cancelled')",
            "ds",
            format!("{misfit} value for domain ds violates check constraint \"ds_check\""),
        ),
        (
            "create domain ds as varchar(8)",
            "ds",
            format!("{misfit} there it would be \"cancelle\""),
        ),
        (
            "",
            "varchar(8)",
            format!("{misfit} there it would be \"cancelle\""),
        ),
    ] {
        let setup = format!("{setup}; {}", retype(type_name));
        only_after(&play, &setup, nothing, &fault).await;
    }
    // Spaces at the end count.
    let setup = retype("varchar(9)");
    let change = |d: &mut Value| {
        d["status_types"]
            .as_array_mut()
            .unwrap()
            .push(json!("new      x"))
    };
    let fault = "status_types[6]: \"new      x\" does not fit column \"status\": there it would be \"new      \"";
    only_after(&play, &setup, change, fault).await;
}

#[tokio::test]
async fn a_status_column_has_a_usable_type_and_is_ours_to_set() {
    let play = open().await;
    let types = "a status is a text, varchar or enum, or a domain over one of these";
    for (type_name, shown) in [
        ("int", "integer"),
        ("char(10)", "character(10)"),
        ("jsonb", "jsonb"),
        ("text[]", "text[]"),
    ] {
        let setup = format!("alter table job drop column status, add column status {type_name}");
        let fault = format!("status: column \"status\" is of type {shown}; {types}");
        only_after(&play, &setup, nothing, &fault).await;
    }
    let setup = "alter table job drop column status, add column status text generated always as ('new') stored";
    only_after(
        &play,
        setup,
        nothing,
        "status: column \"status\" is generated and cannot be set",
    )
    .await;
}

#[tokio::test]
async fn a_collation_under_which_two_texts_are_one_is_refused() {
    let play = open().await;
    let icu = "select count(*) > 0 from pg_collation where collname = 'und-x-icu'";
    if play.show(icu).await == "f" {
        assert_ne!(cluster().version(), 15, "Debian's server is built with ICU");
        println!("not run: this server is built without ICU, which alone has such collations");
        return;
    }
    let setup = "create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        alter table job alter status type text collate anycase";
    let fault = "status: column \"status\" has a collation that is not deterministic";
    only_after(&play, setup, nothing, fault).await;
    let setup = "create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        create table t (like job); alter table t drop column id; alter table t add id text collate anycase primary key";
    let fault = "id: column \"id\" has a collation that is not deterministic";
    let change = |d: &mut Value| {
        d["table"] = json!("t");
        without(d, "refund");
    };
    only_after(&play, setup, change, fault).await;
}

#[tokio::test]
async fn version_and_flag_have_their_types() {
    let play = open().await;
    for type_name in ["integer", "text", "numeric"] {
        let setup =
            format!("alter table job alter version type {type_name} using version::{type_name}");
        let fault =
            format!("version: column \"version\" is of type {type_name}; it must be bigint");
        only_after(&play, &setup, nothing, &fault).await;
    }
    let setup = "alter table job alter version drop not null";
    told(&play, "version: column \"version\" must be NOT NULL")
        .after(setup)
        .of(nothing)
        .await;
    for generated in [
        "generated always as (id) stored",
        "generated always as identity",
    ] {
        let setup = format!(
            "alter table job drop column version, add column version bigint {generated} not null"
        );
        let fault = "version: column \"version\" is generated and cannot be set";
        only_after(&play, &setup, nothing, fault).await;
    }
    let setup = "alter table job alter cancelling type text";
    only_after(
        &play,
        setup,
        nothing,
        "cancel.flag: column \"cancelling\" is of type text; it must be boolean",
    )
    .await;
    let setup = "alter table job alter cancelling drop not null";
    told(&play, "cancel.flag: column \"cancelling\" must be NOT NULL")
        .after(setup)
        .of(nothing)
        .await;
    let setup = "create domain counted as bigint; alter table job alter version type counted;
                 create domain flagged as boolean; alter table job alter cancelling type flagged";
    fits_after(&play, setup, nothing).await;
}

#[tokio::test]
async fn a_column_has_one_part_to_play() {
    let play = open().await;
    told(&play, "status: column \"id\" is id already")
        .of(|d| d["status"] = json!("id"))
        .await;
    told(&play, "version: column \"id\" is id already")
        .of(|d| d["version"] = json!("id"))
        .await;
    told(&play, "version: column \"status\" is status already")
        .of(|d| d["version"] = json!("status"))
        .await;
    let fault = "cancel.flag: column \"version\" is version already";
    only(&play, |d| d["cancel"]["flag"] = json!("version"), fault).await;
}

#[tokio::test]
async fn one_machine_for_a_table_and_its_status_column() {
    let play = open().await;
    play.show(&define(&right())).await;
    let fault = "table: machine \"m\" has public.job and its column \"status\" already";
    only(&play, |d| d["machine"] = json!("n"), fault).await;
    // Another status column of the same table is another machine.
    fits_after(&play, "", |d| {
        d["machine"] = json!("n");
        d["status"] = json!("note");
    })
    .await;
    play.show("select once.machine_drop('m')").await;
    fits_after(&play, "", |d| d["machine"] = json!("n")).await;
}
