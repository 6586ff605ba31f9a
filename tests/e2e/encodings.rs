//! Names that are not ASCII, in databases that are not in UTF-8: every noun takes them, and tells them as they were.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use pg_once_tests::playground;
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

    async fn does(&self, sql: &str) {
        self.play.show(&sql.replace("NAME", self.name)).await;
    }

    async fn token(&self, call: &str) -> String {
        let sql = format!("select token from {call}").replace("NAME", self.name);
        self.play.show(&sql).await
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
    keys(&named).await;
    events(&named).await;
    messages(&named).await;
    machines(&named).await;
    let failed = "select sum(failed) from once.sweep()";
    named.says(failed, "0").await;
    named.play.show("call once.sweep_all()").await;
    named.play.show("select count(*) from once.metrics()").await;
    let errors =
        "select string_agg(problem || detail, '; ') from once.doctor() where level = 'error'";
    named.says(errors, "~").await;
}

async fn keys(it: &Named) {
    let options = r#"'{"lease": "1 s", "recovery_points": ["NAME"], "keep_request": true}'"#;
    let set = format!("select once.scope_set('NAME', {options}) ->> 'recovery_points'");
    it.says(&set, r#"["NAME"]"#).await;
    it.says("select once.scope_get('NAME') ->> 'lease'", "00:00:01")
        .await;
    let claim = r#"once.key_claim('NAME', 'NAME', '{"NAME": "NAME"}', holder => 'NAME')"#;
    let token = it.token(claim).await;
    it.says(
        &format!("select outcome, token from {claim}"),
        &format!("claimed|{token}"),
    )
    .await;
    it.says(
        "select outcome from once.key_claim('NAME', 'NAME')",
        "mismatched",
    )
    .await;
    let step = format!("'NAME', 'NAME', {token}, 'NAME'");
    it.says(&format!("select attempted from once.key_step({step})"), "0")
        .await;
    it.says(
        &format!("select result from once.key_step_done({step}, '\"NAME\"')"),
        "\"NAME\"",
    )
    .await;
    let advance = format!("select from once.key_advance({step}, '\"NAME\"')");
    it.says(&advance, "").await;
    it.does(&format!("select once.key_park({step})")).await;
    let get = "select status, recovery_point, state, last_error, request ->> 'NAME' from once.key_get('NAME', 'NAME')";
    it.says(get, "parked|NAME|\"NAME\"|NAME|NAME").await;
    it.says(
        "select outcome from once.key_claim('NAME', 'due', lease => '1 us')",
        "claimed",
    )
    .await;
    it.does("select once.sweep(task => 'key_abandon')").await;
    it.says(
        "select key, outcome from once.key_take_abandoned('NAME', holder => 'NAME')",
        "due|resumed",
    )
    .await;
    it.does("select once.key_resolve('NAME', 'NAME', 1, 'retry')")
        .await;
    let token = it
        .token("once.key_take_abandoned('NAME') where key = 'NAME'")
        .await;
    it.does(&format!(
        "select once.key_release('NAME', 'NAME', {token}, error => 'NAME')"
    ))
    .await;
    let token = it.token(claim).await;
    it.does(&format!(
        "select once.key_complete('NAME', 'NAME', {token}, 200, '\"NAME\"')"
    ))
    .await;
    it.says(
        &format!("select outcome, response_body from {claim}"),
        "replayed|\"NAME\"",
    )
    .await;
    it.says(
        "select key, step from once.key_list('NAME') where step is not null",
        "NAME|NAME",
    )
    .await;
    let lost = format!("select once.key_park('{0}', '{0}', 1, 'x')", it.name);
    let refused = it.play.refused(&lost).await;
    assert_eq!(refused.code, "ON001");
    assert!(refused.message.contains(it.name), "{refused:?}");
}

async fn events(it: &Named) {
    it.does(r#"select once.topic_set('NAME', '{"subscribers": ["NAME"]}')"#)
        .await;
    it.does(r#"select once.subscriber_set('NAME', 'NAME', '{"max_attempts": 1}')"#)
        .await;
    it.says(
        "select once.topic_get('NAME') ->> 'subscribers'",
        r#"["NAME"]"#,
    )
    .await;
    let emit = r#"select emitted from once.outbox_emit('NAME', '"NAME"', order_key => 'NAME', dedupe_key => 'NAME',
                    headers => '{"NAME": "NAME"}')"#;
    it.says(emit, "t").await;
    it.says(emit, "f").await;
    let take = "select token, order_key, payload, headers from once.outbox_take('NAME', 'NAME')";
    let taken = it.play.show(&take.replace("NAME", it.name)).await;
    let (token, event) = taken.split_once('|').unwrap();
    let expected = r#"NAME|"NAME"|{"NAME": "NAME"}"#;
    assert_eq!(event, expected.replace("NAME", it.name));
    let nack = format!(
        "select dead from once.outbox_nack('NAME', 'NAME', {token}, error => 'NAME', kind => 'NAME')"
    );
    it.says(&nack, "t").await;
    let dead = "select kind, error, order_key from once.outbox_dead('NAME', 'NAME')";
    it.says(dead, "NAME|NAME|NAME").await;
    it.says("select once.outbox_redrive('NAME', 'NAME')", "1")
        .await;
    let token = it.token("once.outbox_take('NAME', 'NAME')").await;
    it.says(
        &format!("select once.outbox_ack('NAME', 'NAME', {token})"),
        "1",
    )
    .await;
    let step = r#"{"topic": "NAME", "payload": "NAME", "order_key": "NAME"}"#;
    let token = it.token("once.key_claim('NAME', 'undone')").await;
    let begun =
        format!("select done from once.key_step('NAME', 'undone', {token}, 'NAME', '{step}')");
    it.says(&begun, "f").await;
    it.does(&format!(
        "select once.key_abort('NAME', 'undone', {token}, 500)"
    ))
    .await;
    it.says(
        "select order_key, payload from once.outbox_take('NAME', 'NAME')",
        "NAME|\"NAME\"",
    )
    .await;
    let refused = format!("select once.outbox_emit('{0}x', '1')", it.name);
    let refused = it.play.refused(&refused).await;
    assert_eq!(refused.code, "42704");
    assert!(refused.message.contains(it.name), "{refused:?}");
}

async fn messages(it: &Named) {
    it.says(
        "begin; select once.inbox_accept('NAME', 'NAME'); select once.inbox_record('NAME', 'NAME', '\"NAME\"'); commit;
         select accepted, verdict from once.inbox_accept('NAME', 'NAME')",
        "f|\"NAME\"",
    )
    .await;
    let barrier = "select once.inbox_barrier('NAME', 'NAME', 'NAME', 'action')";
    it.says(barrier, "run").await;
    it.says(barrier, "duplicate").await;
}

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

async fn machines(it: &Named) {
    it.says(MACHINE, "NAME").await;
    it.does("select once.machine_guard('NAME', true)").await;
    it.says(
        "select problem from once.machine_check('NAME') where problem !~ 'cover'",
        "",
    )
    .await;
    let moved = "select moved, status, reason from once.transition('NAME', 'NAME', 'done NAME')";
    it.says(moved, "f|ready NAME|guard").await;
    let claim = "once.action_claim('NAME', 'NAME', 'step NAME', 'NAME', holder => 'NAME')";
    let token = it.token(claim).await;
    it.says(
        &format!("select token, status from {claim}"),
        &format!("{token}|run NAME"),
    )
    .await;
    let patched = r#"'{"note NAME": "NAME"}'"#;
    let release =
        format!("select status from once.action_release('NAME', 'NAME', {token}, error => 'NAME')");
    it.says(&release, "ready NAME").await;
    let token = it.token(claim).await;
    let finish = format!(
        "select outcome, status from once.action_finish('NAME', 'NAME', {token}, {patched})"
    );
    it.says(&finish, "finished|done NAME").await;
    it.says(
        r#"select "note NAME" from "job NAME" where "id NAME" = 'NAME'"#,
        "NAME",
    )
    .await;
    let late = "select outcome from once.action_claim('NAME', 'late', 'step NAME', 'NAME', lease => '1 us')";
    it.says(late, "claimed").await;
    it.says(
        "select done, failed from once.sweep(task => 'action_release', machine => 'NAME')",
        "1|0",
    )
    .await;
    let by_hand = r#"update "job NAME" set "status NAME" = 'done NAME' where "id NAME" = 'late'"#;
    let refused = it.play.refused(&by_hand.replace("NAME", it.name)).await;
    assert_eq!(refused.code, "ON002");
    assert!(refused.message.contains(it.name), "{refused:?}");
    it.says(
        r#"update "job NAME" set "note NAME" = 'NAME' where "id NAME" = 'late'"#,
        "",
    )
    .await;
    it.says(by_hand, "").await;
    it.says(
        "select outcome, status from once.cancel_request('NAME', 'stop')",
        "teardown|ready NAME",
    )
    .await;
    it.says(
        "select id, status from once.cancel_pending('NAME')",
        "stop|ready NAME",
    )
    .await;
    it.says(
        "select items, amount from once.cancel_refund('NAME', 'stop')",
        "1|7",
    )
    .await;
    it.says(
        "select item_id, item ->> 'mark NAME' from once.cancel_items('NAME', 'stop')",
        "NAME|back NAME",
    )
    .await;
    it.says(
        "select confirmed from once.cancel_confirm('NAME', 'stop', 1)",
        "t",
    )
    .await;
    it.says(
        "select status from once.cancel_finish('NAME', 'stop')",
        "stopped NAME",
    )
    .await;
    it.says("select id, difference from once.cancel_audit('NAME')", "")
        .await;
    it.says(r#"select points from "wallet NAME""#, "7").await;
}
