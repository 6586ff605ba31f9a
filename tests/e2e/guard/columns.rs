//! The guard compares the columns that it watches, wherever they stand in the row, whatever stands before them, and however
//! the table was altered since.

use crate::illegal;
use crate::playground::Playground;
use crate::world::define;

const JOB: &str = r#"{"machine": "job", "table": "job", "id": "id", "status": "status",
    "status_types": ["a", "b", "c"], "terminal": ["c"],
    "transitions": [{"from": ["a"], "to": "b"}, {"from": ["b"], "to": "a"}],
    "cancel": {"flag": "stop", "to": "c"}}"#;

/// A table with a job in status a, and the guard on it.
async fn guarded(columns: &str, id: &str) -> Playground {
    let play = Playground::open().await;
    play.show(&format!(
        "create type mood as enum ('a', 'b', 'c'); create domain step as text check (value in ('a', 'b', 'c'));
         create table job ({columns}, stop bool not null default false, note text);
         insert into job (id, status) values ({id}, 'a')"
    ))
    .await;
    define(&play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    play
}

/// Nothing, short, long, compressed, and out of line.
const VALUES: [&str; 5] = [
    "null",
    "'short'",
    "repeat('l', 126) || 'ong'",
    "repeat('compressed', 1000)",
    "(select string_agg(md5(i::text), '') from generate_series(1, 1000) i)",
];

/// A column takes all kinds of values, and nothing is changed along with it but what is declared.
async fn judge(play: &Playground, column: &str) {
    for value in VALUES {
        let set = format!("update job set {column} = {value}");
        assert_eq!(play.show(&format!("{set} returning 1")).await, "1");
        // The same again, by the bytes that the last one left.
        play.show(&set).await;
        for touched in ["status = 'c'", "stop = true", "status = 'c', stop = true"] {
            illegal(play, &format!("update job set {touched}")).await;
            illegal(play, &format!("{set}, {touched}")).await;
        }
        play.show(&format!("{set}, status = 'b'")).await;
        play.show(&set).await;
        assert_eq!(play.show("select status, stop from job").await, "b|f");
        play.show("update job set status = 'a'").await;
    }
}

#[tokio::test]
async fn whatever_stands_before_the_guarded_columns_each_change_of_theirs_is_judged() {
    let nine = "c1 int, c2 text, c3 smallint, c4 char, c5 numeric, c6 bool, c7 name, c8 text[], c9 interval";
    for (columns, id) in [
        (
            "first text, id bigint primary key, status text not null",
            "1",
        ),
        (
            "status mood not null, n smallint, first text, id text primary key",
            "'eins'",
        ),
        (
            "n smallint, first text, status varchar(20) not null, b bool, id uuid primary key",
            "'00000000-0000-0000-0000-000000000001'",
        ),
        (
            "b bool default true, first text, status step not null, id int primary key",
            "7",
        ),
        (
            &format!("{nine}, first text, id int primary key, status varchar(1) not null"),
            "7",
        ),
        (
            &format!(
                "id int primary key, {nine}, d1 \"char\" default 'x', first text, status text not null"
            ),
            "7",
        ),
    ] {
        let play = guarded(columns, id).await;
        for column in ["note", "first"] {
            judge(&play, column).await;
        }
        // Rows from before a column was there, and columns that are no more.
        play.show("alter table job add late text default 'late', add more int")
            .await;
        judge(&play, "late").await;
        play.show("alter table job drop late").await;
        judge(&play, "first").await;
        play.show("alter table job alter first set storage external")
            .await;
        judge(&play, "first").await;
        play.show("alter table job drop first").await;
        judge(&play, "note").await;
        play.show(
            "alter table job add status2 text not null default 'a'; alter table job drop status;
                   alter table job rename status2 to status",
        )
        .await;
        illegal(&play, "update job set status = 'c'").await;
        judge(&play, "note").await;
        play.show(
            "alter table job alter status type varchar(5); alter table job alter note type varchar",
        )
        .await;
        judge(&play, "note").await;
    }
}

/// Each partition has its columns in places of its own.
#[tokio::test]
async fn partitions_with_other_places_for_the_same_columns_are_told_apart() {
    let play = Playground::open().await;
    play.show(
        "create table job (id int, status text not null, stop bool not null default false, note text, first text)
             partition by range (id);
         create table low (gone int, first text, note text, stop bool not null default false, status text not null,
                           id int not null);
         alter table low drop gone;
         alter table job attach partition low for values from (0) to (10);
         create table high partition of job for values from (10) to (20);
         alter table job add primary key (id);
         insert into job (id, status) values (1, 'a'), (11, 'a')",
    )
    .await;
    define(&play, JOB).await;
    play.show("select once.machine_guard('job', true)").await;
    for value in VALUES {
        for column in ["note", "first"] {
            let set = format!("update job set {column} = {value}");
            play.show(&set).await;
            for (id, touched) in [(1, "status = 'c'"), (11, "stop = true"), (1, "stop = true")] {
                illegal(&play, &format!("{set}, {touched} where id = {id}")).await;
            }
        }
    }
    // From one to the other.
    illegal(&play, "update job set id = 12, status = 'c' where id = 1").await;
    play.show("update job set id = 12 where id = 1").await;
    illegal(&play, "update job set note = 'x', status = 'c'").await;
    play.ask("select id, status, stop from job order by id")
        .is("11|a|f\n12|a|f")
        .await;
}

/// Of what a guard looks at, the id stands last.
#[tokio::test]
async fn a_row_that_is_being_cancelled_keeps_an_id_that_stands_behind_everything_else() {
    let play = Playground::open().await;
    play.show(
        "create table job (status text not null, stop bool not null default false, first text, id bigint primary key,
                           note text);
         insert into job (id, status) values (1, 'a'), (2, 'a')",
    )
    .await;
    define(&play, JOB).await;
    play.show("select once.machine_guard('job', true); select once.cancel_request('job', '1')")
        .await;
    for value in VALUES {
        play.show(&format!("update job set first = {value}")).await;
        play.show("update job set note = 'x'").await;
        for set in ["id = 3", "id = 3, note = 'y'", "id = 3, first = 'z'"] {
            illegal(&play, &format!("update job set {set} where id = 1")).await;
        }
        // The other one's is nobody's business.
        play.show("update job set id = 4 where id = 2; update job set id = 2 where id = 4")
            .await;
    }
}

/// The rows were written before the column was there, and have less columns than the ones to be written.
#[tokio::test]
async fn a_status_that_is_younger_than_its_row_is_judged() {
    let play = Playground::open().await;
    play.show(
        "create table job (id bigint primary key, stop bool not null default false, first text);
         insert into job (id, first) values (1, null), (2, 'x');
         alter table job add status text default 'a', add note text",
    )
    .await;
    define(&play, JOB).await;
    play.show(
        "select once.machine_guard('job', true); insert into job (id) values (3);
         update job set note = 'x' where id = 3; update job set note = 'y' where id = 3",
    )
    .await;
    for id in [1, 2] {
        for touched in ["status = null", "status = 'c'", "stop = true"] {
            illegal(&play, &format!("update job set {touched} where id = {id}")).await;
        }
    }
    play.show("update job set note = 'z'").await;
    play.ask("select string_agg(status, '') from job")
        .is("aaa")
        .await;
}

/// What a session remembers of columns that it altered itself is gone with the alteration.
#[tokio::test]
async fn an_alteration_that_is_undone_leaves_the_columns_judged_as_they_are() {
    let columns = "c \"char\", x text, id bigint primary key, status text not null";
    let play = guarded(columns, "3").await;
    play.show("update job set x = '3', note = 'x'; update job set note = 'y'")
        .await;
    for change in [
        "alter x type uuid using '03000000-0000-0000-0300-000000000000'",
        "alter x type \"char\" using chr(4)::\"char\"",
        "alter x type int using 252",
        "drop x, add x text",
    ] {
        play.show(&format!(
            "begin; savepoint before; alter table job {change}; update job set note = 'x'; savepoint s"
        ))
        .await;
        for go_on in [
            "rollback to before; update job set note = 'z'; savepoint s",
            "rollback",
        ] {
            for touched in ["stop = true", "status = 'c'"] {
                illegal(&play, &format!("update job set {touched}")).await;
                play.show("rollback to s").await;
            }
            play.show(go_on).await;
        }
        illegal(&play, "update job set stop = true").await;
    }
}
