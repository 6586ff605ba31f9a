//! The questions that decide about orders, each one SQL over the orders and the bank's own ledger.
//!
//! A request is abandoned when its client asked once and left without an answer. Of those that had
//! arrived none may be left half-way, whoever brings them to their end.

use crate::proof::{Question, Want, question};
use crate::settings::SCOPE;

/// The questions for every service; `stuck_after` is one lease plus slack, in seconds.
pub fn questions(stuck_after: f64) -> Vec<Question> {
    vec![
        question("orders asked for", Want::Any, "select count(*) from asked"),
        question(
            "orders made",
            Want::Any,
            "select count(distinct o.idempotency_key)\nfrom orders o join asked a on a.key = o.idempotency_key",
        ),
        question("orders missing", Want::Zero, MISSING),
        question(
            "orders made twice",
            Want::Zero,
            "select count(*) - count(distinct idempotency_key) from orders",
        ),
        question(
            "double charges",
            Want::Zero,
            "select coalesce(sum(times - 1), 0)\n\
             from (select count(*) as times from bank_ledger group by reference) charged",
        ),
        question(
            "charges without an order",
            Want::Zero,
            "select count(*) from bank_ledger l\n\
             where not exists (select from orders o where o.charge_id = l.charge_id)\n\
             \x20 and not exists (select from outside_ledger r where r.kind = 'reversed' and r.reference = l.reference)",
        ),
        question(
            "orders without a charge",
            Want::Zero,
            "select count(*) from orders o\n\
             where not exists (select from bank_ledger l where l.charge_id = o.charge_id\n\
             \x20                   and l.amount_cents = o.amount_cents and l.reference = o.idempotency_key)",
        ),
        question("wrong answers replayed", Want::Zero, WRONG_ANSWERS),
        question("requests stuck", Want::Zero, stuck(stuck_after)),
    ]
}

/// Of these requests the client left and had no answer.
const ABANDONED: &str = "\
from asked a
where a.leaves and not exists (select from saw s where s.key = a.key and s.outcome in ('created', 'replayed'))";

/// What only a service with keys can be asked.
pub fn key_questions() -> Vec<Question> {
    let abandoned =
        |name, and: &str| question(name, Want::Any, format!("select count(*) {ABANDONED}{and}"));
    let made_by = |who: &str| {
        format!(
            "\n  and exists (select from orders o where o.idempotency_key = a.key and o.made_by = '{who}')"
        )
    };
    let double = |name, which: &str| question(name, Want::Any, format!("{DOUBLE_CLICKS}{which}"));
    vec![
        double(
            "double clicks told 409 with Retry-After",
            "client in ('first', 'twin') and outcome = 'in_progress'",
        ),
        double(
            WAITED,
            "client in ('waiting', 'waiting_twin') and outcome = 'replayed'",
        ),
        double(
            "... told 409 when they had waited",
            "client in ('waiting', 'waiting_twin') and outcome = 'in_progress'",
        ),
        abandoned("requests abandoned by their client", ""),
        abandoned("... that had not arrived anywhere", NO_TRACE),
        abandoned("... that went on without it", &made_by("request")),
        abandoned(BY_COMPLETER, &made_by("completer")),
        question(
            "keys not finished",
            Want::Zero,
            format!(
                "select count(*) from asked a, lateral once.key_get('{SCOPE}', a.key) k\n\
                 where k.status <> 'finished'"
            ),
        ),
        question(
            "answers other than the stored one",
            Want::Zero,
            format!(
                "select count(*) from saw s, lateral once.key_get('{SCOPE}', s.key) k\n\
                 where s.status between 200 and 299 and s.body is distinct from k.response_body::text"
            ),
        ),
    ]
}

/// How the first request of a click ended; only a double click can find its request in progress or done.
const DOUBLE_CLICKS: &str = "\
select count(*) from (select distinct on (key, client) client, outcome from saw order by key, client, sent_s) click
where ";

/// The row that waiting is measured by.
pub const WAITED: &str = "double clicks that waited for the answer";

/// The row that the completer is measured by.
pub const BY_COMPLETER: &str = "... finished by the completer";

const NO_TRACE: &str = "
  and not exists (select from once.key_get('orders.create', a.key))";

/// What is settled from the bank's ledger where it can be had only afterwards.
pub fn ledger_questions() -> Vec<Question> {
    vec![
        question(
            DIFFERENCES,
            Want::Any,
            "select coalesce(sum(count), 0)::int8 from differences",
        ),
        question(
            "... parked, and the bank had charged",
            Want::Any,
            "select coalesce(sum(count), 0)::int8 from differences where finding = 'parked, and they did it'",
        ),
        question(
            "... parked, and it had not",
            Want::Any,
            "select coalesce(sum(count), 0)::int8 from differences where finding = 'parked, and they did not'",
        ),
        question(
            "... that became orders",
            Want::Any,
            "select count(*) from orders where made_by = 'reconciler'",
        ),
        question(
            "charges sent back",
            Want::Any,
            "select count(distinct reference) from outside_ledger where kind = 'reversed'",
        ),
        question(
            "charges sent back twice",
            Want::Zero,
            "select count(*) - count(distinct reference) from outside_ledger where kind = 'reversed'",
        ),
        question(
            DEAD_BUT_THERE,
            Want::Any,
            "select count(*) from dead_refund where finding = 'dead, and they have it'",
        ),
        question(
            DEAD_AND_NOT_THERE,
            Want::Any,
            "select count(*) from dead_refund where finding = 'dead, and they do not have it'",
        ),
        question(
            "dead refunds that it lacks afterwards",
            Want::Zero,
            "select count(*) from reconcile_dead('refunds', 'default') where finding = 'dead, and they do not have it'",
        ),
        question(
            "differences afterwards",
            Want::Zero,
            "select count(*) from reconcile('orders.create', now() - interval '1 day', now() + interval '1 hour')",
        ),
    ]
}

/// The row that the recipe is measured by.
pub const DIFFERENCES: &str = "differences from the bank's ledger";
/// Those that the recipe's part for deliveries is measured by.
pub const DEAD_BUT_THERE: &str = "dead refunds that the bank had: left dead";
pub const DEAD_AND_NOT_THERE: &str = "dead refunds that it lacked: sent again";

/// Neither made nor refused, although its client stayed or was charged.
const MISSING: &str = "\
select count(*) from asked a
where not exists (select from orders o where o.idempotency_key = a.key)
  and case when exists (select from outside_ledger r where r.kind = 'reversed' and r.reference = a.key) then false
           when exists (select from bank_ledger l where l.reference = a.key) then true
           else not a.leaves and not exists (select from saw s where s.key = a.key and s.outcome = 'declined') end";

/// An answer for another request; an order that is not there; two different answers for one key.
const WRONG_ANSWERS: &str = "\
with good as (select key, asked_cents, body::jsonb as body from saw where status between 200 and 299)
select (select count(*) from good g
        where (g.body->>'amount_cents')::bigint <> g.asked_cents
           or not exists (select from orders o
                          where o.order_id = g.body->>'order_id' and o.charge_id = g.body->>'charge_id'
                            and o.idempotency_key = g.key))
     + (select count(*) from (select from good group by key having count(distinct body) > 1) changed)";

/// A key is stuck when its clients hear nothing but \"in progress\" for longer than a lease after
/// the last thing that went wrong (or after the first request), or never get a final answer.
fn stuck(after: f64) -> String {
    format!(
        "select count(distinct key)\n\
         from (select key, client, outcome, answered_s,\n\
         \x20            max(case when outcome = 'in_progress' then null else answered_s end)\n\
         \x20              over (partition by key order by answered_s) as last_trouble,\n\
         \x20            min(sent_s) over (partition by key) as first_sent,\n\
         \x20            bool_or(final) over (partition by key, client) as ended,\n\
         \x20            bool_or(outcome in ('created', 'replayed', 'declined')) over (partition by key) as answered\n\
         \x20     from saw) seen\n\
         where outcome = 'in_progress' and answered_s - coalesce(last_trouble, first_sent) > {after}\n\
         \x20  or client <> 'once' and not (answered and ended)"
    )
}
