//! What a run leaves behind for the table and the report, whatever it was about; and the story that
//! the runs belong to.
//!
//! Invariant: everything shown of a run is in here, measured; the table and the report know neither
//! orders nor jobs.

use crate::journal::{Attempt, Event};
use crate::proof::Proven;
use crate::verdict::Trouble;

/// One service under the load and the trouble, and what came of it.
pub struct Run {
    /// The database's name, and the name in results.json.
    pub name: &'static str,
    pub title: &'static str,
    /// One sentence under the picture's heading.
    pub explain: &'static str,
    /// How many of the load there were: what `Want::All` must reach.
    pub asked: usize,
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

/// The row of the picture that should stay empty.
pub struct Damage {
    pub name: &'static str,
    pub at_ms: Vec<f64>,
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
