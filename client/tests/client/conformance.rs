//! The cases that every language's client has to pass: sql/examples/conformance.json, which also explains its format.

mod calls;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use pg_once::{Args, Error, Executor, Sqlx};
use serde::Deserialize;
use serde_json::Value;
use sqlx::postgres::PgConnection;
use sqlx::{Column, ConnectOptions};
use tokio::sync::Mutex;
use tokio_postgres::{Client, SimpleQueryMessage};
use uuid::Uuid;

use crate::support::{
    a_year_later, config, connect, connect_to, directly, over_sqlx, sqlx_options,
};
use calls::{Handle, With};

const TABLE: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../sql/examples/conformance.json"
));
const TABLES: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../sql/examples/conformance.sql"
));

/// A row: the names of its columns, each with the value as text.
type Row = BTreeMap<String, Option<String>>;

#[derive(Deserialize)]
struct Table {
    shard_of: Vec<Vector>,
    sql: HashMap<String, String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Vector {
    routing: String,
    shards: i32,
    shard: i32,
}

#[derive(Deserialize)]
struct Case {
    case: String,
    calls: Vec<Call>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    #[serde(default = "services")]
    by: String,
    call: String,
    of: Option<String>,
    #[serde(default)]
    with: BTreeMap<String, Value>,
    #[serde(rename = "as")]
    name: Option<String>,
    gives: Option<Value>,
    raises: Option<String>,
}

fn services() -> String {
    "a".to_owned()
}

/// The answer of a call: its rows, and the handle that later calls need.
struct Said {
    handle: Handle,
    rows: Vec<Row>,
}

fn told(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn fields<const N: usize>(fields: [(&str, Option<String>); N]) -> Row {
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn rows(rows: Vec<Row>) -> Said {
    let handle = Handle::None;
    Said { handle, rows }
}

fn row<const N: usize>(one: [(&str, Option<String>); N]) -> Said {
    rows(vec![fields(one)])
}

fn nothing<T>(_: T) -> Said {
    rows(Vec::new())
}

#[derive(Clone)]
struct Sent {
    call: String,
    of: Option<String>,
    with: With,
}

/// The state of one case: the named answers, and the calls of each session's last transaction.
struct Run<'t> {
    id: String,
    sessions: &'t HashMap<&'static str, Session>,
    sql: &'t HashMap<String, String>,
    answers: HashMap<String, Said>,
    sent: HashMap<String, Vec<Sent>>,
    open: BTreeSet<String>,
}

impl Run<'_> {
    /// Replaces `$id` and `$name.field` in a text by their values.
    fn filled(&self, text: &str) -> String {
        let mut parts = text.split('$');
        let mut filled = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let word = |text: &str| {
                text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                    .unwrap_or(text.len())
            };
            let (name, rest) = part.split_at(word(part));
            match rest.strip_prefix('.') {
                Some(after) if word(after) > 0 => {
                    let (field, rest) = after.split_at(word(after));
                    let value = self.answers[name].rows[0][field].as_deref();
                    filled += value.unwrap_or("null");
                    filled += rest;
                }
                _ => {
                    assert_eq!(name, "id", "in {text}");
                    filled += &self.id;
                    filled += rest;
                }
            }
        }
        filled
    }

    fn text(&self, value: &Value) -> Option<String> {
        match value {
            Value::Null => None,
            Value::String(text) => Some(self.filled(text)),
            other => Some(other.to_string()),
        }
    }

    async fn make(&mut self, call: &Call) {
        let with = |(name, value): (&String, &Value)| Some((name.clone(), self.text(value)?));
        let sent = Sent {
            call: call.call.clone(),
            of: call.of.clone(),
            with: With(call.with.iter().filter_map(with).collect()),
        };
        let said = match (self.send(&call.by, sent).await, &call.raises) {
            (Ok(said), None) => said,
            (Err(refusal), Some(code)) if refusal.code() == Some(code) => return,
            (Ok(_), Some(code)) => panic!("{code} was expected"),
            (Err(error), _) => panic!("{error:?}"),
        };
        if let Some(gives) = &call.gives {
            self.compare(&said.rows, gives);
        }
        if let Some(name) = &call.name {
            self.answers.insert(name.clone(), said);
        }
    }

    async fn send(&mut self, by: &str, sent: Sent) -> Result<Said, Error> {
        let session = &self.sessions[by];
        match sent.call.as_str() {
            "begin" => {
                self.sent.insert(by.to_owned(), Vec::new());
                self.open.insert(by.to_owned());
                statement(session, "BEGIN").await
            }
            end @ ("commit" | "rollback") => {
                self.open.remove(by);
                statement(session, end).await
            }
            "again" => self.again(session, &self.sent[by]).await,
            _ => {
                if self.open.contains(by) {
                    let sent = sent.clone();
                    self.sent.entry(by.to_owned()).or_default().push(sent);
                }
                self.work(session, &sent).await
            }
        }
    }

    async fn again(&self, session: &Session, calls: &[Sent]) -> Result<Said, Error> {
        let mut said = statement(session, "BEGIN").await?;
        for call in calls {
            match self.work(session, call).await {
                Ok(answer) => said = answer,
                Err(error) => {
                    statement(session, "ROLLBACK").await?;
                    return Err(error);
                }
            }
        }
        statement(session, "COMMIT").await?;
        Ok(said)
    }

    async fn work(&self, session: &Session, sent: &Sent) -> Result<Said, Error> {
        let Sent { call, of, with } = sent;
        if let Some(sql) = self.sql.get(call) {
            return statement(session, &self.filled(sql)).await;
        }
        if call == "sql" {
            return statement(session, with.text("text")).await;
        }
        let of = of.as_ref().map(|name| &self.answers[name].handle);
        calls::make(session, call, of, with).await
    }

    fn compare(&self, rows: &[Row], gives: &Value) {
        let expected = match gives {
            Value::Array(rows) => rows.as_slice(),
            row => std::slice::from_ref(row),
        };
        assert_eq!(rows.len(), expected.len(), "rows: {rows:?}");
        for (row, fields) in rows.iter().zip(expected) {
            for (name, value) in fields.as_object().expect("a row is an object") {
                let found = row.get(name).cloned().flatten();
                match value.as_str() {
                    Some("*") => assert!(found.is_some(), "{name} of {row:?}"),
                    _ => assert_eq!(found, self.text(value), "{name} of {row:?}"),
                }
            }
        }
    }
}

/// Runs a statement as text; it may return rows.
async fn statement(session: &Session, sql: &str) -> Result<Said, Error> {
    let rows = session.rows(sql).await?;
    let handle = Handle::None;
    Ok(Said { handle, rows })
}

/// A session of either driver.
pub enum Session {
    TokioPostgres(Client),
    Sqlx(Mutex<PgConnection>),
}

impl Session {
    async fn open() -> Self {
        match over_sqlx() {
            true => Self::Sqlx(Mutex::new(sqlx_options(&config()).connect().await.unwrap())),
            false => Self::TokioPostgres(connect().await),
        }
    }

    async fn rows(&self, sql: &str) -> Result<Vec<Row>, Error> {
        let mut rows = Vec::new();
        match self {
            Self::TokioPostgres(client) => {
                for message in client.simple_query(sql).await? {
                    if let SimpleQueryMessage::Row(row) = message {
                        let names = row.columns().iter().map(|column| column.name().to_owned());
                        let values = (0..row.len()).map(|place| row.get(place).map(str::to_owned));
                        rows.push(names.zip(values).collect());
                    }
                }
            }
            Self::Sqlx(connection) => {
                use sqlx::Row as _;
                let mut connection = connection.lock().await;
                for row in sqlx::raw_sql(sql).fetch_all(&mut *connection).await? {
                    let value = |column: usize| {
                        let value = row.try_get_raw(column).unwrap();
                        value.as_str().ok().map(str::to_owned)
                    };
                    let columns = row.columns().iter();
                    let columns = columns.map(|c| (c.name().to_owned(), value(c.ordinal())));
                    rows.push(columns.collect());
                }
            }
        }
        Ok(rows)
    }
}

impl Executor for Session {
    async fn query(&self, sql: &str, args: &Args<'_>) -> Result<Vec<pg_once::Row>, Error> {
        match self {
            Self::TokioPostgres(client) => Executor::query(client, sql, args).await,
            Self::Sqlx(connection) => {
                let mut connection = connection.lock().await;
                Sqlx::on(&mut connection).query(sql, args).await
            }
        }
    }
}

async fn sessions() -> HashMap<&'static str, Session> {
    let operator = connect_to(directly("it makes tables")).await;
    operator.batch_execute(TABLES).await.unwrap();
    HashMap::from([
        ("a", Session::open().await),
        ("b", Session::open().await),
        ("operator", Session::TokioPostgres(operator)),
        ("later", Session::TokioPostgres(a_year_later().await)),
    ])
}

fn table() -> Table {
    serde_json::from_str(TABLE).unwrap()
}

#[tokio::test]
async fn the_shard_of_a_routing_value_is_the_same_everywhere() {
    let client = connect().await;
    for vector in table().shard_of {
        let sql = "SELECT once.shard_of($1, $2)";
        let args = [
            (&vector.routing as _, tokio_postgres::types::Type::TEXT),
            (&vector.shards as _, tokio_postgres::types::Type::INT4),
        ];
        let row = client.query_typed_one(sql, &args).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), vector.shard, "{}", vector.routing);
    }
}

#[tokio::test]
async fn every_case_that_all_languages_have_to_pass() {
    let (table, sessions) = (table(), sessions().await);
    for case in &table.cases {
        let mut run = Run {
            id: Uuid::new_v4().to_string(),
            sessions: &sessions,
            sql: &table.sql,
            answers: HashMap::new(),
            sent: HashMap::new(),
            open: BTreeSet::new(),
        };
        for call in &case.calls {
            println!("{}: {call:?}", case.case); // shown if the test fails
            run.make(call).await;
        }
    }
}
