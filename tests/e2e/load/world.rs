//! The database of the mixed load: the user's own tables, a guarded machine over jobs, topics and scopes.

use super::door::{Door, Fault};

const JOBS: &str = include_str!("../../../sql/examples/batch_job.sql");
const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

/// Leases are short, so that what a killed client held comes back within seconds. Nothing ever dies of too many
/// attempts, but for what is frail: how often a server was killed says nothing about an event.
const PREPARE: &str = r#"
alter table batch_item add made_by bigint;
create table moved (job bigint not null, was text not null, became text not null);
create function note_move() returns trigger language plpgsql as $$
begin
    insert into public.moved values (old.id, old.status, new.status);
    return null;
end $$;
create trigger note_move after update of status on batch_job
    for each row when (old.status is distinct from new.status) execute function note_move();
create table ordered (key text not null, charge bigint not null, token bigint not null);
create table posted (n bigint not null, order_key text);
create table consumed (
    seq bigint generated always as identity, topic text not null, event text not null, order_key text,
    delivery_key text not null);
create table frail (n int primary key, order_key text, deaths int not null);
create table died (event_id bigint, token bigint, event text not null, primary key (event_id, token));
create table redriven (event_id bigint not null, event text, order_key text, kind text not null, attempts int not null);
create table by_hand (job bigint primary key, over boolean not null default false);
select once.scope_set('requests', '{"keep_request": true, "max_attempts": null, "recovery_points": ["paid", "ordered"]}');
select once.scope_set('brief', '{"gone_for": "0"}');
select once.topic_set('posts', '{"lanes": 4}'), once.topic_set('paid', '{}'), once.topic_set('undo', '{}'), once.topic_set('frail', '{"lanes": 2}');
select once.subscriber_set(t, 'default', '{"max_attempts": 100000, "backoff_base": "100 ms", "backoff_cap": "500 ms"}')
  from unnest(array['posts', 'paid', 'undo']) as t;
select once.subscriber_set('frail', 'default', '{"max_attempts": 2, "backoff_base": "50 ms", "backoff_cap": "50 ms"}');
"#;

/// Makes all of it in an empty database that has the extension.
pub async fn prepare(door: &Door) -> Result<(), Fault> {
    let session = door.enter().await;
    session.rows(JOBS).await?;
    session.rows(PREPARE).await?;
    let define = format!("select once.machine_define($m${MACHINE}$m$)");
    session.rows(&define).await?;
    session
        .rows("select once.machine_guard('batch_job', true)")
        .await?;
    Ok(())
}
