//! Whether a run of the fundings may be called a pass, and what it went through.
//!
//! Invariant: as the verdict of all says: no, unless the numbers are right and the trouble happened.

use anyhow::Result;
use tokio_postgres::Client;

use crate::outside::line::{Fate, Kind, Line};
use crate::outside::{count, fated};
use crate::story::Run;
use crate::verdict;

const KILLS_AT_LEAST: usize = 20;

/// The account is the first that is started.
const ACCOUNT: usize = 0;

/// Transfers of accounts that never answer, given back.
const UNANSWERED: &str = "select count(distinct m.reference) from transfer m join transfer r using (reference) \
                          where m.kind = 'made' and r.kind = 'reversed' and m.customer like 'silent%'";
const LEFT: &str = "select count(*) from once.outbox_dead('fundings', 'default', max => 10000) where kind = 'expired'";

/// What the tables say of the trouble.
#[derive(Default)]
pub struct Met {
    /// Transfers whose end was never recorded, and that were compensated.
    unanswered: usize,
    /// Fundings whose last attempt nobody lived to fail.
    left: usize,
}

impl Met {
    pub async fn ask(owner: &Client, pg_once: bool) -> Result<Self> {
        let count = async |sql| -> Result<usize> {
            let count: i64 = owner.query_one(sql, &[]).await?.get(0);
            Ok(usize::try_from(count)?)
        };
        Ok(Self {
            unanswered: count(UNANSWERED).await?,
            left: if pg_once { count(LEFT).await? } else { 0 },
        })
    }
}

/// Everything that is wrong with a run; empty is a pass.
pub fn faults(run: &Run, met: &Met, ledger: &[Line]) -> Vec<String> {
    let title = format!("{}, fundings", run.card.title);
    let happened = [
        ("a terminated backend", run.trouble.backends_terminated),
        (
            "a compensation of a transfer that was never answered",
            met.unanswered,
        ),
        ("a call that the account knew", count(ledger, Kind::Again)),
        ("an answer that the account cut", fated(ledger, Fate::Cut)),
        ("an account killed", run.trouble.kills_of(ACCOUNT)),
    ];
    verdict::faults(run, &title, KILLS_AT_LEAST, &happened)
}

/// The trouble that is worth a line.
pub fn went_through(run: &Run, met: &Met, ledger: &[Line]) -> Vec<(&'static str, f64)> {
    let trouble = &run.trouble;
    let lines = [
        ("compensations carried out", count(ledger, Kind::Reversed)),
        ("... of transfers never answered", met.unanswered),
        ("fundings that died with their worker", met.left),
        ("processes killed (kill -9)", trouble.kills),
        ("... of them the account", trouble.kills_of(ACCOUNT)),
        ("database backends terminated", trouble.backends_terminated),
        ("answers lost by the network", trouble.answers_cut),
        ("answers never given", fated(ledger, Fate::Cut)),
        ("answers too late", fated(ledger, Fate::Late)),
    ];
    lines.map(|(name, times)| (name, times as f64)).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::tests::assert_judges;

    #[test]
    fn a_run_without_trouble_fails_and_so_does_one_with_a_wrong_number() {
        let missed = "not once a compensation of a transfer that was never answered";
        let judge = |run: &Run| faults(run, &Met::default(), &[]);
        assert_judges(judge, &["before_abort_commit"], missed);
    }
}
