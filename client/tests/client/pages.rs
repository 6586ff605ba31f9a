//! The pages of `sql/examples`: every statement that a reader can copy is one that the server
//! understands, with the tables and functions that are there.

use crate::support::{Jobs, directly};

/// The orders of `client/examples/order_service`.
const ORDERS: &str = "CREATE TABLE orders (order_id text PRIMARY KEY, idempotency_key text, customer text, item text, \
    amount_cents bigint, charge_id text, made_by text)";
const RECONCILE: &str = include_str!("../../../sql/examples/reconcile.sql");
const BILLING_TABLES: &str = include_str!("../../../sql/examples/billing.sql");

/// The statements of a page's SQL blocks, without their comments.
fn statements(page: &str) -> Vec<String> {
    let blocks = page.split("```sql\n").skip(1);
    let blocks = blocks.map(|rest| rest.split("```").next().unwrap());
    let code: String = blocks
        .flat_map(str::lines)
        .map(|line| line.split("--").next().unwrap().to_owned() + "\n")
        .collect();
    let parts = code.split(';').map(|part| part.trim().to_owned());
    parts.filter(|part| !part.is_empty()).collect()
}

/// `$job` and its like become `$1`, `$2`, ...
fn numbered(statement: &str) -> String {
    let mut names: Vec<String> = vec![];
    let mut parts = statement.split('$');
    let mut sql = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (name, rest) = part.split_at(end.unwrap_or(part.len()));
        let at = names.iter().position(|known| known == name);
        let at = at.unwrap_or_else(|| {
            names.push(name.to_owned());
            names.len() - 1
        });
        sql += &format!("${}{rest}", at + 1);
    }
    sql
}

/// The role that the pages grant to.
const APP: &str = "DO $$ BEGIN CREATE ROLE app; \
     EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$";

async fn assert_understood(page: &str, at_least: usize) {
    let jobs = Jobs::new().await;
    let pool = jobs.through(directly("statements are prepared"));
    let client = pool.get().await.unwrap();
    client.batch_execute(BILLING_TABLES).await.unwrap();
    client.batch_execute(ORDERS).await.unwrap();
    client.batch_execute(RECONCILE).await.unwrap();
    client.batch_execute(APP).await.unwrap();
    let statements = statements(page);
    assert!(statements.len() >= at_least, "{statements:?}");
    for statement in statements {
        // A table of the page itself: the statements behind it are of it.
        if statement.starts_with("CREATE TABLE") {
            client.batch_execute(&statement).await.unwrap();
            continue;
        }
        if let Err(error) = client.prepare(&numbered(&statement)).await {
            panic!("{statement}\n{:?}", error.as_db_error());
        }
    }
}

#[tokio::test]
async fn every_statement_on_the_page_of_the_batch_job_is_understood() {
    assert_understood(include_str!("../../../sql/examples/batch_job.md"), 20).await;
}

#[tokio::test]
async fn every_statement_on_the_page_of_the_billings_is_understood() {
    assert_understood(include_str!("../../../sql/examples/billing.md"), 12).await;
}

#[tokio::test]
async fn every_statement_on_the_page_of_the_outbox_is_understood() {
    assert_understood(include_str!("../../../sql/examples/outbox.md"), 20).await;
}

#[tokio::test]
async fn every_statement_on_the_page_for_receivers_is_understood() {
    assert_understood(
        include_str!("../../../sql/examples/webhook-receivers.md"),
        10,
    )
    .await;
}

#[tokio::test]
async fn every_statement_on_the_page_of_the_differences_is_understood() {
    assert_understood(include_str!("../../../sql/examples/reconcile.md"), 9).await;
}
