//! A move of a plain table goes without the executor; whatever the table has of its own still counts, also
//! when it gets it between two moves of one session.
//!
//! Each test moves once on the plain table first, so that what is kept of it is there to become wrong.

use crate::playground::Playground;
use crate::world::{define, job, jobs, moves, transition, world};

/// Jobs 1 to 9, ready, in a table that was plain at the first move, and then altered.
pub async fn altered(sql: &str) -> Playground {
    let play = world().await;
    jobs(&play, 1, 9, "ready").await;
    assert_eq!(moves(&play, "9", "new", "").await, "t|new|1|~");
    play.show(sql).await;
    play
}

#[tokio::test]
async fn a_foreign_key_of_the_status_is_kept() {
    let play = altered(
        "create table known (status text primary key); insert into known values ('ready'), ('new');
         alter table job add foreign key (status) references known",
    )
    .await;
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|1|~");
    assert_eq!(play.code(&transition("2", "failed", "")).await, "23503");
    assert_eq!(job(&play, 2).await, "ready|0");
}

#[tokio::test]
async fn a_key_that_others_refer_to_by_version_is_kept() {
    let play = altered(
        "alter table job add unique (id, version);
         create table follower (id bigint, version bigint, foreign key (id, version) references job (id, version));
         insert into follower values (2, 0)",
    )
    .await;
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|1|~");
    assert_eq!(play.code(&transition("2", "new", "")).await, "23503");
}

#[tokio::test]
async fn foreign_keys_of_other_columns_are_in_nobodys_way() {
    let play = altered(
        "alter table item add foreign key (job_id) references job;
         alter table job add foreign key (customer) references wallet;
         insert into item (id, job_id) values (1, 1)",
    )
    .await;
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|1|~");
    assert_eq!(play.code("delete from job where id = 1").await, "23503");
    assert_eq!(
        play.code("insert into item (id, job_id) values (2, 77)")
            .await,
        "23503"
    );
}

#[tokio::test]
async fn columns_made_of_the_status_follow_it() {
    let play =
        altered("alter table job add loud text generated always as (upper(status)) stored").await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    assert_eq!(
        play.show("select loud from job where id = 1").await,
        "FAILED"
    );
}

#[tokio::test]
async fn triggers_fire() {
    for timing in ["before", "after"] {
        let play = altered(&format!(
            "create table seen (id bigint, was text, becomes text);
             create function see() returns trigger language plpgsql as
             $$begin insert into seen values (new.id, old.status, new.status); return new; end$$;
             create trigger see {timing} update of status on job for each row execute function see()"
        ))
        .await;
        assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
        assert_eq!(play.show("select * from seen").await, "1|ready|failed");
    }
    let play = altered(
        "create table seen (n bigint);
         create function see() returns trigger language plpgsql as
         $$begin insert into seen select count(*) from old_rows; return null; end$$;
         create trigger see after update on job referencing old table as old_rows
            for each statement execute function see()",
    )
    .await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    assert_eq!(play.show("select n from seen").await, "1");
}

#[tokio::test]
async fn row_security_and_rights_count_from_the_next_move_on() {
    let play = altered(
        "drop role if exists plain_clerk; create role plain_clerk login;
         grant select, update on job to plain_clerk; select once.grant_role('plain_clerk', 'use')",
    )
    .await;
    let clerk = play.another_as("plain_clerk").await;
    assert_eq!(moves(&clerk, "1", "new", "").await, "t|new|1|~");
    play.show(
        "create policy odd on job using (id % 2 = 1); alter table job enable row level security",
    )
    .await;
    assert_eq!(moves(&clerk, "2", "new", "").await, "f|~|~|not_found");
    assert_eq!(moves(&clerk, "3", "new", "").await, "t|new|1|~");
    play.show("alter table job disable row level security; revoke update on job from plain_clerk")
        .await;
    assert_eq!(clerk.code(&transition("5", "new", "")).await, "42501");
    play.show("grant update (status, version) on job to plain_clerk")
        .await;
    assert_eq!(moves(&clerk, "5", "new", "").await, "t|new|1|~");
    drop(clerk);
    play.show(
        "drop owned by plain_clerk; select once.revoke_role('plain_clerk', 'use'); drop role plain_clerk",
    )
    .await;
}

#[tokio::test]
async fn indexes_on_what_is_written_find_the_row() {
    let play = altered(
        "create index job_status on job (status); create index job_upper on job (upper(status));
         create index job_new on job (id) where status = 'failed'; create index job_brin on job using brin (version)",
    )
    .await;
    for id in ["1", "2", "3"] {
        assert_eq!(moves(&play, id, "failed", "").await, "t|failed|1|~");
    }
    play.show("set enable_seqscan = off").await;
    for condition in ["status = 'failed'", "upper(status) = 'FAILED'"] {
        let found =
            format!("select string_agg(id::text, ',' order by id) from job where {condition}");
        assert_eq!(play.show(&found).await, "1,2,3", "{condition}");
    }
    let ready = "select count(*) from job where status = 'ready'";
    assert_eq!(play.show(ready).await, "5");
}

#[tokio::test]
async fn unique_and_exclusion_constraints_over_the_status_hold() {
    let play =
        altered("create unique index one_failure on job (customer) where status = 'failed'").await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    assert_eq!(play.code(&transition("2", "failed", "")).await, "23505");
    assert_eq!(job(&play, 2).await, "ready|0");
    for deferred in ["", "deferrable initially deferred"] {
        let play = altered(&format!(
            "alter table job add constraint one exclude (customer with =) where (status = 'failed') {deferred}"
        ))
        .await;
        assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
        assert_eq!(play.code(&transition("2", "failed", "")).await, "23P01");
        assert_eq!(job(&play, 2).await, "ready|0");
    }
}

#[tokio::test]
async fn other_columns_keep_their_values_dropped_added_and_long_ones_too() {
    let play = altered(
        "alter table job drop at; alter table job add late text not null default 'there before it was';
         alter table job alter note set storage external;
         update job set note = repeat('long ', 10000), doc = '{\"a\": 1}', list = '{1,null}', short = 'abcde'",
    )
    .await;
    let rest =
        "select md5(note), doc, list, short, late, customer, n, amount from job where id = 1";
    let before = play.show(rest).await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|2|~");
    assert_eq!(play.show(rest).await, before);
    assert_eq!(
        play.show(
            "select attname from pg_attribute where attrelid = 'job'::regclass and attisdropped"
        )
        .await,
        "........pg.dropped.9........"
    );
}

#[tokio::test]
async fn a_published_table_without_an_identity_refuses_as_any_update_does() {
    let play = altered(
        "alter table job replica identity nothing; create publication everything for table job",
    )
    .await;
    let update = play.refused("update job set n = 1").await;
    let refusal = play.refused(&transition("1", "new", "")).await;
    assert_eq!(
        (refusal.code, refusal.message),
        (update.code, update.message)
    );
}

#[tokio::test]
async fn a_version_is_asked_for_and_a_flag_stops() {
    let play = altered("update job set cancel_requested = true where id = 2").await;
    let at = |version: u32| format!(", version => {version}");
    assert_eq!(moves(&play, "1", "new", &at(5)).await, "f|ready|0|version");
    assert_eq!(moves(&play, "1", "new", &at(0)).await, "t|new|1|~");
    assert_eq!(moves(&play, "1", "new", &at(1)).await, "f|new|1|status");
    assert_eq!(moves(&play, "2", "new", "").await, "f|ready|0|cancelling");
    assert_eq!(moves(&play, "77", "new", "").await, "f|~|~|not_found");
    play.show("update job set version = 9223372036854775807 where id = 3")
        .await;
    assert_eq!(play.code(&transition("3", "new", "")).await, "22003");
}

#[tokio::test]
async fn a_status_with_a_length_or_of_a_domain_is_what_the_table_makes_of_it() {
    for (kind, code) in [("varchar(5)", "22001"), ("brief", "23514")] {
        let play = world().await;
        play.show(&format!(
            "create domain brief as text check (length(value) < 6);
             create table post (id bigint primary key, status {kind} not null, version bigint not null default 0);
             insert into post values (1, 'new'), (2, 'new')"
        ))
        .await;
        define(
            &play,
            r#"{"machine": "post", "table": "post", "id": "id", "status": "status", "version": "version",
                "status_types": ["new", "sent"], "terminal": [], "transitions": [{"from": ["new"], "to": "sent"}]}"#,
        )
        .await;
        let send = |id: u32| {
            format!("select moved, status, version from once.transition('post', '{id}', 'sent')")
        };
        assert_eq!(play.show(&send(1)).await, "t|sent|1");
        let narrower = match kind {
            "brief" => "alter domain brief add check (value <> 'sent') not valid",
            _ => "alter table post alter status type varchar(3) using left(status, 3)",
        };
        play.show(narrower).await;
        assert_eq!(play.code(&send(2)).await, code, "{kind}");
    }
}

#[tokio::test]
async fn two_moves_in_one_transaction_and_back_over_a_savepoint() {
    let play = altered("select 1").await;
    play.show("begin").await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    play.show("savepoint s").await;
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|2|~");
    assert_eq!(moves(&play, "1", "new", "").await, "f|new|2|status");
    play.show("rollback to s").await;
    assert_eq!(moves(&play, "1", "new", "").await, "t|new|2|~");
    play.show("commit").await;
    assert_eq!(job(&play, 1).await, "new|2");
    play.show("begin isolation level repeatable read; select 1 from job")
        .await;
    let other = play.another().await;
    assert_eq!(moves(&other, "2", "new", "").await, "t|new|1|~");
    assert_eq!(play.code(&transition("2", "new", "")).await, "40001");
    play.show("rollback").await;
    assert_eq!(moves(&play, "2", "new", "").await, "f|new|1|status");
}

#[tokio::test]
async fn ids_of_every_type_are_found_by_their_index() {
    let play = world().await;
    for (name, kind, id) in [
        ("small", "smallint", "7"),
        ("whole", "integer", "7"),
        ("unique_id", "uuid", "0e37df36-f698-11e6-8dd4-cb9ced3df976"),
        ("named", "text", "Grün"),
        ("other_way", "text collate \"C\"", "Grün"),
        ("short", "varchar(20)", "Grün"),
    ] {
        play.show(&format!(
            "create table {name} (id {kind} primary key, status text not null, version bigint not null default 0);
             insert into {name} values ('{id}', 'new')"
        ))
        .await;
        define(
            &play,
            &format!(
                r#"{{"machine": "{name}", "table": "{name}", "id": "id", "status": "status", "version": "version",
                 "status_types": ["new", "sent"], "terminal": [], "transitions": [{{"from": ["new"], "to": "sent"}}]}}"#
            ),
        )
        .await;
        let send = format!(
            "select moved, status, version, reason from once.transition('{name}', '{id}', 'sent')"
        );
        assert_eq!(play.show(&send).await, "t|sent|1|~", "{kind}");
        assert_eq!(play.show(&send).await, "f|sent|1|status", "{kind}");
    }
}
