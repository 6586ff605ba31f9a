//! `examples/order_service`, killed with -9 or disconnected at each of its statements: one order, one charge.

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use axum::{Json, Router};
use pg_once::http::{IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use uuid::Uuid;

use crate::proxy::{Cut, Proxy};
use crate::support::{connect_to, directly};

/// `key_claim`, `key_step`, `key_step_done`, `key_advance`; BEGIN, INSERT, `key_complete`, COMMIT.
const STATEMENTS: usize = 8;

const PREPARES: &str = "its statements are prepared";

/// The charges of a bank that dedupes: each has a derived key and an order.
type Charges = Arc<Mutex<BTreeSet<(String, String)>>>;

struct Shop {
    bank: String,
    charges: Charges,
    scope: String,
}

/// A running service; killed when dropped.
struct Service {
    process: Child,
    url: String,
}

/// The status of an answer, whether the answer is a replay, and its body.
type Reply = (u16, bool, String);

impl Shop {
    async fn open() -> Self {
        let charges = Charges::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let bank = format!("http://{}", listener.local_addr().unwrap());
        let made = Arc::clone(&charges);
        let charge = async move |headers: HeaderMap, Json(body): Json<Value>| {
            let key = headers[IDEMPOTENCY_KEY].to_str().unwrap().to_owned();
            let answer = json!({ "charge_id": key });
            made.lock()
                .unwrap()
                .insert((body["reference"].to_string(), key));
            Json(answer)
        };
        let app = Router::new().route("/charges", post(charge));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self {
            bank,
            charges,
            scope: format!("orders {}", Uuid::new_v4()),
        }
    }

    async fn serve(&self, database: &str) -> Service {
        self.serve_with(database, &[]).await
    }

    async fn serve_with(&self, database: &str, more: &[&str]) -> Service {
        // Services start one at a time, because the first one makes the table.
        static STARTING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let _alone = STARTING.lock().await;
        let tests = std::env::current_exe().unwrap();
        let program = tests
            .ancestors()
            .nth(2)
            .unwrap()
            .join("examples/order_service");
        let mut process = Command::new(&program)
            .args(["--listen", "127.0.0.1:0", "--lease-ms", "1000"])
            .args(["--database-url", database, "--bank-url", &self.bank])
            .args(["--scope", &self.scope])
            .args(more)
            .env("RUST_LOG", "error")
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; cargo build --examples", program.display())
            });
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let url = format!("http://{}/orders", line.rsplit(' ').next().unwrap());
        Service { process, url }
    }

    /// Asserts that the key has one order and one charge.
    async fn assert_done_once(&self, key: &str) {
        let key = format!("ada/{key}");
        let sql = "SELECT count(*) FROM orders WHERE idempotency_key = $1";
        let client = connect_to(directly(PREPARES)).await;
        let orders: i64 = client.query_one(sql, &[&key]).await.unwrap().get(0);
        let charges = self.charges.lock().unwrap();
        let charges = charges
            .iter()
            .filter(|(order, _)| order.contains(&key))
            .count();
        assert_eq!((orders, charges), (1, 1), "{key}");
    }

    /// Sends an order to a process that is killed at its nth statement; false if it made fewer statements.
    async fn killed_at(&self, nth: usize, arrives: bool, key: &str) -> bool {
        let proxy = Proxy::in_front_of(directly(PREPARES)).await;
        let mut doomed = self.serve(&proxy.url()).await;
        proxy.cut(Cut {
            text: "",
            nth,
            arrives,
            hold: true,
        });
        let struck = async {
            while proxy.lost() == 0 {
                sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! { () = struck => {}, _ = doomed.order(key) => {} }
        doomed.process.kill().await.unwrap();
        proxy.lost() == 1
    }
}

impl Service {
    async fn order(&self, key: &str) -> Option<Reply> {
        let order = json!({"customer": "ada", "item": "tea", "amount_cents": 1200});
        let request = reqwest::Client::new().post(&self.url).json(&order);
        let request = request.header("X-Forwarded-User", "ada");
        let response = request.header(IDEMPOTENCY_KEY, key).send().await.ok()?;
        let replayed = response.headers().contains_key(IDEMPOTENT_REPLAYED);
        let status = response.status().as_u16();
        Some((status, replayed, response.text().await.ok()?))
    }

    /// Repeats the request until its answer is neither 409 nor 503.
    async fn order_until_answered(&self, key: &str) -> Reply {
        loop {
            match self.order(key).await.unwrap() {
                (409 | 503, _, _) => sleep(Duration::from_millis(50)).await,
                reply => return reply,
            }
        }
    }
}

#[tokio::test]
async fn an_order_whose_service_is_killed_at_any_statement_is_made_once_by_another() {
    let shop = Shop::open().await;
    let whole = Proxy::in_front_of(directly(PREPARES)).await;
    let steady = shop.serve(&whole.url()).await;
    for arrives in [false, true] {
        let mut keys = Vec::new();
        loop {
            let key = Uuid::new_v4().to_string();
            if !shop.killed_at(keys.len() + 1, arrives, &key).await {
                break;
            }
            keys.push(key);
        }
        assert!(keys.len() >= STATEMENTS, "{} statements", keys.len());
        for (place, key) in keys.iter().enumerate() {
            let (status, replayed, body) = steady.order_until_answered(key).await;
            // There was an answer to replay only if the last statement, COMMIT, reached the server.
            let answered = arrives && place + 1 == keys.len();
            assert_eq!((status, replayed), (201, answered), "{place}");
            assert_eq!(steady.order(key).await, Some((201, true, body)));
            shop.assert_done_once(key).await;
        }
    }
}

#[tokio::test]
async fn any_statement_of_an_order_or_its_answer_may_be_lost_and_the_service_goes_on() {
    let shop = Shop::open().await;
    for arrives in [false, true] {
        let proxy = Proxy::in_front_of(directly(PREPARES)).await;
        let service = shop.serve(&proxy.url()).await;
        for nth in 1.. {
            let (key, lost) = (Uuid::new_v4().to_string(), proxy.lost());
            proxy.cut(Cut {
                text: "",
                nth,
                arrives,
                hold: false,
            });
            let reply = service.order(&key).await.unwrap();
            assert_eq!(reply.0, 201, "{nth}: {}", reply.2);
            shop.assert_done_once(&key).await;
            if proxy.lost() == lost {
                assert!(nth > STATEMENTS, "{nth}");
                break;
            }
        }
    }
}

/// A bank that does not dedupe, and answers no request for a charge: it books the charge half a second later. It lists
/// the charges that it has booked.
async fn late_bank() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let booked = Arc::<Mutex<Vec<Value>>>::default();
    let (book, list) = (Arc::clone(&booked), Arc::clone(&booked));
    let charge = async move || {
        tokio::spawn(async move {
            sleep(Duration::from_millis(500)).await;
            let mut book = book.lock().unwrap();
            let number = book.len();
            book.push(json!({ "charge_id": format!("charge {number}") }));
        });
        std::future::pending::<()>().await
    };
    let charges = async move || Json(list.lock().unwrap().clone());
    let app = Router::new().route("/charges", post(charge).get(charges));
    tokio::spawn(async move { axum::serve(listener, app).await });
    (url, booked)
}

#[tokio::test]
async fn a_bank_that_books_after_the_timeout_and_does_not_dedupe_charges_once() {
    let (bank, booked) = late_bank().await;
    let shop = Shop {
        bank,
        ..Shop::open().await
    };
    let whole = Proxy::in_front_of(directly(PREPARES)).await;
    let hasty = ["--bank-dedupes=false", "--bank-timeout-ms=100"];
    let service = shop.serve_with(&whole.url(), &hasty).await;
    let (status, replayed, _) = service.order_until_answered("late").await;
    assert_eq!((status, replayed), (201, false));
    sleep(Duration::from_secs(1)).await; // A second charge would be booked by now.
    assert_eq!(booked.lock().unwrap().len(), 1);
}

/// A bank behind a gateway. While the bank is being deployed, the gateway answers in its place: 404, then 405.
async fn bank_behind_a_gateway() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let refusals = Mutex::new(vec![StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_FOUND]);
    let refusals = Arc::new(refusals);
    let charge = async move || match refusals.lock().unwrap().pop() {
        Some(status) => status.into_response(),
        None => Json(json!({"charge_id": "charge 1"})).into_response(),
    };
    let app = Router::new().route("/charges", post(charge));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn a_gateway_without_its_service_refuses_no_order() {
    let shop = Shop {
        bank: bank_behind_a_gateway().await,
        ..Shop::open().await
    };
    let whole = Proxy::in_front_of(directly(PREPARES)).await;
    let service = shop.serve(&whole.url()).await;
    assert_eq!(service.order("gateway").await.unwrap().0, 503);
    let (status, replayed, _) = service.order_until_answered("gateway").await;
    assert_eq!((status, replayed), (201, false));
}
