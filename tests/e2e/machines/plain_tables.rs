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
async fn columns_made_of_the_status_follow_it() {
    let play =
        altered("alter table job add loud text generated always as (upper(status)) stored").await;
    assert_eq!(moves(&play, "1", "failed", "").await, "t|failed|1|~");
    play.ask("select loud from job where id = 1")
        .is("FAILED")
        .await;
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
    play.ask("select attname from pg_attribute where attrelid = 'job'::regclass and attisdropped")
        .is("........pg.dropped.9........")
        .await;
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
