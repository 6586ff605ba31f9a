//! A move's condition is asked of the row as it was, also by a guard after the row: where the condition may look at the
//! table, the guard is before the row, and to know that runs nothing.

use crate::playground::Playground;
use crate::waiting::Waiting;
use crate::world::{define, role};
use crate::{guarded, illegal};

/// When the guard of the bills judges.
const TIME: &str = "
select action_timing from information_schema.triggers
 where event_object_table = 'bill' and event_manipulation = 'UPDATE'";

/// A machine over bills, with a condition for the move from new to open.
const BILL: &str = r#"{"machine": "bill", "table": "bill", "id": "id", "status": "status",
    "status_types": ["new", "open", "done"], "terminal": ["done"],
    "transitions": [{"from": ["new"], "to": "open", "when": "WHEN"}, {"from": ["open"], "to": "done"}]}"#;

async fn bills(play: &Playground, when: &str) {
    define(play, &BILL.replace("WHEN", when)).await;
}

/// A condition may call a function that looks at the table, and is asked of the row as it was.
#[tokio::test]
async fn a_condition_that_may_look_at_the_table_is_asked_before_the_row_is_written() {
    let play = Playground::open().await;
    play.show(
        "create table bill (id int primary key, customer int not null default 7, status text not null default 'new');
         insert into bill select generate_series(1, 3);
         create function open_of(c int, d date default current_date) returns bigint language sql stable
             as 'select count(*) from public.bill where customer = c and status = ''open'''",
    )
    .await;
    bills(&play, "public.open_of(customer) = 0").await;
    play.show("select once.machine_guard('bill', true)").await;
    assert_eq!(play.show(TIME).await, "BEFORE");
    let open =
        |id: u8| format!("select moved, reason from once.transition('bill', '{id}', 'open')");
    let by_hand = |id: u8| format!("update bill set status = 'open' where id = {id}");
    assert_eq!(play.show(&open(1)).await, "t|~");
    assert_eq!(play.show(&open(2)).await, "f|guard");
    assert_eq!(play.code(&by_hand(2)).await, "ON002");
    play.show("update bill set status = 'done' where id = 1")
        .await;
    // One that is to find itself open finds none.
    bills(&play, "public.open_of(customer) > 0").await;
    assert_eq!(play.show(&open(2)).await, "f|guard");
    assert_eq!(play.code(&by_hand(2)).await, "ON002");
    // A guard that serves stays; put on anew it judges as late as it can.
    bills(&play, "customer > 0 and length(status) = 3").await;
    assert_eq!(play.show(TIME).await, "BEFORE");
    play.show("select once.machine_guard('bill', true)").await;
    assert_eq!(play.show(TIME).await, "AFTER");
    assert_eq!(play.show(&open(2)).await, "t|~");
    bills(&play, "public.open_of(customer) = 0").await;
    assert_eq!(play.show(TIME).await, "BEFORE");
    assert_eq!(play.code(&by_hand(3)).await, "ON002");
    assert_eq!(
        play.show("select * from once.machine_check('bill')").await,
        ""
    );
}

/// Each on a machine whose guard is put on with it.
#[tokio::test]
async fn conditions_that_name_something_of_the_users_may_look_at_the_table() {
    let play = Playground::open().await;
    play.show(
        "create type pair as (a int, b int); create type mood as enum ('sad', 'ok');
         create domain positive as int check (value > 0);
         create function look(n int) returns boolean language sql immutable as 'select true';
         create function look(n int, m int) returns boolean language sql immutable as 'select true';
         create operator =~ (function = look, leftarg = int, rightarg = int);
         create function of_mood(mood) returns int language sql stable as 'select 1';
         create cast (mood as int) with function of_mood(mood);
         create table bill (id int primary key, status text not null default 'new', n int, note text, short varchar(5),
            at timestamptz, doc jsonb, amount numeric, list int[], two pair, kind mood, size positive)",
    )
    .await;
    for (when, time) in [
        ("n >= 0", "AFTER"),
        (
            "n between 1 and 3 or n in (1, 2) or n not in (7, 8)",
            "AFTER",
        ),
        (
            "note like 'a%' or note similar to 'a' or note ~ '^a'",
            "AFTER",
        ),
        ("note is distinct from short", "AFTER"),
        (
            "at < now() - interval '1 day' and at::date < current_date",
            "AFTER",
        ),
        ("extract(year from at at time zone 'UTC') > 2000", "AFTER"),
        ("n = any (list) and list[1] = 1", "AFTER"),
        ("doc ->> 'public.look' = 'x'", "AFTER"),
        (
            "coalesce(n, 0) > 0 and greatest(n, 1) > 0 and upper(note) = current_user",
            "AFTER",
        ),
        ("case n when 1 then amount::int > 0 else false end", "AFTER"),
        (r#"note collate \"C\" < 'a'"#, "AFTER"),
        ("public.look(n)", "BEFORE"),
        ("n operator(public.=~) 1", "BEFORE"),
        ("n::public.positive is not null", "BEFORE"),
        ("'{5}'::public.positive[] is not null", "BEFORE"),
        ("size > 0", "BEFORE"),
        ("kind = 'ok'", "BEFORE"),
        ("kind::int = 1", "BEFORE"),
        ("(two).a > 0", "BEFORE"),
        (
            "length(table_to_xml('public.bill', true, true, '')::text) > 0",
            "BEFORE",
        ),
    ] {
        bills(&play, when).await;
        play.show("select once.machine_guard('bill', true)").await;
        assert_eq!(play.show(TIME).await, time, "{when}");
    }
}

/// A defect once, found before it was released: a condition was planned to see what it calls.
#[tokio::test]
async fn who_puts_a_guard_on_runs_nothing_of_the_tables_owner() {
    let play = Playground::open().await;
    role(&play, "guard_evil", "operate").await;
    play.show("create schema evil authorization guard_evil")
        .await;
    let evil = play.another_as("guard_evil").await;
    evil.show(
        "create function evil.note() returns void language plpgsql as
            $$ begin perform set_config('evil.ran_as', current_user, false); end $$;
         create function evil.f(n int) returns boolean language plpgsql immutable as
            $$ begin perform evil.note(); return true; end $$;
         create domain evil.checked as int check (evil.f(value));
         create table evil.bill (id int primary key, customer int, status text not null default 'new')",
    )
    .await;
    let ran = "select coalesce(current_setting('evil.ran_as', true), '')";
    for when in [
        "evil.f(1) and customer > 0",
        "'{5}'::evil.checked[] is not null",
    ] {
        let definition = BILL.replace(r#""table": "bill""#, r#""table": "evil.bill""#);
        define(&evil, &definition.replace("WHEN", when)).await;
        let dba = play
            .another_directly("postgres", "its settings are looked at")
            .await;
        for enabled in [true, false, true] {
            dba.show(&format!("select once.machine_guard('bill', {enabled})"))
                .await;
        }
        assert_eq!(dba.show(ran).await, "", "{when}");
        evil.show("select once.machine_drop('bill')").await;
    }
}

#[tokio::test]
async fn a_condition_that_may_look_moves_no_guard_but_the_tables_own() {
    let play = guarded().await;
    role(&play, "guard_half", "operate").await;
    play.show(
        "alter table job owner to guard_half; grant select on item, wallet to guard_half;
         create function look(n int) returns boolean language sql immutable as 'select true';
         update once.machine set owner = null",
    )
    .await;
    let items = "select string_agg(oid::text, ' ') from pg_trigger where tgfoid = 'once.machine_guard_item'::regproc";
    let before = play.show(items).await;
    let half = play.another_as("guard_half").await;
    let looks = crate::world::JOB.replace("n >= 0", "public.look(n)");
    define(&half, &looks).await;
    assert_eq!(play.show(items).await, before);
    let own = "select tgname from pg_trigger where tgfoid = 'once.machine_guard_row'::regproc";
    assert_eq!(play.show(own).await, "~pg_once_job");
    assert_eq!(
        half.code("select once.machine_guard('job', true)").await,
        "42501",
        "the items are somebody else's"
    );
    play.show("alter table job owner to postgres").await;
}

#[tokio::test]
async fn a_guard_that_waits_for_its_table_to_become_a_partition_is_before_the_row() {
    let play = guarded().await;
    play.show("create table every_job (like job including all) partition by range (id)")
        .await;
    let other = play.another().await;
    other
        .show("begin; alter table every_job attach partition job for values from (0) to (100)")
        .await;
    let put_on = "select once.machine_guard('job', true)";
    let waiting = Waiting::begin(&play, play.another().await, put_on).await;
    other.show("commit").await;
    waiting.end().await.1.unwrap();
    play.show("select once.sweep()").await;
    assert_eq!(
        play.show("select * from once.machine_check('job')").await,
        ""
    );
    play.show("insert into job (id) values (1)").await;
    illegal(&play, "update job set status = 'done'").await;
}

#[tokio::test]
async fn a_guard_of_another_name_is_found() {
    let play = guarded().await;
    let rename = "alter trigger \"!pg_once_job\" on job rename to mine";
    let guards = "select count(*) from pg_trigger where tgfoid::regproc::text like 'once.%'";
    play.show(rename).await;
    play.show("select once.machine_guard('job', true)").await;
    assert_eq!(play.show(guards).await, "2");
    // A definition puts one of the right name there.
    play.show(rename).await;
    define(&play, &crate::world::JOB.replace("n >= 0", "n >= -1")).await;
    let own = "select tgname from pg_trigger where tgfoid = 'once.machine_guard_row'::regproc";
    assert_eq!(play.show(own).await, "!pg_once_job");
    play.show(rename).await;
    play.show("select once.machine_drop('job')").await;
    assert_eq!(play.show(guards).await, "0");
}

/// A statement looks a name up again when it has waited for the lock of the table.
#[tokio::test]
async fn a_table_that_takes_the_name_while_a_guard_waits_gets_none_and_loses_none() {
    let play = Playground::open().await;
    play.show("create schema one; create schema two; create schema three")
        .await;
    for schema in ["one", "two"] {
        play.show(&format!(
            "create table {schema}.bill (id int primary key, status text not null)"
        ))
        .await;
        let definition = BILL.replace("WHEN", "id > 0");
        let definition =
            definition.replace(r#""machine": "bill""#, &format!(r#""machine": "{schema}""#));
        define(
            &play,
            &definition.replace(
                r#""table": "bill""#,
                &format!(r#""table": "{schema}.bill""#),
            ),
        )
        .await;
    }
    play.show("select once.machine_guard('two', true)").await;
    let guards = "select tgrelid, tgname from pg_trigger where tgfoid::regproc::text like 'once.%' order by 1, 2";
    for enabled in [true, false] {
        let before = play.show(guards).await;
        let swapping = play.another().await;
        swapping
            .show("begin; lock table one.bill in access exclusive mode")
            .await;
        let call = format!("select once.machine_guard('one', {enabled})");
        let waiting = Waiting::begin(&play, play.another().await, &call).await;
        swapping
            .show("alter schema one rename to three_; alter schema two rename to one; commit")
            .await;
        let (session, answer) = waiting.end().await;
        assert_eq!(crate::waiting::code(&answer), "40001", "{enabled}");
        assert_eq!(play.show(guards).await, before);
        session.show(&call).await;
        play.show("alter schema one rename to two; alter schema three_ rename to one")
            .await;
    }
}

/// Each has the table for reading, and one has to put a guard on.
#[tokio::test]
async fn definitions_of_two_machines_of_one_table_take_turns() {
    let play = Playground::open().await;
    play.show(
        "create table bill (id int primary key, status text not null, other text not null);
         create function look(n int) returns boolean language sql stable as 'select true'",
    )
    .await;
    let second = |when: &str| {
        BILL.replace("WHEN", when)
            .replace(r#""machine": "bill""#, r#""machine": "second""#)
            .replace(r#""status": "status""#, r#""status": "other""#)
    };
    bills(&play, "id > 0").await;
    define(&play, &second("id > 0")).await;
    play.show("select once.machine_guard('bill', true); select once.machine_guard('second', true)")
        .await;
    let other = play.another().await;
    other.show("begin").await;
    define(&other, &second("id > 1")).await;
    let looks = format!(
        "select once.machine_define($def${}$def$)",
        BILL.replace("WHEN", "public.look(id)")
    );
    let waiting = Waiting::begin(&play, play.another().await, &looks).await;
    define(&other, &second("public.look(id)")).await;
    other.show("commit").await;
    waiting.end().await.1.unwrap();
    assert_eq!(play.show(TIME).await, "BEFORE\nBEFORE", "of both machines");
}
