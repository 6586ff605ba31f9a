//! The tables of a refund: for each check a definition or a table that breaks only it.

use crate::cases::{cases, each, faults, open, with};

#[tokio::test]
async fn a_column_of_items_or_wallets_that_is_not_there_is_one_fault() {
    let columns = "
        item_id | item // subject | item // marker | item // amount | item // account | job
        wallet_id | wallet // balance | wallet";
    let table = r#"
        # {0}
        /refund/{0} = "nope"
        ! refund.{0}: public.{1} has no column "nope""#;
    each(&open().await, columns, table).await;
}

#[tokio::test]
async fn items_and_wallets_are_tables_of_their_own() {
    let play = open().await;
    let table = r#"
        # items of a materialized view
        create materialized view v as select * from item; create unique index on v (id)
        /refund/items = "v"
        ! refund.items: public.v is neither an ordinary nor a partitioned table
        ! refund.item_id: column "id" must be NOT NULL
        # items of the machine's table
        alter table job add settled text, add points bigint, add state text, add job_id bigint
        /refund/items = "job"
        ! refund.items: is the machine's own table
        # wallets of the machine's table
        alter table job add settled text, add points bigint, add state text, add job_id bigint
        /refund/wallet = "job"
        /refund/wallet_id = "id"
        /refund/account = "n"
        /refund/balance = "points"
        ! refund.wallet: is the machine's own table
        # wallets of the items' table
        /refund/wallet = "item"
        /refund/wallet_id = "id"
        /refund/account = "n"
        ! refund.wallet: is the table of the items"#;
    cases(&play, table).await;
    play.show("begin; create temp table i (like item including all)")
        .await;
    let schema = "select nspname from pg_namespace where oid = pg_my_temp_schema()";
    let schema = play.show(schema).await;
    let fault = format!("refund.items: {schema}.i is a temporary table");
    let over = with("/refund/items = \"i\"");
    assert_eq!(faults(&play, "temporary", &over).await, [fault]);
    play.show("rollback").await;
}

#[tokio::test]
async fn items_and_wallets_have_keys_like_a_machine_s_id() {
    let table = r#"
        # an item without an index
        alter table item drop constraint item_pkey
        ! refund.item_id: column "id" needs a valid unique index on it alone, not partial and not deferrable
        # a wallet with a partial one
        alter table wallet drop constraint wallet_pkey; alter table wallet alter customer set not null;
        create unique index on wallet (customer) where points > 0
        ! refund.wallet_id: column "customer" needs a valid unique index on it alone, not partial and not deferrable
        # an item that may be null
        alter table item drop constraint item_pkey; alter table item alter id drop not null; create unique index on item (id)
        ! refund.item_id: column "id" must be NOT NULL
        # an item of numeric
        alter table item alter id type numeric
        ! refund.item_id: column "id" is of type numeric; a key is an integer, uuid, text or varchar, or a domain over one of these"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn columns_that_hold_a_key_have_a_type_of_its_kind() {
    let table = r#"
        # the subject of text
        alter table item alter job_id type text
        ! refund.subject: column "job_id" is of type text, which cannot hold the id of type bigint
        # the account of uuid
        alter table job drop column customer, add customer uuid
        ! refund.account: column "customer" is of type uuid, which cannot hold the refund.wallet_id of type text
        # the account of timestamptz
        alter table job drop column customer, add customer timestamptz
        ! refund.account: column "customer" is of type timestamp with time zone, which cannot hold the refund.wallet_id of type text
        # the subject of integer
        alter table item alter job_id type integer
        # the subject of smallint
        alter table item alter job_id type smallint
        # the account of varchar(20)
        alter table job alter customer type varchar(20)
        # the account of a domain
        create domain customer_name as text; alter table job alter customer type customer_name"#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_refund_s_column_has_one_part_to_play() {
    let columns = "
        subject | id | item_id // marker | id | item_id // marker | job_id | subject
        marker | points | amount // balance | customer | wallet_id";
    // The marker's other faults would be of its value.
    let table = r#"
        # {1} as {0}
        /refund/{0} = "{1}"
        /refund/marked = "1"
        ! refund.{0}: column "{1}" is the column of refund.{2} already"#;
    each(&open().await, columns, table).await;
}

#[tokio::test]
async fn the_marker_can_hold_its_two_values_and_tells_them_apart() {
    let play = open().await;
    let types = r#"
        select | text | "returned" | "open" // select | boolean not null | true | false
        select | int not null | 1 | "0" // select | numeric(4, 2) | 1.25 | null // select | timestamptz | "epoch" | null
        create type mark as enum ('returned', 'kept') | mark | "returned" | null"#;
    let fits = r#"
        # {2} and {3} in {1}
        {0}; alter table item drop column settled, add column settled {1}
        /refund/marked = {2}
        /refund/undecided = {3}"#;
    each(&play, types, fits).await;
    let types = r#"
        select | boolean | "returned" | null | marked: "returned" does not fit column "settled": invalid input syntax for type boolean: "returned"
        select | int | "returned" | null | marked: "returned" does not fit column "settled": invalid input syntax for type integer: "returned"
        select | varchar(4) | "returned" | null | marked: "returned" does not fit column "settled": it would be another value there
        select | char(4) | "returned" | null | marked: "returned" does not fit column "settled": it would be another value there
        create type mark as enum ('back') | mark | "returned" | null | marked: "returned" does not fit column "settled": invalid input value for enum mark: "returned"
        create domain mark as text check (value = 'back') | mark | "returned" | null | marked: "returned" does not fit column "settled": value for domain mark violates check constraint "mark_check"
        select | json | 1 | null | marked: "1" does not fit column "settled": could not identify an equality operator for type json
        select | boolean | true | "maybe" | undecided: "maybe" does not fit column "settled": invalid input syntax for type boolean: "maybe"
        select | text | "returned" | "returned" | undecided: is the same value as marked, "returned"
        select | numeric | "1.0" | 1 | undecided: is the same value as marked, "1.0"
        select | boolean | true | "on" | undecided: is the same value as marked, "true"
        select | text not null | "returned" | null | undecided: NULL means undecided, but column "settled" is NOT NULL
        select | text generated always as ('returned') stored | "returned" | null | marker: column "settled" is generated and cannot be set"#;
    let fault = "
        ! refund.{4}";
    each(&play, types, &[fits, fault].concat()).await;
    let table = r#"
        # undecided left out
        alter table item drop column settled, add column settled text not null
        ! refund.undecided: NULL means undecided, but column "settled" is NOT NULL
        # partitioned by the marker
        create table above (like item) partition by list (settled);
        create table i partition of above (primary key (id)) for values in (null, 'returned')
        /refund/items = "i"
        ! refund.marker: the table is partitioned by column "settled""#;
    cases(&play, table).await;
}

#[tokio::test]
async fn amounts_and_balances_are_counted_exactly() {
    let play = open().await;
    let table = r#"
        # an amount of {0}
        alter table item drop column points, add column points {0}
        ! refund.amount: column "points" is of type {0}; amounts and balances are integer or numeric
        # a balance of {0}
        alter table wallet drop column points, add column points {0}
        ! refund.balance: column "points" is of type {0}; amounts and balances are integer or numeric"#;
    each(&play, "real // double precision // money // text", table).await;
    let table = r#"
        # a generated balance
        alter table wallet drop column points, add column points bigint generated always as (1) stored
        ! refund.balance: column "points" is generated and cannot be set"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn what_the_guard_judges_of_an_item_is_not_generated() {
    let columns = "
        refund.amount | points | bigint generated always as (n * 10) stored
        refund.subject | job_id | bigint generated always as (id / 10) stored
        refund.when | state | text generated always as ('ok') stored";
    let table = r#"
        # {0}
        alter table item add n int; alter table item drop column {1}, add column {1} {2}
        ! {0}: column "{1}" is generated: the guard cannot see its new value"#;
    each(&open().await, columns, table).await;
}

#[tokio::test]
async fn a_balance_holds_every_amount_exactly() {
    let play = open().await;
    play.show("create domain cents as numeric(12, 2); create domain points as int")
        .await;
    let types = "
        smallint | smallint // smallint | int // int | bigint // points | int // int | numeric // bigint | numeric(30)
        int | numeric(12, 2) // numeric | numeric // numeric(9, 2) | numeric // numeric(9, 2) | numeric(9, 2)
        numeric(9, 2) | cents // cents | numeric(20, 4) // numeric(4) | smallint // numeric(9) | int
        numeric(18) | bigint // numeric(5, -2) | int // numeric(5, -2) | numeric(7, 0)";
    let fits = "
        # {0} in {1}
        alter table item alter points type {0}; alter table wallet alter points type {1}";
    each(&play, types, fits).await;
    let types = "
        bigint | integer // integer | smallint // bigint | public.points // numeric | bigint
        numeric | numeric(30,2) // numeric(9,2) | bigint // numeric(9,2) | numeric(9,1)
        public.cents | numeric(11,2) // numeric(5,0) | smallint // numeric(10,0) | integer
        numeric(19,0) | bigint // numeric(8,-2) | integer // integer | numeric(9,-2)";
    let fault = r#"
        ! refund.balance: column "points" of type {1} cannot hold every "points" of type {0}"#;
    each(&play, types, &[fits, fault].concat()).await;
}

#[tokio::test]
async fn the_predicate_does_not_name_the_marker() {
    let play = open().await;
    let predicates = "
        settled is null // state = 'ok' and coalesce(settled, '') <> 'x' // item.settled is null";
    let table = r#"
        # {0}
        /refund/when = "{0}"
        ! refund.when: names the marker "settled", which refund itself changes"#;
    each(&play, predicates, table).await;
    let table = r#"
        # a column of another table
        /refund/when = "n > 0"
        ! refund.when: column "n" does not exist
        # no boolean
        /refund/when = "points"
        ! refund.when: argument of when must be type boolean, not type bigint"#;
    cases(&play, table).await;
}
