//! Names that are not ASCII, in databases that are not in UTF-8: every noun takes them, and tells them as they were.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use pg_once_tests::{playground, script};
use playground::{Playground, cluster};

/// A database of this encoding, its tables named `name`, in a session of a superuser.
async fn database_in(encoding: &str) -> Playground {
    let admin = cluster().connect("postgres").await.unwrap();
    let database = format!("in_{}", encoding.to_lowercase());
    let create =
        format!("create database {database} encoding '{encoding}' locale 'C' template template0");
    admin.batch_execute(&create).await.unwrap();
    let play = Playground::on(cluster(), &database).await;
    play.show("create extension pg_once").await;
    play
}

/// `NAME` stands for the name in what is sent and in what is expected.
struct Named {
    play: Playground,
    name: &'static str,
}

impl Named {
    async fn says(&self, sql: &str, expected: &str) {
        let sql = sql.replace("NAME", self.name);
        let expected = expected.replace("NAME", self.name);
        assert_eq!(self.play.show(&sql).await, expected, "{sql}");
    }

    /// Goes through a script. `token: ` is a statement that gives what TOKEN stands for from then on, `do: ` one whose
    /// answer is not looked at, `refused: ` one that is refused with an SQLSTATE and tells the name.
    async fn goes(&self, script: &'static str) {
        let mut token = "TOKEN".to_owned();
        for step in script::steps(script) {
            let sql = step.sql.replace("NAME", self.name).replace("TOKEN", &token);
            match step.name {
                "token" => token = self.play.show(&sql).await,
                "do" => drop(self.play.show(&sql).await),
                "refused" => {
                    let refused = self.play.refused(&sql).await;
                    assert_eq!(refused.code, step.answer, "{sql}: {refused:?}");
                    assert!(refused.message.contains(self.name), "{refused:?}");
                }
                _ => self.says(&sql, &step.answer.replace("TOKEN", &token)).await,
            }
        }
    }
}

#[tokio::test]
async fn every_noun_takes_names_that_are_not_ascii_in_latin1() {
    every_noun("LATIN1", "é").await;
}

#[tokio::test]
async fn every_noun_takes_names_that_are_not_ascii_in_euc_jp() {
    every_noun("EUC_JP", "注文ソ").await;
}

async fn every_noun(encoding: &str, name: &'static str) {
    let play = database_in(encoding).await;
    let named = Named { play, name };
    for script in [KEYS, EVENTS, MESSAGES] {
        named.goes(script).await;
    }
    named.says(MACHINE, "NAME").await;
    named.goes(MACHINES).await;
    let failed = "select sum(failed) from once.sweep()";
    named.says(failed, "0").await;
    named.play.show("call once.sweep_all()").await;
    named.play.show("select count(*) from once.metrics()").await;
    let errors =
        "select string_agg(problem || detail, '; ') from once.doctor() where level = 'error'";
    named.says(errors, "~").await;
}

const KEYS: &str = r#"
select once.scope_set('NAME', '{"lease": "1 s", "recovery_points": ["NAME"], "keep_request": true}') ->> 'recovery_points'
    ["NAME"]
select once.scope_get('NAME') ->> 'lease'
    00:00:01
token: select token from once.key_claim('NAME', 'NAME', '{"NAME": "NAME"}', holder => 'NAME')
select outcome, token from once.key_claim('NAME', 'NAME', '{"NAME": "NAME"}', holder => 'NAME')
    claimed|TOKEN
select outcome from once.key_claim('NAME', 'NAME')
    mismatched
select attempted from once.key_step('NAME', 'NAME', TOKEN, 'NAME')
    0
select result from once.key_step_done('NAME', 'NAME', TOKEN, 'NAME', '"NAME"')
    "NAME"
select from once.key_advance('NAME', 'NAME', TOKEN, 'NAME', '"NAME"')
do: select once.key_park('NAME', 'NAME', TOKEN, 'NAME')
select status, recovery_point, state, last_error, request ->> 'NAME' from once.key_get('NAME', 'NAME')
    parked|NAME|"NAME"|NAME|NAME
select outcome from once.key_claim('NAME', 'due', lease => '1 us')
    claimed
do: select once.sweep(task => 'key_abandon')
select key, outcome from once.key_take_abandoned('NAME', holder => 'NAME')
    due|resumed
do: select once.key_resolve('NAME', 'NAME', 1, 'retry')
token: select token from once.key_take_abandoned('NAME') where key = 'NAME'
do: select once.key_release('NAME', 'NAME', TOKEN, error => 'NAME')
token: select token from once.key_claim('NAME', 'NAME', '{"NAME": "NAME"}', holder => 'NAME')
do: select once.key_complete('NAME', 'NAME', TOKEN, 200, '"NAME"')
select outcome, response_body from once.key_claim('NAME', 'NAME', '{"NAME": "NAME"}', holder => 'NAME')
    replayed|"NAME"
select key, step from once.key_list('NAME') where step is not null
    NAME|NAME
refused: select once.key_park('NAME', 'NAME', 1, 'x')
    ON001"#;

const EVENTS: &str = r#"
do: select once.topic_set('NAME', '{"subscribers": ["NAME"]}')
do: select once.subscriber_set('NAME', 'NAME', '{"max_attempts": 1}')
select once.topic_get('NAME') ->> 'subscribers'
    ["NAME"]
select emitted from once.outbox_emit('NAME', '"NAME"', order_key => 'NAME', dedupe_key => 'NAME', headers => '{"NAME": "NAME"}')
    t
select emitted from once.outbox_emit('NAME', '"NAME"', order_key => 'NAME', dedupe_key => 'NAME', headers => '{"NAME": "NAME"}')
    f
do: create table taken as select * from once.outbox_take('NAME', 'NAME')
select order_key, payload, headers from taken
    NAME|"NAME"|{"NAME": "NAME"}
token: select token from taken
select dead from once.outbox_nack('NAME', 'NAME', TOKEN, error => 'NAME', kind => 'NAME')
    t
select kind, error, order_key from once.outbox_dead('NAME', 'NAME')
    NAME|NAME|NAME
select once.outbox_redrive('NAME', 'NAME')
    1
token: select token from once.outbox_take('NAME', 'NAME')
select once.outbox_ack('NAME', 'NAME', TOKEN)
    1
token: select token from once.key_claim('NAME', 'undone')
select done from once.key_step('NAME', 'undone', TOKEN, 'NAME', '{"topic": "NAME", "payload": "NAME", "order_key": "NAME"}')
    f
do: select once.key_abort('NAME', 'undone', TOKEN, 500)
select order_key, payload from once.outbox_take('NAME', 'NAME')
    NAME|"NAME"
refused: select once.outbox_emit('NAMEx', '1')
    42704"#;

const MESSAGES: &str = r#"
do: begin; select once.inbox_accept('NAME', 'NAME'); select once.inbox_record('NAME', 'NAME', '"NAME"'); commit
select accepted, verdict from once.inbox_accept('NAME', 'NAME')
    f|"NAME"
select once.inbox_barrier('NAME', 'NAME', 'NAME', 'action')
    run
select once.inbox_barrier('NAME', 'NAME', 'NAME', 'action')
    duplicate"#;

const MACHINE: &str = r#"
    create table "wallet NAME" (who text primary key, points bigint not null default 0);
    create table "job NAME" ("id NAME" text primary key, who text not null default 'NAME',
        "status NAME" text not null default 'ready NAME', version bigint not null default 0,
        "stop NAME" boolean not null default false, "note NAME" text);
    create table "item NAME" (id text primary key, job text not null, "mark NAME" text, points bigint not null default 7);
    create index on "item NAME" (job);
    insert into "wallet NAME" values ('NAME', 0);
    insert into "job NAME" ("id NAME") values ('NAME'), ('late'), ('stop');
    insert into "item NAME" (id, job) values ('NAME', 'stop');
    select once.machine_define('{
      "machine": "NAME", "table": "\"job NAME\"", "id": "id NAME", "status": "status NAME", "version": "version",
      "status_types": ["ready NAME", "run NAME", "done NAME", "stopped NAME"], "terminal": ["done NAME", "stopped NAME"],
      "transitions": [{"from": ["ready NAME"], "to": "done NAME", "when": "\"note NAME\" = ''NAME''"}],
      "steps": [{"step_key": "step NAME", "status": "ready NAME", "claim_state": {"NAME": ["run NAME", "ready NAME"]},
                 "successful_state": {"NAME": "done NAME"}}],
      "cancel": {"flag": "stop NAME", "to": "stopped NAME"},
      "refund": {"items": "\"item NAME\"", "item_id": "id", "subject": "job", "marker": "mark NAME",
        "marked": "back NAME", "amount": "points", "wallet": "\"wallet NAME\"", "wallet_id": "who", "account": "who",
        "balance": "points"}}') ->> 'machine'"#;

const MACHINES: &str = r#"
do: select once.machine_guard('NAME', true)
select problem from once.machine_check('NAME') where problem !~ 'cover'
select moved, status, reason from once.transition('NAME', 'NAME', 'done NAME')
    f|ready NAME|guard
token: select token from once.action_claim('NAME', 'NAME', 'step NAME', 'NAME', holder => 'NAME')
select token, status from once.action_claim('NAME', 'NAME', 'step NAME', 'NAME', holder => 'NAME')
    TOKEN|run NAME
select status from once.action_release('NAME', 'NAME', TOKEN, error => 'NAME')
    ready NAME
token: select token from once.action_claim('NAME', 'NAME', 'step NAME', 'NAME', holder => 'NAME')
select outcome, status from once.action_finish('NAME', 'NAME', TOKEN, '{"note NAME": "NAME"}')
    finished|done NAME
select "note NAME" from "job NAME" where "id NAME" = 'NAME'
    NAME
select outcome from once.action_claim('NAME', 'late', 'step NAME', 'NAME', lease => '1 us')
    claimed
do: create function no() returns trigger language plpgsql as $$begin raise 'NAME'; end$$
do: create trigger no before update on "job NAME" for each row execute function no()
select done, failed from once.sweep(task => 'action_release', machine => 'NAME')
    0|1
do: drop function no cascade
do: select once.action_expire('NAME', 'late')
select done, failed from once.sweep(task => 'action_release', machine => 'NAME')
    1|0
refused: update "job NAME" set "status NAME" = 'done NAME' where "id NAME" = 'late'
    ON002
update "job NAME" set "note NAME" = 'NAME' where "id NAME" = 'late'
update "job NAME" set "status NAME" = 'done NAME' where "id NAME" = 'late'
select outcome, status from once.cancel_request('NAME', 'stop')
    teardown|ready NAME
select id, status from once.cancel_pending('NAME')
    stop|ready NAME
select items, amount from once.cancel_refund('NAME', 'stop')
    1|7
select item_id, item ->> 'mark NAME' from once.cancel_items('NAME', 'stop')
    NAME|back NAME
select confirmed from once.cancel_confirm('NAME', 'stop', 1)
    t
select status from once.cancel_finish('NAME', 'stop')
    stopped NAME
select id, difference from once.cancel_audit('NAME')
select points from "wallet NAME"
    7"#;
