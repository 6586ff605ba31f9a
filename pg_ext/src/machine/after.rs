//! Records a move (`history` in the definition) and emits its event (`emit`), in the move's transaction.

use super::definition::{ANYBODY, Definition};
use super::faults::element;
use super::id::RowId;
use super::model::Machine;
use super::moves::{Requester, moves_to};
use crate::call::{KEY_MAX, characters, from_utf8};
use crate::caller;
use crate::clock;
use crate::digest::hex;
use crate::error::Result;
use crate::outbox::emit::{Emission, emit_registered};
use crate::raise::warn;
use crate::row;
use crate::table::{self, Name, Table};
use pgrx::pg_sys::Datum;
use sha2::{Digest, Sha256};
use std::cell::Cell;

pub const TABLE: Name = c"machine_move";
pub const BY_ROW: Name = c"machine_move_pkey";

/// Columns of once.machine_move, from 1.
#[derive(Clone, Copy)]
pub enum MoveCol {
    N = 1,
    At,
    Id,
    Machine,
    RowId,
    FromStatus,
    ToStatus,
    How,
    Requester,
    Holder,
    Role,
}

table::columns!(MoveCol);

/// A row of once.machine_move.
pub type MoveRecord = table::Record<MoveCol, 11>;

thread_local! {
    /// The number of the record that this backend wrote last. A later move of the same row gets a larger number, unless
    /// another backend makes the move after the clock was set back.
    static LAST: Cell<i64> = const { Cell::new(0) };
}

#[derive(Clone, Copy, Default)]
pub struct MoveMade<'a> {
    pub from: &'a str,
    pub to: &'a str,
    /// transition, claim, finish, release, sweep, cancel or by_hand.
    pub how: &'static str,
    pub requester: Option<&'a str>,
    pub holder: Option<&'a [u8]>,
    /// The role that made the move; None: the current role.
    pub role: Option<&'a [u8]>,
}

impl Machine {
    /// Records a move if the definition has `history`.
    pub fn record(&self, id: &RowId, made: &MoveMade) -> Result<()> {
        if self.definition.history_us.is_none() {
            return Ok(());
        }
        let n = LAST.with(|last| {
            last.set(clock::next_token(last.get()));
            last.get()
        });
        let text = |text: &str| from_utf8(text).into_owned();
        let mut record = MoveRecord::empty();
        record.put_i64(MoveCol::N, n);
        record.put_i64(MoveCol::At, clock::now_us()?);
        record.put(MoveCol::Id, Some(row::uuid(&id.key(self.name()))));
        record.put_text(MoveCol::Machine, Some(&text(self.name())));
        record.put_text(MoveCol::RowId, Some(&id.text));
        record.put_text(MoveCol::FromStatus, Some(&text(made.from)));
        record.put_text(MoveCol::ToStatus, Some(&text(made.to)));
        record.put_text(MoveCol::How, Some(made.how.as_bytes()));
        record.put_text(MoveCol::Requester, made.requester.map(text).as_deref());
        record.put_text(MoveCol::Holder, made.holder);
        match made.role {
            Some(role) => record.put_text(MoveCol::Role, Some(role)),
            None => record.put_text(MoveCol::Role, Some(&caller::name())),
        }
        record.insert(&Table::to_write(TABLE)?)
    }

    /// Records a transition, and emits its event if the definition declares one.
    pub fn transitioned(&self, id: &RowId, made: &MoveMade) -> Result<()> {
        self.record(id, made)?;
        match self.definition.emit_of_transition(made) {
            Some(topic) => self.emit(topic, id, made),
            None => Ok(()),
        }
    }

    /// Emits the event of a move. The right to the topic was checked when the machine was defined.
    pub fn emit(&self, topic: &str, id: &RowId, made: &MoveMade) -> Result<()> {
        let shown_id = crate::call::shown(&id.text);
        let payload = serde_json::json!({
            "machine": self.name(), "id": shown_id, "from": made.from, "to": made.to, "requester": made.requester,
        });
        let key = order_key(&format!("{}/{shown_id}", self.name()));
        let emitted = emit_registered(
            &from_utf8(topic),
            &Emission::plain(
                row::text(&from_utf8(&payload.to_string())),
                Some(&from_utf8(&key)),
            ),
        )?;
        if emitted.is_none() {
            warn(
                format!(
                    "the event of a move of machine \"{}\" is not emitted: topic \"{topic}\" is not there or has no subscribers",
                    self.name()
                ),
                "Add a subscriber with once.subscriber_set, or take \"emit\" out of the definition.",
            );
        }
        Ok(())
    }
}

/// The key itself; if the key is too long, its SHA-256 in hex.
fn order_key(key: &str) -> String {
    match characters(key.as_bytes()) <= KEY_MAX {
        true => key.to_owned(),
        false => hex(&Sha256::digest(key)),
    }
}

impl Definition {
    /// The path of each transition or step that has `emit`, and the topic.
    pub fn emits(&self) -> impl Iterator<Item = (String, &str)> {
        let of_transitions = (self.transitions.iter().enumerate())
            .map(|(i, transition)| ("transitions", i, &transition.emit));
        let of_steps = (self.steps.iter().enumerate()).map(|(i, step)| ("steps", i, &step.emit));
        let all = of_transitions.chain(of_steps);
        all.filter_map(|(list, i, emit)| Some((element(list, i), emit.as_deref()?)))
    }

    /// True if moves are recorded or emit events: a move then has to read the row's old status first.
    pub fn is_followed(&self) -> bool {
        self.history_us.is_some() || self.emits().next().is_some()
    }

    /// The topic that gets the event of a move that `transition` made; None: no event.
    fn emit_of_transition<'a>(&'a self, made: &MoveMade<'a>) -> Option<&'a str> {
        moves_to(self, made.to, Requester::Named(made.requester))
            .filter(|declared| declared.from.contains(&made.from))
            .find_map(|declared| declared.emit)
    }
}

/// A declared move that `transition` can make, and the topic that gets its event.
pub struct Emitting<'a> {
    pub path: String,
    pub from: &'a str,
    pub to: &'a str,
    /// None: any requester.
    requester: Option<&'a str>,
    pub emit: Option<&'a str>,
}

impl<'a> Emitting<'a> {
    pub fn shares_requester(&self, other: &Emitting) -> bool {
        self.requester.is_none() || other.requester.is_none() || self.requester == other.requester
    }

    /// Every declared move that `transition` can make: all transitions, and each step's moves that need no claim.
    pub fn all(definition: &'a Definition) -> Vec<Emitting<'a>> {
        let mut all = Vec::new();
        for (i, transition) in definition.transitions.iter().enumerate() {
            all.extend(transition.from.iter().map(|from| Emitting {
                path: element("transitions", i),
                from,
                to: &transition.to,
                requester: None,
                emit: transition.emit.as_deref(),
            }));
        }
        for (i, step) in definition.steps.iter().enumerate() {
            let mut plain = step.successful_state.iter().collect::<Vec<_>>();
            plain.retain(|(requester, _)| step.claim_of(Some(requester)).is_none());
            all.extend(plain.into_iter().map(|(requester, to)| Emitting {
                path: element("steps", i),
                from: &step.status,
                to,
                requester: Some(requester.as_str()).filter(|name| *name != ANYBODY),
                emit: step.emit.as_deref(),
            }));
        }
        all
    }
}

/// A record as a row of `once.machine_history`.
pub fn told(record: &MoveRecord) -> [Option<Datum>; 7] {
    [
        MoveCol::At,
        MoveCol::FromStatus,
        MoveCol::ToStatus,
        MoveCol::How,
        MoveCol::Requester,
        MoveCol::Holder,
        MoveCol::Role,
    ]
    .map(|col| record.raw(col))
}
