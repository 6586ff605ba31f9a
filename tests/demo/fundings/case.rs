//! One run of the fundings: an account outside, the load, the trouble, and the proof.
//!
//! Invariant: both runs have a database, an account and processes of their own, and the same trouble
//! by the same seed; what differs is the service.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::plan::Funding;
use super::verdict::{self, Met};
use super::{database, plan, proof};
use crate::client::{Ask, Clients, Waits};
use crate::crashes::Crashes;
use crate::database::{JANITOR_ROLE, SERVICE_ROLE, create, effects_program};
use crate::ground::Ground;
use crate::journal::Journal;
use crate::load::open_loop;
use crate::outside::{Outside, Trouble};
use crate::progress::Progress;
use crate::proof::ask;
use crate::settle::settle;
use crate::stage::Cast;
use crate::story::{self, Card, Damage, Run};

const ENDPOINTS: usize = 2;
const UNDOERS: usize = 2;
/// Longer than anything takes that is still to happen: leases, some waits, a call.
const QUIET_FOR: Duration = Duration::from_secs(7);

const ACCOUNT: &[&str] = &["before_ledger", "after_ledger"];
const ENDPOINT: &[&str] = &["before_accept_commit", "after_accept"];
const WORKER: &[&str] = &[
    "between_calls",
    "after_claim",
    "after_step_begin",
    "after_transfer",
    "after_step_done",
    "before_post_commit",
    "after_post",
    "before_abort_commit",
];
const UNDO: &[&str] = &[
    "between_undo_calls",
    "before_reversal",
    "after_reversal",
    "before_archive_commit",
    "after_archive",
];
const NAIVE_WORKER: &[&str] = &[
    "after_take",
    "after_transfer",
    "after_step_done",
    "after_reversal",
    "before_end_commit",
];

const TROUBLE: Trouble = Trouble {
    slow: 0.02,
    slow_ms: 900,
    cut: 0.04,
};
/// A wish is not given up: the other end of it is what the run is about.
const WAITS: Waits = Waits {
    answer: Duration::from_millis(800),
    end: Duration::from_secs(60),
};

/// What is run.
pub struct Case {
    pub card: Card,
    /// How the services are told.
    pub how: &'static str,
    pub window: Duration,
    /// How often a process dies at each of its points.
    pub rounds: usize,
}

impl story::Case for Case {
    fn card(&self) -> Card {
        self.card
    }

    async fn run(self, ground: &Ground<'_>) -> Result<Run> {
        let card = self.card;
        let journal = Arc::new(Journal::new());
        let owner = create(ground.cluster, card.name, card.pg_once).await?;
        database::prepare(&owner, card.pg_once).await?;
        let outside = Outside::new(ground, card.name, true, &TROUBLE);
        let fundings = plan::plan(card.asked, self.window, ground.settings.seed);
        let doomed = fundings.iter().filter(|funding| funding.doomed).count();

        let workers = usize::from(ground.settings.services);
        let at_work = if card.pg_once { WORKER } else { NAIVE_WORKER };
        let crashes =
            |points, lanes, passes| Arc::new(Crashes::new(points, self.rounds, lanes, passes));
        let of_account = crashes(ACCOUNT, 1, card.asked);
        let of_endpoint = crashes(ENDPOINT, ENDPOINTS, card.asked);
        let of_worker = crashes(at_work, workers, card.asked / 3);
        let of_undoer = crashes(UNDO, UNDOERS, doomed);
        let mut cast = Cast::new(ground, &journal);
        let account = cast
            .add("account", 1, &outside.program, &of_account)
            .await?;
        let program =
            |user, role| effects_program(ground, card.name, user, role, self.how, &account);
        let service = |role| program(SERVICE_ROLE, role);
        let endpoints = cast
            .add("endpoint", ENDPOINTS, &service("endpoint"), &of_endpoint)
            .await?;
        cast.add("worker", workers, &service("worker"), &of_worker)
            .await?;
        let mut points = [ACCOUNT, ENDPOINT, at_work].concat();
        if card.pg_once {
            cast.add("undo", UNDOERS, &service("undo"), &of_undoer)
                .await?;
            let janitor = program(JANITOR_ROLE, "janitor");
            cast.add("janitor", 1, &janitor, &Arc::new(Crashes::none()))
                .await?;
            points.extend(UNDO);
        }
        let stage = cast.start().await?;
        let clients = Clients::new(&endpoints, WAITS, Arc::clone(&journal));

        let began = journal.now_ms();
        let progress = Progress::new(card.title, (card.asked, "fundings"), Arc::clone(&journal));
        let serve = |funding: &Funding| {
            [&of_account, &of_endpoint, &of_worker]
                .iter()
                .for_each(|crashes| crashes.one_started());
            if funding.doomed {
                of_undoer.one_started();
            }
            insist(clients.clone(), ask_for(funding), funding.seed)
        };
        let load = open_loop(&fundings, |funding| funding.starts, &progress, serve);
        stage
            .under_fire(ground, card.name, 700..2200, (&journal, &progress), load)
            .await?;
        settle(QUIET_FOR, async || {
            let row = owner.query_one(database::PENDING, &[]).await?;
            let (pending, attempts): (i64, i64) = (row.get(0), row.get(1));
            Ok((pending == 0, (pending, attempts, outside.lines()?.len())))
        })
        .await?;
        progress.finish();
        let seconds = (journal.now_ms() - began) / 1000.0;
        let lanes = stage.stop().await?;

        let lines = outside.lines()?;
        database::load_evidence(&owner, &lines, &fundings, &journal.attempts()).await?;
        let mut run = Run::of(card, points, lanes, &journal);
        run.seconds = seconds;
        run.proven = ask(&owner, proof::questions(card.pg_once)).await?;
        let met = Met::ask(&owner, card.pg_once).await?;
        run.went_through = verdict::went_through(&run, &met, &lines);
        run.damage = Damage::of(&owner, "money moved twice", proof::DAMAGE, &journal).await?;
        run.faults = verdict::faults(&run, &met, &lines);
        Ok(run)
    }
}

fn ask_for(funding: &Funding) -> Ask {
    Ask {
        path: "/fundings".to_owned(),
        key: funding.id.clone(),
        client: "client",
        amount_cents: funding.amount_cents,
        body: funding.body(),
    }
}

async fn insist(clients: Clients, wish: Ask, seed: u64) {
    clients
        .insist(&wish, &mut StdRng::seed_from_u64(seed))
        .await;
}
