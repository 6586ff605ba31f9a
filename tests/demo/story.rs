//! What a run leaves behind for the table and the report, whatever it was about; and the story that
//! the runs belong to.
//!
//! Invariant: everything shown of a run is in here, measured; the table and the report know neither
//! orders nor jobs.

use anyhow::Result;
use tokio_postgres::{Client, Row};

use crate::ground::Ground;
use crate::journal::{Attempt, Event, Journal};
use crate::proof::Proven;
use crate::verdict::Trouble;

/// What a run is called, and what it is measured by.
#[derive(Clone, Copy)]
pub struct Card {
    /// The database's name, and the name in results.json.
    pub name: &'static str,
    pub title: &'static str,
    /// One sentence under the picture's heading.
    pub explain: &'static str,
    /// Whether the service uses pg_once; only then is the run judged.
    pub pg_once: bool,
    /// How many of the load there are: what `Want::All` must reach.
    pub asked: usize,
}

/// A run that is still to be.
pub trait Case: Sized {
    fn card(&self) -> Card;

    fn run(self, ground: &Ground<'_>) -> impl Future<Output = Result<Run>>;
}

/// Runs those of the cases that are wanted, one after the other.
pub async fn run_wanted<C: Case>(
    cases: impl IntoIterator<Item = C>,
    ground: &Ground<'_>,
) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for case in cases {
        if ground.settings.wants(case.card().name) {
            runs.push(case.run(ground).await?);
        }
    }
    Ok(runs)
}

/// One service under the load and the trouble, and what came of it.
pub struct Run {
    pub card: Card,
    /// Where processes kill themselves, in the order of their numbers in the picture.
    pub points: Vec<&'static str>,
    /// The processes, by lane.
    pub lanes: Vec<String>,
    pub proven: Vec<Proven>,
    pub attempts: Vec<Attempt>,
    pub events: Vec<Event>,
    pub trouble: Trouble,
    /// What it went through, a line each in the table.
    pub went_through: Vec<(&'static str, f64)>,
    pub damage: Damage,
    /// Why the demo has failed; empty is a pass.
    pub faults: Vec<String>,
    pub seconds: f64,
}

impl Run {
    /// What the journal says of it; nothing is proven yet.
    pub fn of(
        card: Card,
        points: Vec<&'static str>,
        lanes: Vec<String>,
        journal: &Journal,
    ) -> Self {
        let (attempts, events) = (journal.attempts(), journal.events());
        Self {
            card,
            trouble: Trouble::of(&events, &attempts, &points),
            points,
            lanes,
            proven: vec![],
            attempts,
            events,
            went_through: vec![],
            damage: Damage {
                name: "damage done",
                at_ms: vec![],
            },
            faults: vec![],
            seconds: 0.0,
        }
    }
}

/// The row of the picture that should stay empty.
pub struct Damage {
    pub name: &'static str,
    pub at_ms: Vec<f64>,
}

impl Damage {
    /// The query gives the moments, as microseconds since 1970.
    pub async fn of(
        owner: &Client,
        name: &'static str,
        query: &str,
        journal: &Journal,
    ) -> Result<Self> {
        let moments = owner.query(query, &[]).await?;
        let ms = |row: &Row| journal.ms_of(u64::try_from(row.get::<_, i64>(0)).unwrap_or_default());
        Ok(Self {
            name,
            at_ms: moments.iter().map(ms).collect(),
        })
    }
}

/// Runs that are told side by side.
pub struct Story {
    pub title: &'static str,
    pub lead: String,
    /// What the cards show of a run, in large digits.
    pub headlines: &'static [&'static str],
    /// What the queries are over.
    pub evidence: &'static str,
    /// Names of the kinds of answers in the picture, from the bottom of a bar to its top.
    pub kinds: &'static [Kind],
    /// What happens after the load.
    pub after_load: &'static str,
    pub runs: Vec<Run>,
}

/// A kind of answer: its name and the class of its colour.
pub type Kind = (&'static str, &'static str);
