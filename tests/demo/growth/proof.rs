//! The questions of the growth: those of the orders, and where the orders are.

use crate::orders::proof;
use crate::proof::{Question, Want, latencies, question};

/// When a charge was made that was not the first for its order, as microseconds since 1970.
pub const DAMAGE: &str = "\
select at_micros from bank_ledger l
where exists (select from bank_ledger e where e.reference = l.reference and e.line < l.line)";

pub const LONGEST: &str = "longest time to an answer";
/// Nobody waits longer for a move; who does is stuck.
pub const LONGEST_MS: f64 = 10_000.0;

/// The questions; some only where pg_once is used.
pub fn questions(pg_once: bool) -> Vec<Question> {
    let mut questions = proof::questions(LONGEST_MS / 1000.0);
    if pg_once {
        questions.extend([
            question(
                "orders in the wrong shard",
                Want::Zero,
                "select count(*) from found where server <> once.shard_of(customer, 16)",
            ),
            question(
                "keys not finished",
                Want::Zero,
                "select count(*) from asked a\n\
                 where not exists (select from stored k where k.key = a.key and k.status = 'finished')",
            ),
            question(
                "answers other than the stored one",
                Want::Zero,
                "select count(*) from saw s join stored k on k.key = s.key\n\
                 where s.status between 200 and 299 and s.body is distinct from k.body",
            ),
        ]);
    }
    questions.extend(latencies(["latency p50", "latency p99"], "'first'"));
    questions.push(Question {
        name: LONGEST,
        want: Want::Any,
        unit: "ms",
        sql: "select 1000 * max(taken)\n\
              from (select max(answered_s) - min(sent_s) as taken from saw group by key, client) waited"
            .to_owned(),
    });
    questions
}
