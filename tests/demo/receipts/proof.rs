//! The questions that decide about receipts, each one SQL over the orders and the receiver's ledger.

use crate::proof::{Question, Want, question, times};

/// The questions; some only where pg_once is used.
pub fn questions(pg_once: bool) -> Vec<Question> {
    let mut questions = vec![
        question("orders made", Want::Any, "select count(*) from orders"),
        question(
            "receipts lost",
            Want::Zero,
            "select count(*) from orders o\n\
             where not exists (select from receipt r where r.reference = o.idempotency_key)",
        ),
        question(
            "receipts twice, by a receiver that dedupes",
            Want::Zero,
            "select count(*) - count(distinct reference) from outside_ledger where kind = 'made'",
        ),
        question(
            "receipts of orders that do not exist",
            Want::Zero,
            "select count(*) from receipt r\n\
             where not exists (select from orders o where o.idempotency_key = r.reference)",
        ),
        question(
            "receipts that disagree with their order",
            Want::Zero,
            "select count(*) from receipt r join orders o on o.idempotency_key = r.reference\n\
             where (r.customer, r.number, r.amount_cents) <> (o.customer, o.number, o.amount_cents)",
        ),
        question(
            "receipts out of their customer's order",
            Want::Zero,
            DISORDER,
        ),
        question(
            "duplicates seen on the wire",
            Want::Any,
            "select count(*) - count(distinct reference) from outside_ledger where kind in ('made', 'again')",
        ),
    ];
    if pg_once {
        questions.push(question(
            "receipts given up (dead letters)",
            Want::Zero,
            "select count(*) from once.outbox_dead('receipts', 'default', max => 10000)",
        ));
    }
    questions.extend(times(
        ["order to receipt p50", "order to receipt p99"],
        DELAY,
    ));
    questions
}

/// Numbers are given in the order of the commits; the ledger's lines are in the order of arrival.
const DISORDER: &str = "\
select count(*)
from (select number, max(number) over (partition by customer order by line
                                       rows between unbounded preceding and 1 preceding) as earlier
      from receipt) arrived
where earlier > number";

const DELAY: &str = "\
select extract(epoch from r.at - o.made_at) as taken
from orders o join receipt r on r.reference = o.idempotency_key";

/// When a receipt was taken in once more, as microseconds since 1970.
pub const DAMAGE: &str = "\
select at_micros from outside_ledger l
where kind = 'made' and not exists (select from receipt r where r.line = l.line)";
