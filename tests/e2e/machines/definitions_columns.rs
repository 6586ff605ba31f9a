//! The machine's own table and its columns: what fits, and for each check a table or a definition that breaks
//! only it.

use crate::cases::{cases, define, each, faults, open, right, with};
use crate::playground::cluster;

#[tokio::test]
async fn a_column_that_is_not_there_is_one_fault() {
    let play = open().await;
    let columns = "
        id | id // status | status // version | version // cancel/flag | cancel.flag
        refund/account | refund.account";
    let table = r#"
        # {1}
        /{0} = "nope"
        ! {1}: public.job has no column "nope""#;
    each(&play, columns, table).await;
    let table = r#"
        # names are exact
        /status = "Status"
        ! status: public.job has no column "Status"
        # a system column is no column
        /version = "xmin"
        ! version: public.job has no column "xmin"
        # a dropped column is gone
        alter table job drop column version
        ! version: public.job has no column "version""#;
    cases(&play, table).await;
}

#[tokio::test]
async fn a_missing_table_is_one_fault_and_the_other_checks_still_run() {
    let play = open().await;
    let table = r#"
        # a name
        /table = "nope"
        ! table: there is no table "nope"
        # a qualified name
        /table = "no.pe"
        ! table: there is no table "no.pe"
        # of the items
        /refund/items = "nope"
        ! refund.items: there is no table "nope"
        # of the wallets
        /refund/wallet = "nope"
        ! refund.wallet: there is no table "nope""#;
    cases(&play, table).await;
    // Before 16 the server says that these are no names at all.
    for no_name in ["a b", "\"a", "a.b.c.d"] {
        let mut d = right();
        d["table"] = no_name.into();
        let found = faults(&play, no_name, &d).await;
        assert!(
            matches!(found.as_slice(), [only] if only.starts_with("table: ")),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn a_machine_is_over_an_ordinary_or_partitioned_table() {
    const BARE: &str = "
        /refund gone
        /cancel gone
        /version gone
        /transitions/0/when gone";
    let play = open().await;
    // A view has no index either.
    for setup in [
        "create view v as select * from job",
        "create sequence v",
        "create index v on job (n)",
    ] {
        play.show(&format!("begin; {setup}")).await;
        let over = with(&format!("/table = \"v\" {BARE}"));
        let found = faults(&play, setup, &over).await;
        let fault = "table: public.v is neither an ordinary nor a partitioned table";
        assert_eq!(found[0], fault, "{setup}: {found:#?}");
        play.show("rollback").await;
    }
    let table = r#"
        # a materialized view
        create materialized view v as select * from job; create unique index on v (id)
        /table = "v" BARE
        ! table: public.v is neither an ordinary nor a partitioned table
        ! id: column "id" must be NOT NULL
        # a system table
        /table = "once.scope" BARE
        /id = "scope"
        /status = "on_expiry"
        ! table: once.scope is a system table
        # a table with heirs
        create table heir () inherits (job)
        ! table: other tables inherit from public.job; its ids are not unique over them
        # a partitioned table
        create table v (like job including all) partition by hash (id);
        create table v0 partition of v for values with (modulus 1, remainder 0)
        /table = "v" BARE
        # an unlogged table
        create unlogged table v (like job including all)
        /table = "v" BARE"#;
    cases(&play, &table.replace("BARE", BARE)).await;
    play.show("begin; create temp table t (like job including all)")
        .await;
    let schema = "select nspname from pg_namespace where oid = pg_my_temp_schema()";
    let fault = format!("table: {}.t is a temporary table", play.show(schema).await);
    let over = with(&format!("/table = \"t\" {BARE}"));
    assert_eq!(faults(&play, "temporary", &over).await, [fault]);
    play.show("rollback").await;
}

#[tokio::test]
async fn a_rule_on_one_of_the_tables_is_refused_unless_it_is_disabled() {
    let play = open().await;
    let tables = "table | job // refund.items | item // refund.wallet | wallet";
    let table = r#"
        # enabled on {1}
        create rule keep as on delete to {1} do instead nothing
        ! {0}: public.{1} has the rule "keep": drop or disable it, or write a trigger instead
        # disabled on {1}
        create rule keep as on delete to {1} do instead nothing; alter table {1} disable rule keep"#;
    each(&play, tables, table).await;
}

#[tokio::test]
async fn an_id_may_be_of_every_type_with_one_canonical_text() {
    let play = open().await;
    play.show("create domain d_int as int; create domain d_d as d_int check (value > 0); create domain d_text as text")
        .await;
    let types = "
        smallint // int // bigint // uuid // text // varchar // varchar(40) // d_int // d_d // d_text
        text collate \"C\"";
    let fits = r#"
        # {0}
        create table t (like job); alter table t drop column id; alter table t add id {0} primary key
        /table = "t"
        /refund gone"#;
    each(&play, types, fits).await;
    let types = "
        numeric | numeric // char(8) | character(8) // timestamptz | timestamp with time zone // bytea | bytea
        oid | oid // int[] | integer[] // name | name // double precision | double precision";
    let fault = r#"
        ! id: column "id" is of type {1}; a key is an integer, uuid, text or varchar, or a domain over one of these"#;
    each(&play, types, &[fits, fault].concat()).await;
}

#[tokio::test]
async fn an_id_is_not_null_and_unique_by_itself() {
    let play = open().await;
    let indexes = "
        select // create index on t (id) // create unique index on t (id) where n > 0
        create unique index on t (id, n) // create unique index on t ((id + 0))
        create unique index on t (n) include (id) // alter table t add unique (id) deferrable
        create unique index i on t (id); update pg_index set indisvalid = false where indexrelid = 'i'::regclass
        create unique index i on t (id); update pg_index set indisready = false where indexrelid = 'i'::regclass";
    let fits = r#"
        # {0}
        create table t (like job); alter table t alter id set not null; {0}
        /table = "t"
        /refund gone"#;
    let fault = r#"
        ! id: column "id" needs a valid unique index on it alone, not partial and not deferrable"#;
    each(&play, indexes, &[fits, fault].concat()).await;
    let indexes = "
        create unique index on t (id) include (n) // alter table t add unique (id)
        alter table t add primary key (id) include (n, status) // create unique index on t (id desc)";
    each(&play, indexes, fits).await;
    let columns = r#"
        alter table t drop id; alter table t add id bigint generated always as identity not null primary key |
        alter table t drop id; alter table t add id bigint generated always as (n) stored not null primary key | ! id: column "id" is generated: the guard cannot see its new value
        alter table t alter id drop not null; create unique index on t (id) | ! id: column "id" must be NOT NULL"#;
    let table = r#"
        # {0}
        create table t (like job); {0}
        /table = "t"
        /refund gone
        {1}"#;
    each(&play, columns, table).await;
}

#[tokio::test]
async fn a_partitioned_table_is_unique_by_its_own_index() {
    let play = open().await;
    // The last is an index of the parent that its partitions do not have yet.
    let fault = r#"! id: column "id" needs a valid unique index on it alone, not partial and not deferrable"#;
    let indexes = "
        alter table t add primary key (id) |
        create unique index on t0 (id); create unique index on t10 (id) | FAULT
        create unique index i on only t (id) | FAULT"
        .replace("FAULT", fault);
    let table = r#"
        # {0}
        create table t (like job) partition by range (id);
        create table t0 partition of t for values from (0) to (100);
        create table t1 partition of t for values from (100) to (200) partition by hash (id);
        create table t10 partition of t1 for values with (modulus 1, remainder 0);
        {0}
        /table = "t"
        /refund gone
        {1}"#;
    each(&play, &indexes, table).await;
}

#[tokio::test]
async fn the_table_is_not_partitioned_by_what_is_written_at_any_level() {
    let table = r#"
        # by the status: an id that is unique over partitions by status cannot be; a table's own partition can
        create table above (like job) partition by list (status);
        create table t partition of above (primary key (id)) for values in ('new', 'ready')
        /table = "t"
        ! status: the table is partitioned by column "status"
        # by an expression of the status, two levels above
        create table above (like job) partition by list (lower(status));
        create table between partition of above for values in ('new') partition by hash (id);
        create table t partition of between (primary key (id)) for values with (modulus 1, remainder 0)
        /table = "t"
        ! status: the table is partitioned by column "status"
        # by the id
        create table t (like job, primary key (id)) partition by hash (id);
        create table below partition of t for values with (modulus 1, remainder 0)
        /table = "t"
        # by the flag
        create table above (like job) partition by list (cancelling);
        create table t partition of above (primary key (id)) for values in (false)
        /table = "t"
        ! cancel.flag: the table is partitioned by column "cancelling"
        # by the version
        create table above (like job) partition by range (version);
        create table t partition of above (primary key (id)) for values from (0) to (10)
        /table = "t"
        ! version: the table is partitioned by column "version""#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn a_partition_below_may_not_be_by_status_either() {
    let table = r#"
        # by status; no unique index over such a table is possible either
        create table t (like job) partition by hash (id);
        create table below partition of t for values with (modulus 1, remainder 0) partition by list (status)
        /table = "t"
        ! id: column "id" needs a valid unique index on it alone, not partial and not deferrable
        ! status: the table is partitioned by column "status""#;
    cases(&open().await, table).await;
}

#[tokio::test]
async fn every_status_fits_its_column() {
    let play = open().await;
    let types = r#"
        create type st as enum ('new', 'ready', 'running', 'done', 'failed', 'cancelled', 'more') | st
        create type st as enum ('new', 'ready', 'running', 'done', 'failed', 'cancelled'); create domain ds as st | ds
        create domain ds as text check (value ~ '^[a-z]+$') | ds // create domain ds as varchar(9) | ds
        select | varchar // select | varchar(9) // select | text collate "C""#;
    let fits = r#"
        # {0}, {1}
        {0}; alter table job alter status type {1} using status::{1}"#;
    each(&play, types, fits).await;
    let types = r#"
        create type st as enum ('new', 'ready', 'running', 'done', 'failed') | st | invalid input value for enum st: "cancelled"
        create type st as enum ('new', 'ready', 'running', 'done', 'failed'); create domain ds as st | ds | invalid input value for enum st: "cancelled"
        create domain ds as text check (value <> 'cancelled') | ds | value for domain ds violates check constraint "ds_check"
        create domain ds as varchar(8) | ds | it would be stored as "cancelle"
        select | varchar(8) | it would be stored as "cancelle""#;
    let fault = r#"
        ! status_types[5]: "cancelled" does not fit column "status": {2}"#;
    each(&play, types, &[fits, fault].concat()).await;
    let table = r#"
        # spaces at the end count
        alter table job alter status type varchar(9)
        /status_types/- = "new      x"
        ! status_types[6]: "new      x" does not fit column "status": it would be stored as "new      ""#;
    cases(&play, table).await;
}

#[tokio::test]
async fn a_status_column_has_a_usable_type_and_is_ours_to_set() {
    let play = open().await;
    let types = "int | integer // char(10) | character(10) // jsonb | jsonb // text[] | text[]";
    let table = r#"
        # {0}
        alter table job drop column status, add column status {0}
        ! status: column "status" is of type {1}; a status is a text, varchar or enum, or a domain over one of these"#;
    each(&play, types, table).await;
    let table = r#"
        # generated
        alter table job drop column status, add column status text generated always as ('new') stored
        ! status: column "status" is generated and cannot be set"#;
    cases(&play, table).await;
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
    let table = r#"
        # of the status
        create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        alter table job alter status type text collate anycase
        ! status: column "status" has a collation that is not deterministic
        # of the id
        create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
        create table t (like job); alter table t drop column id; alter table t add id text collate anycase primary key
        /table = "t"
        /refund gone
        ! id: column "id" has a collation that is not deterministic"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn version_and_flag_have_their_types() {
    let play = open().await;
    let table = r#"
        # a version of {0}
        alter table job alter version type {0} using version::{0}
        ! version: column "version" is of type {0}; it must be bigint"#;
    each(&play, "integer // text // numeric", table).await;
    let table = r#"
        # a version {0}
        alter table job drop column version, add column version bigint {0} not null
        ! version: column "version" is generated and cannot be set"#;
    let generated = "generated always as (id) stored // generated always as identity";
    each(&play, generated, table).await;
    let table = r#"
        # a version that may be null
        alter table job alter version drop not null
        ! version: column "version" must be NOT NULL
        # a flag of text
        alter table job alter cancelling type text
        ! cancel.flag: column "cancelling" is of type text; it must be boolean
        # a flag that may be null
        alter table job alter cancelling drop not null
        ! cancel.flag: column "cancelling" must be NOT NULL
        # domains
        create domain counted as bigint; alter table job alter version type counted;
        create domain flagged as boolean; alter table job alter cancelling type flagged"#;
    cases(&play, table).await;
}

#[tokio::test]
async fn a_column_has_one_part_to_play() {
    let play = open().await;
    let columns = "
        status | status | id // version | version | id // version | version | status
        cancel/flag | cancel.flag | version";
    let table = r#"
        # {2} as {1}
        /{0} = "{2}"
        ! {1}: column "{2}" is the column of {2} already"#;
    each(&play, columns, table).await;
}

#[tokio::test]
async fn one_machine_for_a_table_and_its_status_column() {
    let play = open().await;
    play.show(&define(&right())).await;
    let table = r#"
        # of another name
        /machine = "n"
        ! table: machine "m" has public.job and its column "status" already
        # over another status column of the same table
        /machine = "n"
        /status = "note""#;
    cases(&play, table).await;
    play.show("select once.machine_drop('m')").await;
    cases(&play, "# of another name\n/machine = \"n\"").await;
}
