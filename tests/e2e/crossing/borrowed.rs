//! Borrowing the other's rights: SET ROLE, functions that run as somebody else, code that a sweep or the other
//! service itself runs, another's session or prepared transaction.

use crate::services::Services;

const GET: &str = "select status from once.key_get('anna', 'done')";

#[tokio::test]
async fn nobody_becomes_the_other() {
    let services = Services::open().await;
    // Within a transaction a pooler keeps her session.
    services.anna.show("begin").await;
    let pid = services.anna.show("select pg_backend_pid()").await;
    for statement in [
        "set role cross_anna".to_owned(),
        "set local role cross_anna".to_owned(),
        "set session authorization cross_anna".to_owned(),
        "select set_config('role', 'cross_anna', false)".to_owned(),
        "grant cross_anna to cross_bert".to_owned(),
        "alter role cross_bert superuser".to_owned(),
        "create role cross_spy in role cross_anna".to_owned(),
        "alter table anna.job owner to cross_bert".to_owned(),
        "reassign owned by cross_anna to cross_bert".to_owned(),
        "drop owned by cross_anna".to_owned(),
        format!("select pg_terminate_backend({pid})"),
        format!("select pg_cancel_backend({pid})"),
    ] {
        services.closed(&statement).await;
    }
    services.anna.show("rollback").await;
    // A prepared transaction of hers is hers to end.
    services
        .anna
        .show("begin; select once.key_claim('anna', 'prepared'); prepare transaction 'cross anna'")
        .await;
    for end in ["commit", "rollback"] {
        services
            .closed(&format!("{end} prepared 'cross anna'"))
            .await;
    }
    services.anna.show("rollback prepared 'cross anna'").await;
}

#[tokio::test]
async fn a_definer_function_of_berts_is_bert_whoever_calls_it() {
    let services = Services::open().await;
    services.bert.show("set role cross_bert").await;
    services
        .bert
        .show(&format!(
            "create function bert.peek() returns text language sql security definer as $$ {GET} $$;
             create function bert.peek_dynamically() returns text language plpgsql security definer as $$
                declare seen text; begin execute 'set local role cross_anna'; {into}; return seen; end $$;
             grant usage on schema bert to public",
            into = GET.replace("select status", "select status into seen"),
        ))
        .await;
    services.bert.show("reset role").await;
    services.closed("select bert.peek()").await;
    services.closed("select bert.peek_dynamically()").await;
    // Anna calls it, or a superuser: in there it is Bert who asks.
    for session in [&services.anna, &services.play] {
        assert_eq!(session.code("select bert.peek()").await, "42501");
        assert_eq!(
            session.code("select bert.peek_dynamically()").await,
            "42501"
        );
    }
    assert_eq!(services.anna.show(GET).await, "finished");
}

/// Bert's table under a machine of his, with a trigger that tries and notes what it was told.
const TRAP: &str = r#"
create table bert.job (id bigint primary key, status text not null default 'ready', seen text);
insert into bert.job (id) select generate_series(1, 3);
create function bert.try(statement text) returns text language plpgsql as $$
declare answer text;
begin
    execute statement into answer;
    return 'got ' || coalesce(answer, 'nothing');
exception when others then
    return sqlstate;
end $$;
create function bert.trap() returns trigger language plpgsql as $$
begin
    new.seen := pg_catalog.concat_ws(' ', bert.try('select status from once.key_get(''anna'', ''done'')'),
        bert.try('select payload #>> ''{}'' from once.outbox_take(''anna'')'), bert.try('select note from anna.job limit 1'),
        bert.try('select state #>> ''{}'' from once.key limit 1'), bert.try('set local role cross_anna'),
        bert.try('set role none'), bert.try('reset session authorization'), bert.try('grant cross_anna to cross_bert'),
        bert.try('select set_config(''session_replication_role'', ''replica'', true)'));
    return new;
end $$;
select once.machine_define('{"machine": "bert.job", "table": "bert.job", "id": "id", "status": "status", "owner": "cross_bert",
    "status_types": ["ready", "running", "done"], "terminal": ["done"],
    "steps": [{"step_key": "run", "status": "ready", "claim_state": {"*": ["running", "ready"]}, "successful_state": {"*": "done"}}]}');
select once.action_claim('bert.job', g::text, 'run', lease => '1 microsecond') from generate_series(1, 3) g;
create trigger trap before update on bert.job for each row execute function bert.trap()"#;

#[tokio::test]
async fn a_trigger_that_a_sweep_runs_has_its_tables_owners_rights_and_no_way_to_others() {
    let services = Services::open().await;
    services.bert.show("set role cross_bert").await;
    services.bert.show(TRAP).await;
    services.bert.show("reset role").await;
    let before = services.hers().await;
    for (n, sweeper) in [&services.play, &services.anna, &services.bert]
        .iter()
        .enumerate()
    {
        sweeper
            .show("select * from once.sweep(1, 'action_release', 'bert.job')")
            .await;
        // 42501 everywhere; a change of role in a security-restricted operation is 42501, too.
        let seen = services
            .play
            .show(
                "select status, seen, count(*) from bert.job where seen is not null group by 1, 2",
            )
            .await;
        let refusals = ["42501"; 9].join(" ");
        assert_eq!(seen, format!("ready|{refusals}|{}", n + 1));
    }
    let without_berts = |text: String| {
        let leases = |line: &&str| !line.starts_with("action_lease: ");
        text.lines().filter(leases).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(without_berts(services.hers().await), without_berts(before));
}
