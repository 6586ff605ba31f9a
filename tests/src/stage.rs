//! One topic `t`, and events that go by the names in their payloads.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed expectation is how a test fails"
)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::playground::Playground;

/// The ids of events by name, and their names by id.
type Names = (HashMap<String, i64>, HashMap<i64, String>);

/// A session in a database with topic `t`; sessions of one database know the same names.
pub struct Stage {
    /// The session.
    pub play: Playground,
    names: Arc<Mutex<Names>>,
    now: Mutex<String>,
}

/// What a take handed out.
#[derive(Debug)]
pub struct Taken {
    /// The one token of all its rows.
    pub token: i64,
    /// `name:attempt`, in the order given.
    pub shown: String,
}

impl Stage {
    /// Topic `t` with subscriber `default`, which has these options; the clock stands at 0.
    pub async fn open(options: &str) -> Stage {
        let play = Playground::open().await;
        play.show("select once.topic_set('t', '{}')").await;
        play.show(&format!(
            "select once.subscriber_set('t', 'default', '{options}')"
        ))
        .await;
        let stage = Stage {
            play,
            names: Arc::default(),
            now: Mutex::default(),
        };
        stage.clock("0").await;
        stage
    }

    /// Another session, whose clock says the same.
    pub async fn another(&self) -> Stage {
        let stage = Stage {
            play: self.play.another().await,
            names: Arc::clone(&self.names),
            now: Mutex::default(),
        };
        let now = self.now.lock().unwrap().clone();
        stage.clock(&now).await;
        stage
    }

    /// Pretends in this session that the time `since` has passed.
    pub async fn clock(&self, since: &str) {
        self.play.clock(since).await;
        since.clone_into(&mut self.now.lock().unwrap());
    }

    /// Emits one event for each name, in one transaction.
    pub async fn emit(&self, names: &str) {
        self.emit_with(names, "").await;
    }

    /// Emits events of one order_key.
    pub async fn emit_keyed(&self, names: &str, key: &str) {
        self.emit_with(names, &format!(", order_key => '{key}'"))
            .await;
    }

    /// Emits delayed events.
    pub async fn emit_delayed(&self, names: &str, delay: &str) {
        self.emit_with(names, &format!(", delay => '{delay}'"))
            .await;
    }

    async fn emit_with(&self, names: &str, more: &str) {
        let sql = format!(
            "select n.name, e.event_id
               from unnest(string_to_array('{names}', ' ')) with ordinality n (name, i),
                    lateral once.outbox_emit('t', to_json(n.name){more}) e
              order by n.i"
        );
        for line in self.play.show(&sql).await.lines() {
            let (name, id) = line.split_once('|').unwrap();
            let id = id.parse().unwrap();
            let (ids, names) = &mut *self.names.lock().unwrap();
            ids.insert(name.to_owned(), id);
            names.insert(id, name.to_owned());
        }
    }

    /// The id of the event of this name.
    pub fn id(&self, name: &str) -> i64 {
        self.names.lock().unwrap().0[name]
    }

    /// `array[...]` of these events; `null` for an empty text.
    pub fn ids(&self, names: &str) -> String {
        if names.is_empty() {
            return "null".to_owned();
        }
        let ids: Vec<String> = names.split(' ').map(|n| self.id(n).to_string()).collect();
        format!("array[{}]::bigint[]", ids.join(", "))
    }

    fn name(&self, id: i64) -> String {
        let names = &self.names.lock().unwrap().1;
        names.get(&id).cloned().unwrap_or_else(|| id.to_string())
    }

    /// What is due now, at most `max`; None: nothing.
    pub async fn try_take(&self, max: u32) -> Option<Taken> {
        self.try_take_as("default", max).await
    }

    /// Like `try_take`, for a subscriber.
    pub async fn try_take_as(&self, subscriber: &str, max: u32) -> Option<Taken> {
        let sql = format!(
            "select token, event_id, attempt from once.outbox_take('t', '{subscriber}', {max})"
        );
        let rows = self.play.show(&sql).await;
        let mut shown = Vec::new();
        let mut token = None;
        for line in rows.lines() {
            let cells: Vec<i64> = line.split('|').map(|c| c.parse().unwrap()).collect();
            assert_eq!(*token.get_or_insert(cells[0]), cells[0], "one token");
            shown.push(format!("{}:{}", self.name(cells[1]), cells[2]));
        }
        token.map(|token| Taken {
            token,
            shown: shown.join(" "),
        })
    }

    /// What is due now; there must be something.
    pub async fn take(&self, max: u32) -> Taken {
        let taken = self.try_take(max).await;
        taken.expect("something is due")
    }

    /// Takes these, as `name:attempt`, and nothing else.
    pub async fn expect(&self, max: u32, shown: &str) -> i64 {
        let taken = self.take(max).await;
        assert_eq!(taken.shown, shown);
        taken.token
    }

    /// Nothing is due.
    pub async fn expect_nothing(&self) {
        let taken = self.try_take(10).await;
        assert!(taken.is_none(), "{taken:?}");
    }

    /// The statement of an ack; an empty text acks all that is held.
    pub fn ack_sql(&self, token: i64, names: &str) -> String {
        let ids = self.ids(names);
        format!("select once.outbox_ack('t', 'default', {token}, {ids})")
    }

    /// Acks; returns how many events this call acked.
    pub async fn ack(&self, token: i64, names: &str) -> String {
        self.play.show(&self.ack_sql(token, names)).await
    }

    /// The statement of a nack; an empty text names all that is held.
    pub fn nack_sql(&self, token: i64, names: &str, more: &str) -> String {
        let ids = self.ids(names);
        format!(
            "select event_id, attempt,
                    extract(epoch from next_attempt_at
                                       - current_setting('once.fake_now')::timestamptz)::numeric(20, 3),
                    dead
               from once.outbox_nack('t', 'default', {token}, {ids}{more})"
        )
    }

    /// Nacks; for each row `name|attempt|seconds until the next attempt|dead`.
    pub async fn nack(&self, token: i64, names: &str, more: &str) -> String {
        let rows = self.play.show(&self.nack_sql(token, names, more)).await;
        self.named(&rows)
    }

    /// Rows that begin with an event_id, with names instead.
    pub fn named(&self, rows: &str) -> String {
        let name = |line: &str| {
            let (id, rest) = line.split_once('|').unwrap_or((line, ""));
            format!("{}|{rest}", self.name(id.parse().unwrap()))
        };
        rows.lines().map(name).collect::<Vec<_>>().join("\n")
    }

    /// The failed attempts at an event: `attempt|kind|error`.
    pub async fn deliveries(&self, name: &str) -> String {
        let id = self.id(name);
        self.play
            .show(&format!(
                "select attempt, kind, error from once.outbox_deliveries('t', 'default', {id})"
            ))
            .await
    }

    /// Dead letters: `name|attempts|kind|error`.
    pub async fn dead(&self) -> String {
        let rows = self
            .play
            .show("select event_id, attempts, kind, error from once.outbox_dead('t', 'default')")
            .await;
        self.named(&rows)
    }

    /// Redrives dead letters, those named or the longest dead, and says how many.
    pub async fn redrive(&self, max: u32, names: &str) -> String {
        let ids = self.ids(names);
        self.play
            .show(&format!(
                "select once.outbox_redrive('t', 'default', {max}, {ids})"
            ))
            .await
    }

    /// `done|failed|more` of the sweep.
    pub async fn sweep(&self, max: u32) -> String {
        self.play
            .show(&format!(
                "select done, failed, more from once.sweep({max}, 'outbox_requeue')"
            ))
            .await
    }

    /// All stored rows about deliveries.
    pub async fn stored(&self) -> String {
        self.play
            .show(
                "select coalesce(string_agg(r, ';' order by r), '') from (
                    select 'b' || b::text from once.batch b union all
                    select 'c' || c::text from once.receipt c union all
                    select 'r' || r::text from once.retry r union all
                    select 'd' || d.event_id || ' ' || d.attempts from once.dead d union all
                    select 'l' || l::text from once.delivery l) rows(r)",
            )
            .await
    }
}
