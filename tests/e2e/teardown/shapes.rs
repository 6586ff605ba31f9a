//! Teardown over tables of other shapes: names that need quotes, ids of other types, other schemas,
//! integer and numeric money, a marker with a value for undecided.

use crate::playground::Playground;

/// The types of one shop. The machine is `m`, the row that is torn down `row`.
pub struct Shape {
    pub id: &'static str,
    pub item_id: &'static str,
    pub wallet_id: &'static str,
    pub amount: &'static str,
    pub balance: &'static str,
    pub row: &'static str,
    pub wallet: &'static str,
}

pub const PLAIN: Shape = Shape {
    id: "bigint",
    item_id: "bigint",
    wallet_id: "text",
    amount: "numeric",
    balance: "numeric",
    row: "1",
    wallet: "w",
};

impl Shape {
    /// Tables with names that need quotes, in a schema that is in nobody's search_path, the guarded
    /// machine, one row and its wallet; no foreign keys, so that anything may be missing.
    pub async fn build(&self, play: &Playground) {
        let Shape {
            id,
            item_id,
            wallet_id,
            amount,
            balance,
            row,
            wallet,
        } = self;
        play.show(&format!(
            r#"drop schema if exists "My Shop" cascade;
               create schema "My Shop";
               create table "My Shop"."Wal""let" ("Id" {wallet_id} primary key, "Ba lance" {balance} not null);
               create table "My Shop"."Job" ("Id" {id} primary key, "Sta;tus" text not null default 'queued',
                   "Flag" boolean not null default false, "Who" {wallet_id}, "Note" text);
               create table "My Shop"."It em" ("Id" {item_id} primary key, "Of" {id} not null,
                   "Mark" text not null default 'open', "Cost" {amount}, "Good" boolean not null default true);
               insert into "My Shop"."Wal""let" values ('{wallet}', 0);
               insert into "My Shop"."Job" ("Id", "Who") values ('{row}', '{wallet}')"#
        ))
        .await;
        play.show(&format!("select once.machine_define($m${DEFINITION}$m$)"))
            .await;
        play.show("select once.machine_guard('m', true)").await;
    }

    pub async fn item(&self, play: &Playground, item: &str, cost: &str, good: bool) {
        let row = self.row;
        play.show(&format!(
            r#"insert into "My Shop"."It em" values ({item}, '{row}', 'open', {cost}, {good})"#
        ))
        .await;
    }

    pub fn call(&self, columns: &str, function: &str, more: &str) -> String {
        let row = self.row;
        format!("select {columns} from once.{function}('m', '{row}'{more})")
    }

    pub async fn flag(&self, play: &Playground) {
        let request = self.call("outcome", "cancel_request", "");
        assert_eq!(play.show(&request).await, "teardown");
    }

    pub async fn balance(&self, play: &Playground) -> String {
        play.show(r#"select "Ba lance" from "My Shop"."Wal""let""#)
            .await
    }

    /// Items by their marker, with how many carry it.
    pub async fn marks(&self, play: &Playground) -> String {
        play.show(
            r#"select coalesce(string_agg(m, ' ' order by m), '')
                 from (select "Mark" || ':' || count(*) as m from "My Shop"."It em" group by "Mark") as i"#,
        )
        .await
    }

    /// The rest of a teardown after its first refund.
    pub async fn end(&self, play: &Playground) {
        let pass = play.show(&self.call("pass", "cancel_refund", "")).await;
        let confirm = self.call("confirmed", "cancel_confirm", &format!(", {pass}"));
        assert_eq!(play.show(&confirm).await, "t");
        let finish = self.call("status", "cancel_finish", "");
        assert_eq!(play.show(&finish).await, "cancelled");
        play.ask("select count(*) from once.cancel_audit('m')")
            .is("0")
            .await;
    }
}

pub const DEFINITION: &str = r#"{
  "machine": "m", "table": "\"My Shop\".\"Job\"", "id": "Id", "status": "Sta;tus",
  "status_types": ["queued", "running", "done", "cancelled"], "terminal": ["done", "cancelled"],
  "steps": [{"step_key": "run", "status": "queued", "claim_state": {"*": ["running", "queued"]},
             "successful_state": {"*": "done"}}],
  "cancel": {"flag": "Flag", "to": "cancelled"},
  "refund": {"items": "\"My Shop\".\"It em\"", "item_id": "Id", "subject": "Of", "marker": "Mark",
             "marked": "it's back", "undecided": "open", "when": "\"Good\"", "amount": "Cost",
             "wallet": "\"My Shop\".\"Wal\"\"let\"", "wallet_id": "Id", "account": "Who",
             "balance": "Ba lance"}
}"#;

#[tokio::test]
async fn a_marker_of_a_domain_over_an_enum() {
    let play = Playground::open().await;
    PLAIN.build(&play).await;
    play.show(
        r#"create type mark as enum ('open', 'it''s back', 'kept');
           create domain our_mark as mark;
           alter table "My Shop"."It em" alter "Mark" drop default, alter "Mark" type our_mark using "Mark"::mark"#,
    )
    .await;
    for (item, cost) in [("1", "2"), ("2", "3")] {
        PLAIN.item(&play, item, cost, true).await;
    }
    PLAIN.flag(&play).await;
    let refund = PLAIN.call("items, amount, remaining", "cancel_refund", ", 1");
    assert_eq!(play.show(&refund).await, "1|2|t");
    assert_eq!(play.show(&refund).await, "1|3|f");
    let listed = PLAIN.call("count(*)", "cancel_items", "");
    assert_eq!(play.show(&listed).await, "2");
    // A label that got another name means nothing any more, and is not taken for one that no item has.
    PLAIN.item(&play, "3", "4", true).await;
    play.show("alter type mark rename value 'open' to 'undecided'")
        .await;
    let anew = play.another().await;
    let refused = anew.code(&PLAIN.call("items", "cancel_refund", "")).await;
    assert_eq!(refused, "22P02");
    let refused = anew.code(&PLAIN.call("status", "cancel_finish", "")).await;
    assert_eq!(refused, "22P02");
    play.show("alter type mark rename value 'undecided' to 'open'")
        .await;
    assert_eq!(play.show(&refund).await, "1|4|f");
    PLAIN.end(&play).await;
}

/// A teardown of three items from beginning to end; `items` are literals in key order.
async fn whole(shape: &Shape, items: [&str; 3], costs: [&str; 3], refunded: &str) {
    let play = Playground::open().await;
    shape.build(&play).await;
    for (n, (item, cost)) in items.iter().zip(costs).enumerate() {
        shape.item(&play, item, cost, n != 1).await;
    }
    shape.flag(&play).await;
    let refund = shape.call(
        "items, amount, items_total, amount_total, remaining, pass",
        "cancel_refund",
        "",
    );
    let told = play.show(&refund).await;
    let told: Vec<&str> = told.split('|').collect();
    assert_eq!([told[0], told[2], told[4], told[5]], ["3", "3", "f", "1"]);
    for amount in [told[1], told[3]] {
        let same = format!("select {amount} = {refunded}");
        assert_eq!(play.show(&same).await, "t", "{amount}");
    }
    assert_eq!(shape.balance(&play).await, refunded);
    assert_eq!(shape.marks(&play).await, "it's back:3");
    let listed = play.show(&shape.call("item_id", "cancel_items", "")).await;
    let ids = items.map(|item| item.trim_matches('\''));
    assert_eq!(listed, ids.join("\n"));
    let rest = shape.call("item_id", "cancel_items", &format!(", '{}'", ids[0]));
    assert_eq!(play.show(&rest).await, ids[1..].join("\n"));
    let json = shape.call(
        "item ->> 'Mark', item ->> 'Id'",
        "cancel_items",
        ", max => 1",
    );
    assert_eq!(play.show(&json).await, format!("it's back|{}", ids[0]));
    shape.end(&play).await;
}

#[tokio::test]
async fn bigint_ids_go_by_number_and_numeric_money_keeps_its_scale() {
    whole(&PLAIN, ["9", "10", "11"], ["0.10", "100", "0.25"], "0.35").await;
}

#[tokio::test]
async fn uuid_ids_and_integer_money() {
    let shape = Shape {
        id: "uuid",
        item_id: "uuid",
        wallet_id: "uuid",
        amount: "integer",
        balance: "bigint",
        row: "11111111-2222-3333-4444-555555555555",
        wallet: "99999999-2222-3333-4444-555555555555",
    };
    let items = [
        "'00000000-0000-0000-0000-000000000001'",
        "'00000000-0000-0000-0000-00000000000a'",
        "'00000000-0000-0000-0000-0000000000ff'",
    ];
    whole(
        &shape,
        items,
        ["2147483647", "1", "2147483647"],
        "4294967294",
    )
    .await;
}

#[tokio::test]
async fn text_ids_in_odd_words_and_small_integers() {
    let shape = Shape {
        id: "text",
        item_id: "text",
        wallet_id: "integer",
        amount: "smallint",
        balance: "smallint",
        row: "a \"row\"\\ % of ''mine''",
        wallet: "7",
    };
    let play = Playground::open().await;
    shape.build(&play).await;
    shape.item(&play, "'x'' or true --'", "3", true).await;
    shape.item(&play, "''", "4", true).await;
    shape.flag(&play).await;
    play.ask(&shape.call("items, amount", "cancel_refund", ""))
        .is("2|7")
        .await;
    play.ask(&shape.call("item_id", "cancel_items", ", ''"))
        .is("x' or true --")
        .await;
    shape.end(&play).await;
}

#[tokio::test]
async fn numeric_money_of_a_declared_scale() {
    let shape = Shape {
        amount: "numeric(6,2)",
        balance: "numeric(9,3)",
        ..PLAIN
    };
    whole(
        &shape,
        ["1", "2", "3"],
        ["9999.99", "1", "0.01"],
        "10000.000",
    )
    .await;
}
