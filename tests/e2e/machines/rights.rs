//! Who may do what: the user's tables with the caller's rights, the extension's never by hand.

use crate::playground::Playground;
use crate::world::{
    JOB, TABLES, claim, define, finish, jobs, moves, role, token, transition, world,
};

#[tokio::test]
async fn a_role_without_update_cannot_move_a_row_and_one_with_it_can() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    role(&play, "rights_reader", "use").await;
    role(&play, "rights_writer", "use").await;
    play.show(
        "grant select on job to rights_reader, rights_writer; grant update on job to rights_writer",
    )
    .await;
    let held = token(&play, 2, "run", "").await;
    let reader = play.another_as("rights_reader").await;
    for call in [
        transition("1", "failed", ""),
        format!("select * from {}", claim(1, "run", "")),
        finish(2, held, ""),
        crate::world::release(2, held, ""),
        "select once.transition_many('job', '{1}', 'failed')".to_owned(),
        "select once.cancel_request('job', '1')".to_owned(),
    ] {
        assert_eq!(reader.code(&call).await, "42501", "{call}");
    }
    let writer = play.another_as("rights_writer").await;
    assert_eq!(moves(&writer, "1", "failed", "").await, "t|failed|1|~");
    assert_eq!(writer.show(&finish(2, held, "")).await, "finished|done|2");
}

#[tokio::test]
async fn a_right_on_the_columns_that_a_move_writes_is_enough_and_a_patch_needs_its_own() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    role(&play, "rights_columns", "use").await;
    play.show("grant select on job to rights_columns; grant update (status, version) on job to rights_columns")
        .await;
    let session = play.another_as("rights_columns").await;
    assert_eq!(moves(&session, "1", "failed", "").await, "t|failed|1|~");
    let patched = transition("1", "new", r#", patch => '{"note": "x"}'"#);
    assert_eq!(session.code(&patched).await, "42501");
    play.show("grant update (note) on job to rights_columns")
        .await;
    assert_eq!(session.show(&patched).await, "t|new|2|~");
}

#[tokio::test]
async fn rights_that_are_taken_away_count_at_once() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    role(&play, "rights_taken", "use").await;
    play.show("grant select, update on job to rights_taken")
        .await;
    let session = play.another_as("rights_taken").await;
    for _ in 0..4 {
        moves(&session, "1", "new", "").await;
        moves(&session, "1", "ready", "").await;
    }
    play.show("revoke update on job from rights_taken").await;
    assert_eq!(session.code(&transition("1", "new", "")).await, "42501");
    // A plan kept under one role is judged by the rights of the next.
    play.show("grant rights_taken to postgres").await;
    for _ in 0..4 {
        moves(&play, "1", "new", "").await;
        moves(&play, "1", "ready", "").await;
    }
    play.show("set role rights_taken").await;
    assert_eq!(play.code(&transition("1", "new", "")).await, "42501");
    play.show("reset role").await;
    assert!(moves(&play, "1", "new", "").await.starts_with("t|"));
}

#[tokio::test]
async fn row_level_security_is_the_callers() {
    let play = world().await;
    jobs(&play, 1, 3, "ready").await;
    role(&play, "rights_ann", "use").await;
    role(&play, "rights_bob", "use").await;
    play.show(
        "alter table job enable row level security;
         grant select, update on job to rights_ann, rights_bob;
         create policy own on job using (customer = current_user) with check (customer = current_user and n < 100);
         update job set customer = 'rights_ann' where id = 1; update job set customer = 'rights_bob' where id > 1",
    )
    .await;
    let ann = play.another_as("rights_ann").await;
    let bob = play.another_as("rights_bob").await;
    assert_eq!(moves(&ann, "2", "failed", "").await, "f|~|~|not_found");
    assert_eq!(
        crate::world::outcome(&ann, 2, "run", "").await,
        "not_found|~"
    );
    ann.ask("select outcome from once.cancel_request('job', '2')")
        .is("not_found")
        .await;
    ann.ask("select id, reason from once.transition_many('job', '{1,2}', 'failed') order by 1")
        .is("1|~\n2|not_found")
        .await;
    let stolen = transition("1", "new", r#", patch => '{"customer": "rights_bob"}'"#);
    assert_eq!(ann.code(&stolen).await, "42501");
    let token = token(&bob, 2, "run", "").await;
    assert_eq!(
        crate::world::outcome(&ann, 2, "run", "").await,
        "not_found|~"
    );
    // The same kept plans in one session under another role.
    play.show("grant rights_ann, rights_bob to postgres").await;
    for (role, id, answer) in [
        ("rights_ann", "1", "t|new|2|~"),
        ("rights_bob", "1", "f|~|~|not_found"),
        ("rights_bob", "3", "t|new|1|~"),
        ("rights_ann", "3", "f|~|~|not_found"),
    ] {
        play.show(&format!("set role {role}")).await;
        assert_eq!(moves(&play, id, "new", "").await, answer, "{role} {id}");
        play.show("reset role").await;
    }
    // A row that is hidden from the caller of finish keeps its lease for who sees it.
    let hidden = ann.attempt(&finish(2, token, "")).await;
    assert!(hidden.is_err(), "{hidden:?}");
    assert_eq!(bob.show(&finish(2, token, "")).await, "finished|done|2");
}

#[tokio::test]
async fn the_caller_is_the_present_user_in_security_definer_functions_too() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    role(&play, "rights_definer", "use").await;
    play.ensure_role("rights_caller login").await;
    play.show(
        "grant select, update on job to rights_definer;
         create function fail_it(id text) returns boolean language sql security definer set search_path = pg_catalog
            as $$ select moved from once.transition('job', id, 'failed') $$;
         create function run_it(id text) returns text language sql security definer set search_path = pg_catalog
            as $$ select outcome from once.action_claim('job', id, 'run') $$;
         alter function fail_it owner to rights_definer; alter function run_it owner to rights_definer",
    )
    .await;
    let caller = play.another_as("rights_caller").await;
    assert_eq!(caller.code(&transition("1", "failed", "")).await, "42501");
    assert_eq!(
        caller.show("select fail_it('1'), run_it('2')").await,
        "t|claimed"
    );
    play.show(
        "revoke update on job from rights_definer; update job set status = 'ready' where id = 1",
    )
    .await;
    assert_eq!(caller.code("select fail_it('1')").await, "42501");
    // A superuser who calls it has the definer's rights in it.
    assert_eq!(play.code("select fail_it('1')").await, "42501");
}

#[tokio::test]
async fn triggers_and_predicates_run_as_the_caller() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    play.show(
        "create table seen (who name, what text);
         create function seen() returns trigger language plpgsql as $$ begin
            insert into seen values (current_user, new.status); return new; end $$;
         create trigger seen before update on job for each row execute function seen();
         create function is_fine(int) returns boolean language plpgsql immutable as $$ begin
            if current_user <> 'rights_runner' then raise 'as %', current_user; end if; return true; end $$",
    )
    .await;
    define(&play, &JOB.replace("n >= 0", "is_fine(n)")).await;
    jobs(&play, 1, 1, "new").await;
    role(&play, "rights_runner", "use").await;
    play.show(
        "grant select, update on job to rights_runner; grant insert on seen to rights_runner",
    )
    .await;
    let session = play.another_as("rights_runner").await;
    assert_eq!(moves(&session, "1", "ready", "").await, "t|ready|1|~");
    token(&session, 1, "run", "").await;
    play.ask("select * from seen")
        .is("rights_runner|ready\nrights_runner|running")
        .await;
}
