//! The questions that decide about fundings, each one SQL over our own ledger and the account's.
//!
//! Invariant: what must have moved outside is computed from how each funding ended, and compared with
//! what the account itself has written down.

use crate::proof::{Question, Want, question, times};

/// The questions; some only where pg_once is used.
pub fn questions(pg_once: bool) -> Vec<Question> {
    let mut questions = vec![
        question(
            "fundings asked for",
            Want::Any,
            "select count(*) from asked",
        ),
        question(
            "... that cannot succeed",
            Want::Any,
            "select count(*) from asked where doomed",
        ),
        question("fundings posted", Want::Any, count("status = 'posted'")),
        question("fundings archived", Want::Any, count("status = 'archived'")),
        question(
            "fundings ended",
            Want::All,
            count("status in ('posted', 'archived')"),
        ),
        question(
            "fundings half-way left",
            Want::Zero,
            count("status = 'pending'"),
        ),
        question(
            "entries neither posted nor archived",
            Want::Zero,
            "select count(*) from entry where status not in ('posted', 'archived')",
        ),
        question(
            "entries that disagree with their funding",
            Want::Zero,
            "select count(*) from entry e join funding f using (funding) where e.status <> f.status",
        ),
        question(
            "cents outside that the ledger does not know",
            Want::Zero,
            UNKNOWN_MONEY,
        ),
        question("transfers made twice", Want::Zero, twice("made")),
        question("compensations made twice", Want::Zero, twice("reversed")),
        question("compensations out of order", Want::Zero, DISORDER),
        question(
            "repeated calls seen on the wire",
            Want::Any,
            "select count(*) from outside_ledger where kind = 'again'",
        ),
    ];
    if pg_once {
        questions.extend([
            question("keys not finished", Want::Zero, UNFINISHED),
            question(
                "compensations given up (dead letters)",
                Want::Zero,
                "select count(*) from once.outbox_dead('compensations', 'default', max => 10000)",
            ),
        ]);
    }
    let names = ["a funding's end p50", "a funding's end p99"];
    questions.extend(times(names, DELAY));
    questions
}

fn count(which: &str) -> String {
    format!("select count(*) from funding where {which}")
}

fn twice(kind: &str) -> String {
    format!("select count(*) - count(distinct reference) from transfer where kind = '{kind}'")
}

const UNKNOWN_MONEY: &str = "\
select sum(abs(coalesce(moved.net, 0) - coalesce(e.amount_cents, 0)))
from expected e
full join (select reference, sum(amount_cents) as net from transfer group by reference) moved using (reference)";

/// Newest first: the push, then the pull, then our own entries.
const DISORDER: &str = "\
with back as (select funding, leg, min(line) as line, max(at) as at from transfer
              where kind = 'reversed' group by funding, leg)
select count(*) from funding f
left join back push on push.funding = f.funding and push.leg = 'push'
left join back pull on pull.funding = f.funding and pull.leg = 'pull'
where push.line > pull.line
   or f.status = 'archived' and (push.at > f.ended_at or pull.at > f.ended_at)";

const UNFINISHED: &str = "\
select count(*) from asked a
left join lateral once.key_get('fundings', a.funding) k on true
where k.status is distinct from 'finished'";

const DELAY: &str = "\
select extract(epoch from ended_at - made_at) as taken from funding where ended_at is not null";

/// When money moved once more, as microseconds since 1970.
pub const DAMAGE: &str = "\
select at_micros
from (select *, row_number() over (partition by reference, kind order by line) as nth from transfer) moved
where nth > 1";
