//! The two services. Anna's is at work and has a secret in everything that the extension stores; Bert's has every
//! kind of right there is, and tries.

use tokio_postgres::SimpleQueryMessage;

use crate::playground::{Playground, cluster};

/// Stands in every response, payload, state, verdict, error and row of Anna's.
pub const SECRET: &str = "Zx9-secret";

/// One database with both services in it.
pub struct Services {
    /// A superuser.
    pub play: Playground,
    pub anna: Playground,
    pub bert: Playground,
    /// Anna's live tokens: of a key, an action and a batch.
    pub key: String,
    pub action: String,
    pub batch: String,
    /// An event in that batch, and a dead one.
    pub event: String,
    pub dead: String,
}

const ROLES: &str = "
do $$ begin
    create role cross_anna; create role cross_bert; create role cross_anna_app login in role cross_anna;
    create role cross_bert_app login in role cross_bert;
exception when duplicate_object or unique_violation then null; end $$;
select once.grant_role('cross_anna', 'use'), once.grant_role('cross_anna', 'operate'), once.grant_role('cross_anna', 'observe'),
       once.grant_role('cross_bert', 'use'), once.grant_role('cross_bert', 'operate'), once.grant_role('cross_bert', 'observe');
create schema anna authorization cross_anna; create schema bert authorization cross_bert;
grant usage on schema anna to public; grant all on schema public to public";

const ANNA: &str = r#"
create table anna.wallet (customer text primary key, points bigint not null default 0);
create table anna.job (id bigint primary key, customer text not null default 'c', status text not null default 'ready',
    version bigint not null default 0, cancel_requested boolean not null default false, note text);
create table anna.item (id bigint primary key, job_id bigint not null, state text not null default 'succeeded',
    points bigint not null default 7, settled text, note text);
insert into anna.wallet values ('c', 0);
insert into anna.job (id, note) select g, 'SECRET' from generate_series(1, 5) g;
insert into anna.item (id, job_id, note) select g, 3, 'SECRET' from generate_series(1, 3) g;
select once.machine_define('{
  "machine": "anna.job", "table": "anna.job", "id": "id", "status": "status", "version": "version", "owner": "cross_anna",
  "status_types": ["ready", "running", "done", "cancelled"], "terminal": ["done", "cancelled"],
  "transitions": [{"from": ["ready"], "to": "done"}],
  "steps": [{"step_key": "run", "status": "ready", "claim_state": {"*": ["running", "ready"]},
             "successful_state": {"*": "done"}, "action": {"note": "SECRET"}}],
  "cancel": {"flag": "cancel_requested", "to": "cancelled"},
  "refund": {"items": "anna.item", "item_id": "id", "subject": "job_id", "marker": "settled", "marked": "returned",
    "when": "state = ''succeeded''", "amount": "points", "wallet": "anna.wallet", "wallet_id": "customer",
    "account": "customer", "balance": "points"}}');
select once.machine_guard('anna.job', true);
select once.cancel_request('anna.job', '3'); select once.cancel_refund('anna.job', '3', 2);
select once.scope_set('anna', '{"owner": "cross_anna", "keep_request": true}');
select once.topic_set('anna', '{"owner": "cross_anna"}');
select once.subscriber_set('anna', 'default', '{"max_attempts": 1}');
select once.inbox_accept('anna', 'message'); select once.inbox_record('anna', 'message', '"SECRET"');
select once.inbox_barrier('anna', 'saga', 'pay', 'action');
select once.outbox_emit('anna', '"SECRET dead"', headers => '{"h": "SECRET"}');
select once.outbox_emit('anna', '"SECRET out"', order_key => 'k', dedupe_key => 'SECRET')"#;

impl Services {
    pub async fn open() -> Services {
        let play = Playground::open().await;
        play.show("drop schema if exists anna cascade; drop schema if exists bert cascade")
            .await;
        play.show(ROLES).await;
        let anna = play.another_as("cross_anna_app").await;
        let bert = play.another_as("cross_bert_app").await;
        anna.show("set role cross_anna").await;
        anna.show(&ANNA.replace("SECRET", SECRET)).await;
        anna.show("reset role").await;
        let say = |sql: &str| sql.replace("SECRET", SECRET);
        let done = anna
            .show("select token from once.key_claim('anna', 'done', '{\"r\": 1}')")
            .await;
        anna.show(&say(&format!(
            "select once.key_complete('anna', 'done', {done}, 200, '\"SECRET\"', '{{\"h\": \"SECRET\"}}')"
        )))
        .await;
        let key = anna
            .show(&say("select token from once.key_claim('anna', 'live', '{\"r\": \"SECRET\"}', holder => 'anna-1')"))
            .await;
        anna.show(&say(&format!(
            "select once.key_step('anna', 'live', {key}, 'pay'); select once.key_step_done('anna', 'live', {key}, 'pay', '\"SECRET\"');
             select once.key_advance('anna', 'live', {key}, 'paid', '\"SECRET\"')"
        )))
        .await;
        let expired = anna
            .show(&say(
                "select token from once.key_claim('anna', 'released', '{\"r\": \"SECRET\"}')",
            ))
            .await;
        anna.show(&say(&format!(
            "select once.key_release('anna', 'released', {expired}, 'SECRET')"
        )))
        .await;
        let parked = anna
            .show("select token from once.key_claim('anna', 'parked')")
            .await;
        anna.show(&say(&format!(
            "select once.key_park('anna', 'parked', {parked}, 'SECRET')"
        )))
        .await;
        let action = anna
            .show("select token from once.action_claim('anna.job', '1', 'run', holder => 'anna-1')")
            .await;
        let taken = anna
            .show("select token, event_id from once.outbox_take('anna') order by event_id")
            .await;
        let (mut rows, mut ids) = (taken.lines(), Vec::new());
        let mut batch = String::new();
        while let Some((token, id)) = rows.next().and_then(|row| row.split_once('|')) {
            token.clone_into(&mut batch);
            ids.push(id.to_owned());
        }
        let [dead, event] = ids.try_into().unwrap();
        anna.show(&say(&format!(
            "select once.outbox_nack('anna', 'default', {batch}, array[{dead}], 'SECRET')"
        )))
        .await;
        anna.show(&say(
            "select once.outbox_emit('anna', '\"SECRET waiting\"')",
        ))
        .await;
        Services {
            play,
            anna,
            bert,
            key,
            action,
            batch,
            event,
            dead,
        }
    }

    /// Fills in Anna's tokens and ids as an attacker would who had seen or guessed them.
    pub fn fill(&self, sql: &str) -> String {
        [
            ("$KEY", &self.key),
            ("$ACTION", &self.action),
            ("$BATCH", &self.batch),
            ("$EVENT", &self.event),
            ("$DEAD", &self.dead),
        ]
        .iter()
        .fold(sql.to_owned(), |sql, (name, value)| {
            sql.replace(name, value)
        })
    }

    /// Everything that is Anna's, in her tables and the extension's.
    pub async fn hers(&self) -> String {
        let each = self
            .play
            .show(
                "select string_agg(format('select %L || coalesce(string_agg(t::text, ''; '' order by t::text), '''') as told from %I.%I t',
                                          relname || ': ', nspname, relname), ' union all ')
                   from pg_class c join pg_namespace n on n.oid = relnamespace
                  where nspname in ('once', 'anna') and relkind = 'r' and relname not in ('janitor', 'segment')",
            )
            .await;
        self.play.show(&format!("{each} order by 1")).await
    }

    /// Bert is refused with this SQLSTATE, learns nothing, and everything is as it was.
    pub async fn refused(&self, sql: &str, code: &str) {
        let before = self.hers().await;
        let told = attempt(&self.bert, &self.fill(sql)).await;
        let Err((found, words)) = told else {
            panic!("not refused: {sql}\n{told:?}");
        };
        assert_eq!(found, code, "{sql}\n{words}");
        assert!(!words.contains(SECRET), "{sql}\n{words}");
        self.bert.show("rollback").await;
        self.bert.show("reset all").await;
        self.bert.show("reset role").await;
        assert_eq!(self.hers().await, before, "{sql}");
    }

    /// The same, for who he is.
    pub async fn closed(&self, sql: &str) {
        self.refused(sql, "42501").await;
    }

    /// Bert gets an answer, but nothing of Anna's is in it.
    pub async fn learns_nothing(&self, sql: &str) {
        match attempt(&self.bert, &self.fill(sql)).await {
            Ok(words) => assert!(!words.contains(SECRET), "{sql}\n{words}"),
            Err((code, words)) => panic!("refused: {sql}\n{code} {words}"),
        }
    }
}

/// The rows, or the SQLSTATE and every word of the refusal: message, detail, hint, context, names.
pub async fn attempt(session: &Playground, sql: &str) -> Result<String, (String, String)> {
    match session.send(sql).await {
        Ok(messages) => {
            let rows = messages.iter().filter_map(|message| match message {
                SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            });
            let columns = rows.flat_map(|row| (0..row.len()).map(|i| row.get(i).unwrap_or("~")));
            Ok(columns.collect::<Vec<_>>().join("|"))
        }
        Err(error) => {
            let code = error.code().unwrap_or_else(|| panic!("{sql}\n{error}"));
            Err((code.code().to_owned(), format!("{error:?}")))
        }
    }
}

/// Runs a client program as Bert; whether it succeeded, and all that it wrote.
pub fn program(services: &Services, name: &str, arguments: &[&str]) -> (bool, String) {
    let output = cluster()
        .command(name)
        .env("PGUSER", "cross_bert_app")
        .env("PGDATABASE", &services.play.database.name)
        .args(arguments)
        .output()
        .unwrap();
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), text.concat())
}
