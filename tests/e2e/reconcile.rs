//! The recipe of docs/how-to/reconcile.md finds every difference from the other side's ledger, each is
//! ended once, and then none is left; done by a role with the rights that its page gives and no more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use pg_once_tests::Cluster;
use tokio_postgres::{Client, SimpleQueryMessage};

const RECIPE: &str = include_str!("../../sql/examples/reconcile.sql");
const PAGE: &str = include_str!("../../docs/how-to/reconcile.md");
const ORDERS: &str = "create table orders (order_id text primary key, idempotency_key text, customer text, \
    item text, amount_cents bigint, charge_id text, made_by text)";
const DIFFERENCES: &str = "select finding, key, wanted_cents, moved_cents, lines
    from reconcile('orders.create', now() - interval '1 hour', now() + interval '1 hour') order by finding, key";

/// What the page says is done once: the scope's options, and the rights of `app`.
fn once() -> String {
    let block = |begins: &str| {
        let (_, from) = PAGE.split_once(begins).expect(begins);
        from.split("```").next().unwrap()
    };
    format!(
        "SELECT once.scope_set({}{}",
        block("```sql\nSELECT once.scope_set("),
        block("```sql rights\n")
    )
}

/// Rows as `a|b`, a line each; NULL is `~`.
async fn show(client: &Client, sql: &str) -> String {
    let mut rows = vec![];
    for message in client.simple_query(sql).await.expect(sql) {
        if let SimpleQueryMessage::Row(row) = message {
            let columns: Vec<&str> = (0..row.len())
                .map(|at| row.get(at).unwrap_or("~"))
                .collect();
            rows.push(columns.join("|"));
        }
    }
    rows.join("\n")
}

/// Claims a key for an order of so many cents and begins its charge; tells the token.
async fn begin(client: &Client, key: &str, cents: i64) -> String {
    let claim = format!(
        "select token from once.key_claim('orders.create', '{key}', '{{\"body\": {{\"customer\": \"ann\", \
         \"item\": \"tea\", \"amount_cents\": {cents}}}}}')"
    );
    let token = show(client, &claim).await;
    let step = format!("select from once.key_step('orders.create', '{key}', {token}, 'charge')");
    show(client, &step).await;
    token
}

async fn park(client: &Client, key: &str, cents: i64) {
    let token = begin(client, key, cents).await;
    let park = format!("select once.key_park('orders.create', '{key}', {token}, 'no answer')");
    show(client, &park).await;
}

/// The request's own end: an order, or a refusal.
async fn finish(client: &Client, key: &str, cents: i64, made: bool) {
    let token = begin(client, key, cents).await;
    if made {
        let order = format!(
            "insert into orders values ('o-{key}', '{key}', 'ann', 'tea', {cents}, 'ch-{key}', 'request')"
        );
        show(client, &order).await;
    }
    let (end, code) = if made {
        ("complete", 201)
    } else {
        ("abort", 402)
    };
    let end = format!("select once.key_{end}('orders.create', '{key}', {token}, {code})");
    show(client, &end).await;
}

/// What the other side says: a charge of the key, under the derived key that was sent.
async fn entry(client: &Client, line: &str, key: &str, cents: i64) {
    let sql = format!(
        "insert into reconcile_ledger values ('{line}', once.key_derive('orders.create', '{key}', 'charge'), '{key}', \
         {cents}, now())"
    );
    show(client, &sql).await;
}

async fn settled_day(cluster: &Cluster) -> (Client, Client) {
    cluster
        .create_database_with_extension("books")
        .await
        .unwrap();
    let owner = cluster.enter("books").await.unwrap();
    owner.batch_execute(ORDERS).await.unwrap();
    owner.batch_execute(RECIPE).await.unwrap();
    owner.batch_execute("create role app login").await.unwrap();
    owner.batch_execute(&once()).await.unwrap();
    // Both sides agree about these.
    finish(&owner, "agreed", 100, true).await;
    entry(&owner, "ch-agreed", "agreed", 100).await;
    let by_reference = "update reconcile_ledger set idempotency_key = null";
    show(&owner, by_reference).await;
    finish(&owner, "refused", 100, false).await;
    begin(&owner, "under way", 100).await;
    entry(&owner, "ch-under-way", "under way", 100).await;
    let person = cluster.enter_as("app", "books").await.unwrap();
    assert_eq!(show(&person, DIFFERENCES).await, "");
    (owner, person)
}

#[tokio::test]
async fn every_difference_is_found_and_ended_once_and_then_none_is_left() {
    let cluster = Cluster::launch().unwrap();
    let (owner, person) = settled_day(&cluster).await;
    park(&owner, "charged", 150).await;
    entry(&owner, "ch-charged", "charged", 150).await;
    park(&owner, "left", 160).await;
    entry(&owner, "ch-left", "left", 160).await;
    park(&owner, "not charged", 170).await;
    finish(&owner, "twice", 180, true).await;
    entry(&owner, "ch-twice", "twice", 180).await;
    entry(&owner, "ch-twice-2", "twice", 180).await;
    finish(&owner, "unheard", 190, true).await;
    entry(&owner, "ch-stranger", "stranger", 200).await;
    // It says nothing that we could know it by.
    show(
        &owner,
        "insert into reconcile_ledger values ('ch-dumb', null, null, 210, now())",
    )
    .await;
    assert_eq!(
        show(&person, DIFFERENCES).await,
        "not of ours|stranger|~|200|{ch-stranger}\n\
         not of ours|~|~|210|{ch-dumb}\n\
         parked, and they did it|charged|0|150|{ch-charged}\n\
         parked, and they did it|left|0|160|{ch-left}\n\
         parked, and they did not|not charged|0|0|{}\n\
         they have too little|unheard|190|0|{}\n\
         they have too much|twice|180|360|{ch-twice,ch-twice-2}"
    );

    for end in [
        "select reconcile_accept('orders.create', 'charged', 1, 'ch-charged')",
        "select reconcile_refuse('orders.create', 'left', 1)",
        "select reconcile_refuse('orders.create', 'not charged', 1)",
    ] {
        show(&person, end).await;
        // A lost answer.
        let again = person.simple_query(end).await.unwrap_err();
        assert_eq!(again.code().unwrap().code(), "ON006", "{end}");
    }
    let other = "select reconcile_refuse('orders.create', 'charged', 1)";
    let refused = person.simple_query(other).await.unwrap_err();
    assert_eq!(
        refused.code().unwrap().code(),
        "ON001",
        "one verdict for an attempt"
    );
    let made = "select made_by, amount_cents, charge_id, order_id = once.key_derive('orders.create', 'charged', 'order')
                  from orders where idempotency_key = 'charged'";
    assert_eq!(show(&person, made).await, "reconciler|150|ch-charged|t");
    let replays = "select outcome, response_code, response_body ->> 'charge_id'
        from once.key_claim('orders.create', 'charged', '{\"body\": {\"customer\": \"ann\", \"item\": \"tea\", \
         \"amount_cents\": 150}}')";
    assert_eq!(show(&person, replays).await, "replayed|201|ch-charged");

    // What is left is for the other side: two refunds, by the key that the recipe names, and two questions.
    let left = "select key, moved_cents - wanted_cents from reconcile('orders.create', now() - interval '1 hour', now() + \
                interval '1 hour') where finding = 'they have too much' order by key";
    assert_eq!(show(&person, left).await, "left|160\ntwice|180");
    show(
        &person,
        "insert into reconcile_ledger
         select 'back ' || key, refund_key, key, wanted_cents - moved_cents, now()
           from reconcile('orders.create', now() - interval '1 hour', now() + interval '1 hour')
          where finding = 'they have too much'",
    )
    .await;
    let questions = "select finding, key from reconcile('orders.create', now() - interval '1 hour', now() + interval '1 hour')
                      order by finding, key";
    assert_eq!(
        show(&person, questions).await,
        "not of ours|stranger\nnot of ours|~\nthey have too little|unheard"
    );
    entry(&owner, "ch-unheard", "unheard", 190).await;
    show(
        &owner,
        "delete from reconcile_ledger where line in ('ch-stranger', 'ch-dumb')",
    )
    .await;
    assert_eq!(show(&person, DIFFERENCES).await, "");
}

#[tokio::test]
async fn dead_letters_that_arrived_all_the_same_are_told_apart() {
    let cluster = Cluster::launch().unwrap();
    let (owner, person) = settled_day(&cluster).await;
    show(&owner, "select once.topic_set('receipts', '{}')").await;
    for receipt in ["r1", "r2"] {
        let emit =
            format!("select once.outbox_emit('receipts', '{{\"reference\": \"{receipt}\"}}')");
        show(&owner, &emit).await;
    }
    let token = show(
        &owner,
        "select max(token) from once.outbox_take('receipts')",
    )
    .await;
    let dead = format!(
        "select from once.outbox_nack('receipts', 'default', {token}, error => 'no answer', kind => 'never')"
    );
    show(&owner, &dead).await;
    entry(&owner, "m-1", "r1", 0).await;
    for (final_after, to_do) in [
        ("", "wait: their line may still come"),
        (", '0'", "outbox_redrive"),
    ] {
        let found = format!(
            "select finding, reference, to_do from reconcile_dead('receipts', 'default'{final_after}) order by reference"
        );
        let expected = format!(
            "dead, and they have it|r1|nothing: leave it dead\ndead, and they do not have it|r2|{to_do}"
        );
        assert_eq!(show(&person, &found).await, expected);
    }
}
