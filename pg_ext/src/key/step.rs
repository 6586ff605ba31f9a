//! Foreign calls inside a request: `key_step`, `key_step_done`, `key_derive`, `key_rotate`.
//!
//! The key's row is locked before a step is written, so the steps of one key are written by one
//! transaction at a time, and never by a superseded holder.

use super::claim::named;
use super::fence::{Change, Fenced, Named};
use super::identity::{KeyId, derived_key};
use super::record::{Record, TABLE as KEY_TABLE, id_datum};
use crate::call::{Call, shown, varlena};
use crate::clock;
use crate::error::{Error, Result};
use crate::row::{self, Shape};
use crate::table::{self, Name, Outcome, ScanKey, Slot, Snapshot, Table, Wait};
use pgrx::pg_sys::{self, Datum};

pub const TABLE: Name = c"key_step";
const BY_STEP: Name = c"key_step_pkey";
/// The longest step, in characters.
const STEP_MAX: usize = 100;
const OUTBOX: &str = "the outbox";

thread_local! {
    static STEP: Shape = const { Shape::new(&[
        (c"done", pg_sys::BOOLOID),
        (c"result", pg_sys::JSONOID),
        (c"attempted", pg_sys::INT4OID),
        (c"first_at", pg_sys::TIMESTAMPTZOID),
        (c"derived_key", pg_sys::TEXTOID),
    ]) };
    static DONE: Shape = const { Shape::new(&[
        (c"recorded", pg_sys::BOOLOID),
        (c"result", pg_sys::JSONOID),
    ]) };
}

/// One row of `once.key_step`, stored or to be stored.
struct Step {
    slot: Option<Slot>,
    version: i32,
    begun: i32,
    begun_token: Option<i64>,
    first_at: Option<i64>,
    done_at: Option<i64>,
    done_token: Option<i64>,
    result: Option<Datum>,
}

impl Step {
    fn new() -> Step {
        Step {
            slot: None,
            version: 1,
            begun: 0,
            begun_token: None,
            first_at: None,
            done_at: None,
            done_token: None,
            result: None,
        }
    }

    fn load(slot: Slot) -> Step {
        let int = |column| slot.column(column).map(|d| d.value() as i64);
        Step {
            version: int(3).unwrap_or(1) as i32,
            begun: int(4).unwrap_or(0) as i32,
            begun_token: int(5),
            first_at: int(6),
            done_at: int(7),
            done_token: int(8),
            result: slot.column(9),
            slot: Some(slot),
        }
    }

    fn find(id: KeyId, step: &[u8], snapshot: &Snapshot) -> Result<Option<Step>> {
        let table = Table::to_read(TABLE)?;
        let keys = &mut [
            ScanKey::uuid(1, id_datum(&id)),
            ScanKey::text(2, row::text(step)),
        ];
        Ok(table.find(BY_STEP, keys, snapshot)?.map(Step::load))
    }

    /// Stores the step; the key's row is locked, so nobody else writes it.
    fn store(&self, id: KeyId, step: &[u8]) -> Result<Outcome> {
        let table = Table::to_write(TABLE)?;
        let values = [
            Some(id_datum(&id)),
            Some(row::text(step)),
            Some(Datum::from(self.version)),
            Some(Datum::from(self.begun)),
            self.begun_token.map(Datum::from),
            self.first_at.map(Datum::from),
            self.done_at.map(Datum::from),
            self.done_token.map(Datum::from),
            self.result,
        ];
        match &self.slot {
            Some(slot) => table.update(slot.tid(), &values, Wait::Yes),
            None if Step::find(id, step, &Snapshot::latest())?.is_some() => Ok(Outcome::Changed),
            None => table.insert(&values).map(|()| Outcome::Done),
        }
    }

    fn begun_before(&self, token: i64) -> i32 {
        match self.begun_token == Some(token) {
            true => self.begun - 1,
            false => self.begun,
        }
    }
}

/// A step call's common part: the fence, the step's name, and one write under the key's lock.
struct Write<'a> {
    fenced: Fenced<'a>,
    step: &'a [u8],
}

impl<'a> Write<'a> {
    fn of(call: &'a Call) -> Result<Write<'a>> {
        Ok(Write {
            fenced: Fenced::of(call)?,
            step: call.text(3, "step", STEP_MAX)?,
        })
    }

    fn id(&self) -> KeyId {
        self.fenced.named.id()
    }

    fn derived_key(&self, version: i32) -> Datum {
        let named = &self.fenced.named;
        row::text(derived_key(named.scope, named.key, self.step, version).as_bytes())
    }

    /// Shows the step to `decide`; true from it: store the step.
    fn change<T>(&self, mut decide: impl FnMut(&mut Step, i64) -> Result<(bool, T)>) -> Result<T> {
        let mut at = self.look(Change::Nothing)?;
        let (store, answer) = decide(&mut at.0, at.1)?;
        if !store {
            return Ok(answer);
        }
        at = self.look(Change::Lock)?;
        let (store, answer) = decide(&mut at.0, at.1)?;
        match store && at.0.store(self.id(), self.step)? != Outcome::Done {
            false => Ok(answer),
            true if table::above_read_committed() => Err(self.raced()),
            true => Err(self
                .raced()
                .detail("The step was written while its key was locked.")),
        }
    }

    /// Checks the token (and locks the key's row), then reads the step with a look of its own.
    fn look(&self, lock: Change) -> Result<(Step, i64)> {
        let mut lock = Some(lock);
        let now = self.fenced.change(
            |_| None,
            |_, now| Ok((lock.take().unwrap_or(Change::Lock), now)),
        )?;
        let step = Step::find(self.id(), self.step, &Snapshot::now())?;
        Ok((step.unwrap_or_else(Step::new), now))
    }

    fn raced(&self) -> Error {
        let step = shown(self.step);
        let key = named(self.fenced.named.scope, self.fenced.named.key);
        Error::retry_transaction(format!("step \"{step}\" of {key}"))
    }
}

/// `once.key_step`.
pub fn key_step(call: &Call) -> Result<Datum> {
    call.refuse(4, "on_abort", OUTBOX)?;
    let write = Write::of(call)?;
    let token = write.fenced.token;
    let values = write.change(|step, now| {
        let fresh = step.done_at.is_none() && step.begun_token != Some(token);
        if fresh {
            step.begun += 1;
            step.begun_token = Some(token);
            step.first_at.get_or_insert(now);
        }
        Ok((fresh, begin_values(&write, step, token)))
    })?;
    Ok(STEP.with(|shape| shape.row(&values)))
}

fn begin_values(write: &Write, step: &Step, token: i64) -> [Option<Datum>; 5] {
    let done = step.done_at.is_some();
    let attempted = if done { 0 } else { step.begun_before(token) };
    [
        Some(Datum::from(done)),
        step.result.map(row::copied),
        Some(Datum::from(attempted)),
        step.first_at.filter(|_| attempted > 0).map(Datum::from),
        Some(write.derived_key(step.version)),
    ]
}

/// `once.key_step_done`.
pub fn key_step_done(call: &Call) -> Result<Datum> {
    call.refuse(5, "on_complete", OUTBOX)?;
    call.refuse(6, "on_abort", OUTBOX)?;
    let write = Write::of(call)?;
    let token = write.fenced.token;
    let given = call.datum(4);
    let values = write.change(|step, now| {
        if step.done_at.is_none() {
            step.done_at = Some(now);
            step.done_token = Some(token);
            step.result = given;
            return Ok((true, [Some(Datum::from(true)), given]));
        }
        let same = step.result.map(varlena) == given.map(varlena);
        let repeated = step.done_token == Some(token) && same;
        Ok((
            false,
            [Some(Datum::from(repeated)), step.result.map(row::copied)],
        ))
    })?;
    Ok(DONE.with(|shape| shape.row(&values)))
}

/// `once.key_rotate`.
pub fn key_rotate(call: &Call) -> Result<Datum> {
    let write = Write::of(call)?;
    let from = call.i32(4, "from_version")?;
    let problem = |what: String| {
        Error::bad_argument(
            "from_version",
            what,
            "Versions begin at 1; give the one that was refused.",
        )
    };
    let version = write.change(|step, _| {
        if step.done_at.is_some() {
            return Err(Error::bad_argument(
                "step",
                format!("\"{}\" is done", shown(write.step)),
                "A step whose end is recorded keeps its derived key.",
            ));
        }
        if from >= 1 && from == step.version - 1 {
            return Ok((false, step.version));
        }
        if from != step.version || from == i32::MAX {
            return Err(problem(format!(
                "is {from}, but the present version is {}",
                step.version
            )));
        }
        step.version += 1;
        step.begun = 0;
        step.begun_token = None;
        step.first_at = None;
        Ok((true, step.version))
    })?;
    Ok(Datum::from(version))
}

/// `once.key_derive`.
pub fn key_derive(call: &Call) -> Result<Datum> {
    let key = Named::of(call)?;
    let step = call.text(2, "step", STEP_MAX)?;
    let snapshot = Snapshot::now();
    let now = clock::now_us()?;
    let row = Record::find(&Table::to_read(KEY_TABLE)?, key.id(), &snapshot)?;
    // Past its ttl a key has no steps any more, swept or not.
    let version = match row.filter(|r| !(r.status().finished() && now >= r.expires_at())) {
        None => 1,
        Some(_) => Step::find(key.id(), step, &snapshot)?.map_or(1, |s| s.version),
    };
    Ok(row::text(
        derived_key(key.scope, key.key, step, version).as_bytes(),
    ))
}

/// Deletes every step of a key whose row the caller has locked: what is committed now, because a step
/// call only locks that row, and an older snapshot would miss what it wrote.
pub fn forget_all(id: KeyId) -> Result<()> {
    let snapshot = &Snapshot::latest();
    let table = Table::to_write(TABLE)?;
    let mut scan = table.scan(BY_STEP, &mut [ScanKey::uuid(1, id_datum(&id))], snapshot)?;
    while let Some(slot) = scan.advance() {
        table.delete(slot.tid(), snapshot);
    }
    Ok(())
}
