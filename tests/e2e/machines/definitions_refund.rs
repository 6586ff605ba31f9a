//! The tables of a refund: for each check a definition or a table that breaks only it.

use crate::definitions::{fits_after, only, only_after, open, told};
use serde_json::{Value, json};

fn nothing(_: &mut Value) {}

/// Sets a member of `refund`.
fn refund(name: &str, value: impl Into<Value>) -> impl FnOnce(&mut Value) {
    let (name, value) = (name.to_owned(), value.into());
    move |d| d["refund"][name] = value
}

#[tokio::test]
async fn a_column_of_items_or_wallets_that_is_not_there_is_one_fault() {
    let play = open().await;
    for (name, table) in [
        ("item_id", "item"),
        ("subject", "item"),
        ("marker", "item"),
        ("amount", "item"),
        ("account", "job"),
        ("wallet_id", "wallet"),
        ("balance", "wallet"),
    ] {
        let fault = format!("refund.{name}: public.{table} has no column \"nope\"");
        only(&play, refund(name, "nope"), &fault).await;
    }
}

#[tokio::test]
async fn items_and_wallets_are_tables_of_their_own() {
    let play = open().await;
    let no_table = "is neither an ordinary nor a partitioned table";
    let setup = "create materialized view v as select * from item; create unique index on v (id)";
    play.show(&format!("begin; {setup}")).await;
    let mut d = crate::definitions::right();
    d["refund"]["items"] = json!("v");
    let found = crate::definitions::faults(&play, &d).await;
    let expected = [
        format!("refund.items: public.v {no_table}"),
        "refund.item_id: column \"id\" must be NOT NULL".to_owned(),
    ];
    assert_eq!(found, expected);
    play.show("rollback").await;
    let setup =
        "alter table job add settled text, add points bigint, add state text, add job_id bigint";
    told(&play, "refund.items: is the machine's own table")
        .after(setup)
        .of(refund("items", "job"))
        .await;
    let change = |d: &mut Value| {
        d["refund"]["wallet"] = json!("job");
        d["refund"]["wallet_id"] = json!("id");
        d["refund"]["account"] = json!("n");
        d["refund"]["balance"] = json!("points");
    };
    told(&play, "refund.wallet: is the machine's own table")
        .after(setup)
        .of(change)
        .await;
    let change = |d: &mut Value| {
        d["refund"]["wallet"] = json!("item");
        d["refund"]["wallet_id"] = json!("id");
        d["refund"]["account"] = json!("n");
    };
    only(&play, change, "refund.wallet: is the table of the items").await;
    let setup = "create temp table i (like item including all)";
    play.show(&format!("begin; {setup}")).await;
    let schema = play
        .show("select nspname from pg_namespace where oid = pg_my_temp_schema()")
        .await;
    let fault = format!("refund.items: {schema}.i is a temporary table");
    only(&play, refund("items", "i"), &fault).await;
    play.show("rollback").await;
}

#[tokio::test]
async fn items_and_wallets_have_keys_like_a_machine_s_id() {
    let play = open().await;
    let unique = "needs a valid unique index on it alone, not partial and not deferrable";
    let setup = "alter table item drop constraint item_pkey";
    told(&play, &format!("refund.item_id: column \"id\" {unique}"))
        .after(setup)
        .of(nothing)
        .await;
    let setup = "alter table wallet drop constraint wallet_pkey; alter table wallet alter customer set not null;
                 create unique index on wallet (customer) where points > 0";
    only_after(
        &play,
        setup,
        nothing,
        &format!("refund.wallet_id: column \"customer\" {unique}"),
    )
    .await;
    let setup = "alter table item drop constraint item_pkey; alter table item alter id drop not null; create unique index on item (id)";
    told(&play, "refund.item_id: column \"id\" must be NOT NULL")
        .after(setup)
        .of(nothing)
        .await;
    let setup = "alter table item alter id type numeric";
    let fault = "refund.item_id: column \"id\" is of type numeric; a key is an integer, uuid, text or varchar, or a domain over one of these";
    only_after(&play, setup, nothing, fault).await;
}

#[tokio::test]
async fn columns_that_hold_a_key_have_a_type_of_its_kind() {
    let play = open().await;
    let setup = "alter table item alter job_id type text";
    let fault = "refund.subject: column \"job_id\" is of type text, which cannot hold the id of type bigint";
    only_after(&play, setup, nothing, fault).await;
    let setup = "alter table job drop column customer, add customer uuid";
    let fault = "refund.account: column \"customer\" is of type uuid, which cannot hold the refund.wallet_id of type text";
    only_after(&play, setup, nothing, fault).await;
    let setup = "alter table job drop column customer, add customer timestamptz";
    told(&play, &fault.replace("uuid", "timestamp with time zone"))
        .after(setup)
        .of(nothing)
        .await;
    for setup in [
        "alter table item alter job_id type integer",
        "alter table item alter job_id type smallint",
        "alter table job alter customer type varchar(20)",
        "create domain customer_name as text; alter table job alter customer type customer_name",
    ] {
        fits_after(&play, setup, nothing).await;
    }
}

#[tokio::test]
async fn a_refund_s_column_has_one_part_to_play() {
    let play = open().await;
    for (name, column, other) in [
        ("subject", "id", "item_id"),
        ("marker", "id", "item_id"),
        ("marker", "job_id", "subject"),
        ("marker", "points", "amount"),
        ("balance", "customer", "wallet_id"),
    ] {
        let fault = format!("refund.{name}: column \"{column}\" is refund.{other} already");
        let change = |d: &mut Value| {
            d["refund"][name] = json!(column);
            // The marker's other faults would be of its value.
            d["refund"]["marked"] = json!("1");
        };
        only(&play, change, &fault).await;
    }
}

#[tokio::test]
async fn the_marker_can_hold_its_two_values_and_tells_them_apart() {
    let play = open().await;
    let retype =
        |rest: &str| format!("alter table item drop column settled, add column settled {rest}");
    let both = |marked: Value, undecided: Value| {
        move |d: &mut Value| {
            d["refund"]["marked"] = marked;
            d["refund"]["undecided"] = undecided;
        }
    };
    fits_after(&play, "", both(json!("returned"), json!("open"))).await;
    fits_after(
        &play,
        &retype("boolean not null"),
        both(json!(true), json!(false)),
    )
    .await;
    fits_after(&play, &retype("int not null"), both(json!(1), json!("0"))).await;
    fits_after(
        &play,
        &retype("numeric(4, 2)"),
        both(json!(1.25), Value::Null),
    )
    .await;
    fits_after(
        &play,
        &retype("timestamptz"),
        both(json!("epoch"), Value::Null),
    )
    .await;
    let made = "create type mark as enum ('returned', 'kept')";
    fits_after(&play, &format!("{made}; {}", retype("mark")), nothing).await;

    let misfit = "refund.marked: \"returned\" does not fit column \"settled\":";
    for (setup, problem) in [
        (
            retype("boolean"),
            "invalid input syntax for type boolean: \"returned\"",
        ),
        (
            retype("int"),
            "invalid input syntax for type integer: \"returned\"",
        ),
        (retype("varchar(4)"), "it would be another value there"),
        (retype("char(4)"), "it would be another value there"),
        (
            "create type mark as enum ('back'); ".to_owned() + &retype("mark"),
            "invalid input value for enum mark: \"returned\"",
        ),
        (
            "create domain mark as text check (value = 'back'); ".to_owned() + &retype("mark"),
            "value for domain mark violates check constraint \"mark_check\"",
        ),
    ] {
        only_after(&play, &setup, nothing, &format!("{misfit} {problem}")).await;
    }
    let fault = "refund.marked: \"1\" does not fit column \"settled\": could not identify an equality operator for type json";
    only_after(&play, &retype("json"), both(json!(1), Value::Null), fault).await;
    let fault = "refund.undecided: \"maybe\" does not fit column \"settled\": invalid input syntax for type boolean: \"maybe\"";
    told(&play, fault)
        .after(&retype("boolean"))
        .of(both(json!(true), json!("maybe")))
        .await;
    let fault = "refund.undecided: is the same value as marked, \"returned\"";
    only(&play, refund("undecided", "returned"), fault).await;
    // As the type compares values.
    let fault = "refund.undecided: is the same value as marked, \"1.0\"";
    told(&play, fault)
        .after(&retype("numeric"))
        .of(both(json!("1.0"), json!(1)))
        .await;
    let fault = "refund.undecided: is the same value as marked, \"true\"";
    told(&play, fault)
        .after(&retype("boolean"))
        .of(both(json!(true), json!("on")))
        .await;
    let null = "refund.undecided: NULL means undecided, but column \"settled\" is NOT NULL";
    only_after(&play, &retype("text not null"), nothing, null).await;
    told(&play, null)
        .after(&retype("text not null"))
        .of(refund("undecided", Value::Null))
        .await;
    let setup = retype("text generated always as ('returned') stored");
    only_after(
        &play,
        &setup,
        nothing,
        "refund.marker: column \"settled\" is generated and cannot be set",
    )
    .await;
    let setup = "create table above (like item) partition by list (settled);
        create table i partition of above (primary key (id)) for values in (null, 'returned')";
    let fault = "refund.marker: the table is partitioned by column \"settled\"";
    only_after(&play, setup, refund("items", "i"), fault).await;
}

#[tokio::test]
async fn amounts_and_balances_are_counted_exactly() {
    let play = open().await;
    let exact = "amounts and balances are integer or numeric";
    for (type_name, shown) in [
        ("real", "real"),
        ("double precision", "double precision"),
        ("money", "money"),
        ("text", "text"),
    ] {
        let setup = format!("alter table item drop column points, add column points {type_name}");
        let fault = format!("refund.amount: column \"points\" is of type {shown}; {exact}");
        only_after(&play, &setup, nothing, &fault).await;
        let setup = format!("alter table wallet drop column points, add column points {type_name}");
        let fault = format!("refund.balance: column \"points\" is of type {shown}; {exact}");
        only_after(&play, &setup, nothing, &fault).await;
    }
    let setup = "alter table wallet drop column points, add column points bigint generated always as (1) stored";
    only_after(
        &play,
        setup,
        nothing,
        "refund.balance: column \"points\" is generated and cannot be set",
    )
    .await;
}

#[tokio::test]
async fn what_the_guard_judges_of_an_item_is_not_generated() {
    let play = open().await;
    for (path, column, made) in [
        (
            "refund.amount",
            "points",
            "bigint generated always as (n * 10) stored",
        ),
        (
            "refund.subject",
            "job_id",
            "bigint generated always as (id / 10) stored",
        ),
        (
            "refund.when",
            "state",
            "text generated always as ('ok') stored",
        ),
    ] {
        let setup = format!(
            "alter table item add n int; alter table item drop column {column}, add column {column} {made}"
        );
        let fault = format!(
            "{path}: column \"{column}\" is generated: the guard cannot see what it becomes"
        );
        only_after(&play, &setup, nothing, &fault).await;
    }
}

#[tokio::test]
async fn a_balance_holds_every_amount_exactly() {
    let play = open().await;
    play.show("create domain cents as numeric(12, 2); create domain points as int")
        .await;
    let types = |amount: &str, balance: &str| {
        format!(
            "alter table item alter points type {amount}; alter table wallet alter points type {balance}"
        )
    };
    for (amount, balance) in [
        ("smallint", "smallint"),
        ("smallint", "int"),
        ("int", "bigint"),
        ("points", "int"),
        ("int", "numeric"),
        ("bigint", "numeric(30)"),
        ("int", "numeric(12, 2)"),
        ("numeric", "numeric"),
        ("numeric(9, 2)", "numeric"),
        ("numeric(9, 2)", "numeric(9, 2)"),
        ("numeric(9, 2)", "cents"),
        ("cents", "numeric(20, 4)"),
        ("numeric(4)", "smallint"),
        ("numeric(9)", "int"),
        ("numeric(18)", "bigint"),
        ("numeric(5, -2)", "int"),
        ("numeric(5, -2)", "numeric(7, 0)"),
    ] {
        fits_after(&play, &types(amount, balance), nothing).await;
    }
    let shown = |name: &str| match name {
        "int" => "integer".to_owned(),
        "points" | "cents" => format!("public.{name}"),
        name => name
            .replace(", ", ",")
            .replace("numeric(10)", "numeric(10,0)")
            .replace("numeric(5)", "numeric(5,0)")
            .replace("numeric(19)", "numeric(19,0)"),
    };
    for (amount, balance) in [
        ("bigint", "int"),
        ("int", "smallint"),
        ("bigint", "points"),
        ("numeric", "bigint"),
        ("numeric", "numeric(30, 2)"),
        ("numeric(9, 2)", "bigint"),
        ("numeric(9, 2)", "numeric(9, 1)"),
        ("cents", "numeric(11, 2)"),
        ("numeric(5)", "smallint"),
        ("numeric(10)", "int"),
        ("numeric(19)", "bigint"),
        ("numeric(8, -2)", "int"),
        ("int", "numeric(9, -2)"),
    ] {
        let (from, to) = (shown(amount), shown(balance));
        let fault = format!(
            "refund.balance: column \"points\" of type {to} cannot hold every \"points\" of type {from}"
        );
        only_after(&play, &types(amount, balance), nothing, &fault).await;
    }
}

#[tokio::test]
async fn the_predicate_does_not_name_the_marker() {
    let play = open().await;
    let fault = "refund.when: names the marker \"settled\", which refund itself changes";
    for when in [
        "settled is null",
        "state = 'ok' and coalesce(settled, '') <> 'x'",
        "item.settled is null",
    ] {
        only(&play, refund("when", when), fault).await;
    }
    told(&play, "refund.when: column \"n\" does not exist")
        .of(refund("when", "n > 0"))
        .await;
    only(
        &play,
        refund("when", "points"),
        "refund.when: argument of when must be type boolean, not type bigint",
    )
    .await;
}
