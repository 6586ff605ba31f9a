//! `examples/billing`, killed with -9 at each of its statements: another process closes the billing, with one invoice
//! and one registration.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Json, Router};
use deadpool_postgres::{Manager, Pool};
use pg_once::Machine;
use pg_once::http::IDEMPOTENCY_KEY;
use serde_json::{Value, json};
use tokio::process::{Child, Command};
use tokio::time::sleep;
use tokio_postgres::NoTls;
use uuid::Uuid;

use crate::proxy::{Cut, Proxy};
use crate::support::directly;

/// The claim; BEGIN; the SELECT (prepare, run); the INSERT (prepare, run); the finish; COMMIT.
const STATEMENTS: usize = 8;

const SETTINGS: &str = "its sessions have a search_path, and its statements are prepared";
const TABLES: &str = include_str!("../../../sql/examples/billing.sql");
const DEFINITION: &str = include_str!("../../../sql/examples/billing.json");

/// The keys of the registrations.
type Registrations = Arc<Mutex<BTreeSet<String>>>;

struct Shop {
    name: String,
    pool: Pool,
    office: String,
    registrations: Registrations,
}

impl Shop {
    async fn open() -> Self {
        let registrations = Registrations::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let office = format!("http://{}", listener.local_addr().unwrap());
        let known = Arc::clone(&registrations);
        let register = async move |headers: HeaderMap| {
            let key = headers[IDEMPOTENCY_KEY].to_str().unwrap();
            known.lock().unwrap().insert(key.to_owned());
            Json(json!({ "id": key }))
        };
        let app = Router::new().route("/registrations", post(register));
        tokio::spawn(async move { axum::serve(listener, app).await });

        let name = format!("billing_{}", Uuid::new_v4().simple());
        let mut config = directly(SETTINGS);
        config.options(format!("-c search_path={name}"));
        let pool = Pool::builder(Manager::new(config, NoTls)).build().unwrap();
        let client = pool.get().await.unwrap();
        let tables = format!("CREATE SCHEMA {name}; {TABLES}");
        client.batch_execute(&tables).await.unwrap();
        let mut definition: Value = serde_json::from_str(DEFINITION).unwrap();
        definition["machine"] = name.as_str().into();
        definition["steps"][0]["lease"] = "1 second".into();
        let defined = Machine::define(&pool, &definition.into()).await;
        defined.unwrap();
        Self {
            name,
            pool,
            office,
            registrations,
        }
    }

    async fn bill(&self) -> Uuid {
        let insert = "INSERT INTO billing (customer, total) VALUES ('ada', 70) RETURNING id";
        let client = self.pool.get().await.unwrap();
        client.query_one(insert, &[]).await.unwrap().get(0)
    }

    /// Starts a process that closes the billing.
    fn clerk(&self, proxy: &Proxy, billing: Uuid) -> Child {
        let tests = std::env::current_exe().unwrap();
        let program = tests.ancestors().nth(2).unwrap().join("examples/billing");
        Command::new(&program)
            .args(["--database-url", &proxy.url(), "--work-for", &self.name])
            .args(["--foreign", &self.office, "--billing"])
            .arg(billing.to_string())
            .env("RUST_LOG", "error")
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{}: {error}; cargo build --examples", program.display())
            })
    }

    /// Kills a clerk at its nth statement; false if it made fewer statements.
    async fn killed_at(&self, nth: usize, arrives: bool, billing: Uuid) -> bool {
        let proxy = Proxy::in_front_of(directly(SETTINGS)).await;
        proxy.cut(Cut {
            text: "",
            nth,
            arrives,
            hold: true,
        });
        let mut doomed = self.clerk(&proxy, billing);
        let struck = async {
            while proxy.lost() == 0 {
                sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::select! { () = struck => {}, ended = doomed.wait() => assert!(ended.unwrap().success()) }
        doomed.kill().await.unwrap();
        proxy.lost() == 1
    }

    /// Sweeps again and again, as a scheduler does.
    async fn sweep(&self) {
        let client = self.pool.get().await.unwrap();
        loop {
            let sweep = "SELECT once.sweep(task => 'action_release')";
            client.batch_execute(sweep).await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Asserts that the billing is closed, with one invoice and one registration.
    async fn assert_closed_once(&self, billing: Uuid) {
        let sql = "SELECT status::text, invoices, (SELECT count(*) FROM invoice WHERE billing_id = b.id) \
                   FROM billing b WHERE id = $1";
        let client = self.pool.get().await.unwrap();
        let row = client.query_one(sql, &[&billing]).await.unwrap();
        let found: (String, i32, i64) = (row.get(0), row.get(1), row.get(2));
        assert_eq!(found, ("closed".to_owned(), 1, 1), "{billing}");
        let known = self.registrations.lock().unwrap();
        let of = known
            .iter()
            .filter(|key| key.contains(&billing.to_string()));
        assert_eq!(of.count(), 1, "{known:?}");
    }
}

#[tokio::test]
async fn a_billing_whose_clerk_is_killed_at_any_statement_is_closed_once_by_another() {
    let shop = Shop::open().await;
    let whole = Proxy::in_front_of(directly(SETTINGS)).await;
    for arrives in [false, true] {
        let mut billings = Vec::new();
        loop {
            let billing = shop.bill().await;
            let killed = shop.killed_at(billings.len() + 1, arrives, billing).await;
            billings.push(billing);
            if !killed {
                break;
            }
        }
        assert!(billings.len() > STATEMENTS, "{} statements", billings.len());
        for billing in billings {
            let mut other = shop.clerk(&whole, billing);
            tokio::select! { () = shop.sweep() => {}, ended = other.wait() => assert!(ended.unwrap().success()) }
            shop.assert_closed_once(billing).await;
        }
    }
}
