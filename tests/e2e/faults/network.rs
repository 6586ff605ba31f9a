//! The network is cut once, at each message of an ordinary day's calls and in each way. The caller comes again on
//! another connection with the same transaction, and in the end all is as without the cut.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pg_once_tests::{Cluster, is_long};
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, SimpleQueryMessage};

use crate::fuzz::connect;
use crate::janitor::show;
use crate::proxy::{CUTS, Cut, Proxy};
use crate::victim::Chance;

const FLOW: &str = include_str!("flow.sql");
const MACHINE: &str = include_str!("../../../sql/examples/batch_job.json");

/// How long the caller waits for an answer before it takes the network for gone.
const ANSWER: Duration = Duration::from_millis(700);
/// How long it comes again.
const PATIENCE: Duration = Duration::from_secs(60);

const WORLD: &str = "
create table net (run text not null, what text not null);
create function make_job(who text) returns void language sql as $$
with w as (insert into wallet values (who, 1000) on conflict do nothing returning customer),
     j as (insert into batch_job (customer) select customer from w returning id)
insert into batch_item (job_id, input, state, points, artifact)
select j.id, 'in', 'succeeded', 10 * g, 'out' from j, generate_series(1, 3) as g $$";

/// What a run has left, without its name.
const LEFT: &str = "
select 'row', what, count(*)::text from net where run = '{n}' group by what union all
select 'key', k.key, concat_ws(' ', k.status, k.attempt, k.recovery_point, k.state, k.response_code, k.response_body, k.response_headers, k.request)
  from once.key as k where k.scope = 's{n}' union all
select 'step', k.key || ' ' || s.step, concat_ws(' ', s.done_at is null, s.version) from once.key as k join once.key_step as s on s.key_id = k.id where k.scope = 's{n}' union all
select 'job', right(j.customer, 5), concat_ws(' ', j.status, j.version, j.result, w.points, string_agg(i.state || i.settled, ' ' order by i.id))
  from batch_job as j join wallet as w using (customer) join batch_item as i on i.job_id = j.id where j.customer like '{n} %' group by j.id, w.points union all
select 'audit', id, difference::text from once.cancel_audit('batch_job') union all
select 'message', verdict #>> '{}', count(*)::text from once.inbox where scope = 'consumer {n}' group by 2 union all
select 'left', topic, concat_ws(' ', r.event_id, d.event_id) from once.topic left join once.retry as r using (topic_id) left join once.dead as d using (topic_id) where topic = 't{n}'
order by 1, 2, 3";

/// One caller with its day.
struct Caller {
    proxy: Proxy,
    database: &'static str,
    client: Option<Client>,
    run: String,
    known: BTreeMap<String, String>,
}

/// Why a transaction has not come to its end.
enum Fault {
    Gone,
    Again,
    Done,
}

impl Caller {
    fn fill(&self, line: &str) -> String {
        let mut line = line.replace("{n}", &self.run);
        for (name, value) in &self.known {
            line = line.replace(&format!("{{{name}}}"), value);
        }
        line
    }

    async fn send(&mut self, sql: &str) -> Result<Vec<Vec<String>>, Fault> {
        if self.client.is_none() {
            self.client = connect(&self.proxy.url(self.database)).await;
        }
        let Some(client) = &self.client else {
            return Err(Fault::Gone);
        };
        let error = match timeout(ANSWER, client.simple_query(sql)).await {
            Ok(Ok(messages)) => return Ok(messages.iter().filter_map(row).collect()),
            Ok(Err(error)) => error,
            Err(_) => return Err(Fault::Gone),
        };
        match error.code().map(|code| code.code().to_owned()).as_deref() {
            // The server has ended a transaction whose client is silent.
            None | Some("25P03" | "57P01") => Err(Fault::Gone),
            Some("ON006") => Err(Fault::Done),
            Some("40001" | "40P01" | "55P03") => Err(Fault::Again),
            Some(code) => panic!("{code} {error:?}\n{sql}\n{}", self.proxy.said()),
        }
    }

    async fn once(&mut self, lines: &[&str]) -> Result<Vec<Vec<String>>, Fault> {
        let mut rows = Vec::new();
        for line in lines {
            let (name, sql) = match line.split_once(": ") {
                Some((name, sql)) if name.bytes().all(|b| b.is_ascii_lowercase()) => {
                    (Some(name), sql)
                }
                _ => (None, *line),
            };
            let sql = self.fill(sql);
            rows = self.send(&sql).await?;
            if let Some(name) = name {
                let value = rows
                    .first()
                    .map(|row| row[0].clone())
                    .filter(|value| !value.is_empty());
                self.known
                    .insert(name.to_owned(), value.ok_or(Fault::Again)?);
            }
        }
        Ok(rows)
    }

    /// The transaction, until it is done; the rows of its last statement, if it was not done before.
    async fn transaction(&mut self, lines: &[&str]) -> Vec<Vec<String>> {
        let begin = Instant::now();
        loop {
            assert!(
                begin.elapsed() < PATIENCE,
                "{lines:?} {}",
                self.proxy.said()
            );
            match self.once(lines).await {
                Ok(rows) => return rows,
                Err(Fault::Gone) => self.client = None,
                Err(fault) => {
                    if self.send("rollback").await.is_err() {
                        self.client = None;
                    }
                    if matches!(fault, Fault::Done) {
                        return Vec::new();
                    }
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn day(&mut self) {
        for paragraph in FLOW.split("\n\n").filter(|text| !text.starts_with("--")) {
            let lines: Vec<&str> = paragraph.lines().collect();
            self.transaction(&lines).await;
        }
        self.consume().await;
    }

    /// Takes, handles each message once by the inbox, and acks, until all three events are handled.
    async fn consume(&mut self) {
        let begin = Instant::now();
        let pending =
            "select count(*) from once.retry join once.topic using (topic_id) where topic = 't{n}'";
        loop {
            assert!(begin.elapsed() < PATIENCE, "{}", self.proxy.said());
            let take = "select token, delivery_key, payload #>> '{}' from once.outbox_take('t{n}')";
            let events = self.transaction(&[take]).await;
            for event in &events {
                let (key, what) = (&event[1], &event[2]);
                let handle = format!(
                    "with a as (select accepted from once.inbox_accept('consumer {{n}}', '{key}')),
                          i as (insert into net select '{{n}}', 'handled {what}' from a where accepted returning what)
                     select once.inbox_record('consumer {{n}}', '{key}', '\"{what}\"') from i"
                );
                self.transaction(&["begin", &handle, "commit"]).await;
            }
            if let Some(event) = events.first() {
                let ack = format!("select once.outbox_ack('t{{n}}', 'default', {})", event[0]);
                self.transaction(&[&ack]).await;
            } else if self.transaction(&[pending]).await[0][0] == "0" {
                return;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
}

fn row(message: &SimpleQueryMessage) -> Option<Vec<String>> {
    match message {
        SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|i| row.get(i).unwrap_or_default().to_owned())
                .collect(),
        ),
        _ => None,
    }
}

/// One day with one cut; what it left, and how many messages it had.
async fn day(port: u16, run: String, cut: Option<(usize, Cut)>) -> (String, usize) {
    let proxy = Proxy::start(port, cut).await;
    let mut caller = Caller {
        proxy,
        database: "net",
        client: None,
        run: run.clone(),
        known: BTreeMap::new(),
    };
    caller.day().await;
    let direct = connect(&format!("postgresql://postgres@127.0.0.1:{port}/net"))
        .await
        .unwrap();
    let left = show(&direct, &LEFT.replace("{n}", &run)).await;
    (left.replace(&run, "RUN"), caller.proxy.messages())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "make test-long ARGS=faults"]
async fn a_network_that_is_cut_in_the_middle_of_any_call_changes_nothing_in_the_end() {
    let cluster: Cluster = crate::builder()
        // For the server a client in a black hole is there until this tells otherwise.
        .setting("idle_in_transaction_session_timeout", "500ms")
        .launch()
        .unwrap();
    let client = cluster.create_database_with_extension("net").await.unwrap();
    show(&client, include_str!("../../../sql/examples/batch_job.sql")).await;
    show(&client, WORLD).await;
    show(&client, &format!("select once.machine_define($m${MACHINE}$m$); select once.machine_guard('batch_job', true)")).await;
    let port = cluster.port();
    let (whole, messages) = day(port, "whole".into(), None).await;
    println!("{messages} messages; without a cut:\n{whole}");
    let chance = Chance::new();
    let mut cuts = Vec::new();
    for message in 1..=messages {
        for (at, cut) in CUTS.iter().enumerate() {
            let turn = message + at + usize::try_from(chance.seed % 24).unwrap();
            // In the short form every fourth message is cut, in one way.
            if is_long() || (turn.is_multiple_of(6) && message.is_multiple_of(4)) {
                cuts.push((message, *cut));
            }
        }
    }
    println!("{} cuts, seed {}", cuts.len(), chance.seed);
    let cuts = Arc::new(cuts);
    let callers: Vec<_> = (0..4)
        .map(|who| {
            let (cuts, whole) = (Arc::clone(&cuts), whole.clone());
            tokio::spawn(async move {
                for (message, cut) in cuts.iter().skip(who).step_by(4) {
                    let run = format!("r{message}{cut:?}");
                    let (left, _) = day(port, run, Some((*message, *cut))).await;
                    assert_eq!(left, whole, "message {message}, {cut:?}");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    crate::end::assert_logs_are_clean(cluster.directory());
}
