//! The worker over tables of an ordinary role: it acts as that role, one row that cannot be reverted keeps none of a
//! thousand others, and rows that a policy hides are told of and not taken for gone.

use crate::world::{JOBS, claim, launch, logged, show, until, until_logged};
use pg_once_tests::race::sqlstate;

/// What `JOBS` makes belongs to a role that is no superuser; a second table of the same shape does too.
const OWNED: &str = "
create role plain_owner login;
alter table job owner to plain_owner;
create table hidden (like job including all);
insert into hidden select g from generate_series(1, 3) as g;
alter table hidden owner to plain_owner;
select once.machine_define(jsonb_set(jsonb_set(once.machine_get('job')::jsonb, '{machine}', '\"hidden\"'), '{table}', '\"hidden\"')::json)";

/// One row of job is never reverted, and each reversal notes who made it.
const POISON: &str = "
create table log (who name);
alter table log owner to plain_owner;
create function spy() returns trigger language plpgsql as $$ begin
    if new.id = 500 then raise 'not this one'; end if;
    insert into public.log values (current_user);
    return new; end $$;
create trigger spy before update of status on job for each row
    when (new.status = 'ready') execute function spy()";

/// The owner sees every row but the first, and cannot turn that off.
const FORCED: &str = "
alter table hidden enable row level security;
alter table hidden force row level security;
create policy seen on hidden using (id > 1)";

/// What the worker has done, whether it failed at anything (as often as the leases say), and why.
const RUN: &str = "
select done, failed > 0, failed = (select sum(failures) from once.action_lease where machine = 'job' and state = 'h'),
       last_error, served_by
  from once.janitor where task = 'action_release' and machine = 'job'";

#[tokio::test]
async fn an_ordinary_owners_rows_are_released_but_one_that_fails_and_a_table_that_hides_rows_is_told_of()
 {
    let cluster = launch("a");
    let client = cluster.create_database_with_extension("a").await.unwrap();
    for sql in [JOBS, OWNED, POISON, FORCED] {
        show(&client, sql).await;
    }
    let more = "insert into job select g from generate_series(101, 1001) as g";
    show(&client, more).await;
    show(&client, "begin").await;
    claim(&client, 1, 1001, "1 us").await;
    let claimed = "select count(*) from generate_series(1, 3) as g,
        lateral once.action_claim('hidden', g::text, 'run', lease => '1 us') where outcome = 'claimed'";
    assert_eq!(show(&client, claimed).await, "3");
    show(&client, "commit").await;

    // The thousand, by their owner; the one is counted and deferred.
    let left = "select count(*), min(id) from job where status <> 'ready'";
    until(&client, left, "1|500").await;
    let done = "1000|t|t|not this one|pg_once janitor";
    assert_eq!(show(&client, RUN).await, done);
    let who = "select who, count(*) from log group by 1";
    assert_eq!(show(&client, who).await, "plain_owner|1000");
    let told =
        "select string_agg(problem, ';') from once.doctor() where problem like 'machine \"job\"%'";
    let deferred = "machine \"job\": 1 rows could not be reverted and are deferred";
    assert_eq!(show(&client, told).await, deferred);

    // The other table failed as a whole, is told of, and is as it was: no row of it counts as gone or as poison.
    let hides = "query would be affected by row-level security policy for table \"hidden\"";
    let failed =
        "select done, failed > 3, last_error from once.janitor_status() where machine = 'hidden'";
    until(&client, failed, &format!("0|t|{hides}")).await;
    let told = "select count(*) from once.doctor()
        where problem = 'the sweep task action_release fails for machine \"hidden\"' and detail like '%row-level%'";
    assert_eq!(show(&client, told).await, "1");
    let line = "pg_once janitor of \"a\": action_release: ";
    until_logged(&cluster, line).await;
    assert_eq!(logged(&cluster, line), 1);
    // A pass before the claims may have gone well.
    let never = "update once.janitor set good_end = null where machine = 'hidden'";
    show(&client, never).await;
    let uncovered = client.simple_query("select once.machine_assert()").await;
    assert_eq!(sqlstate(&uncovered), "ON004");
    let rows = "select count(*), sum(l.failures), string_agg(distinct t.status, '') from once.action_lease as l
        join hidden as t on t.id::text = l.row_id where l.machine = 'hidden' and l.state = 'h'";
    assert_eq!(show(&client, rows).await, "3|0|running");

    // Once nothing hides them the next pass has them all, and the one too.
    show(&client, "alter table hidden no force row level security").await;
    let status = "select string_agg(distinct status, '') from hidden";
    until(&client, status, "ready").await;
    let mend = "drop trigger spy on job;
        select once.action_expire('job', id) from once.action_list('job') where lease_left <= '0'";
    show(&client, mend).await;
    until(&client, left, "0|~").await;
    show(&client, "select once.machine_assert()").await;
}
