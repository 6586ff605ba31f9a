//! Foreign calls inside a request: `key_step`, `key_step_done`, `key_derive`, `key_rotate`.
//!
//! A call locks the key's row before it writes a step. So only one transaction at a time writes the steps of a key, and
//! a superseded holder never does.

use super::event::StepEvent;
use super::fence::{FencedKey, KeyChange, NamedKey};
use super::identity::{KeyId, derived_key};
use super::record::{KeyRow, TABLE as KEY_TABLE, id_datum};
use crate::call::{Call, shown, varlena};
use crate::clock;
use crate::counters;
use crate::error::{Error, Result};
use crate::raise;
use crate::row::{self, Shape};
use crate::table::{self, Name, ScanKey, Snapshot, Table, WriteOutcome};
use pgrx::pg_sys::{self, Datum};

pub const TABLE: Name = c"key_step";
pub const BY_STEP: Name = c"key_step_pkey";
/// The longest name of a step, in characters.
const STEP_MAX: usize = 100;

static STEP: Shape = Shape::new(&[
    (c"done", pg_sys::BOOLOID),
    (c"result", pg_sys::JSONOID),
    (c"attempted", pg_sys::INT4OID),
    (c"first_at", pg_sys::TIMESTAMPTZOID),
    (c"derived_key", pg_sys::TEXTOID),
]);
static DONE: Shape = Shape::new(&[(c"recorded", pg_sys::BOOLOID), (c"result", pg_sys::JSONOID)]);

/// Columns of `once.key_step`, from 1.
#[derive(Clone, Copy)]
pub enum Col {
    KeyId = 1,
    Step,
    Version,
    Begun,
    BegunNo,
    DoneNo,
    BegunToken,
    FirstAt,
    DoneAt,
    DoneToken,
    Result,
    OnComplete,
    OnAbort,
}

table::columns!(Col);

/// One row of `once.key_step`, stored or to be stored.
pub type StepRow = table::Record<Col, 13>;

impl StepRow {
    fn new() -> StepRow {
        let mut row = StepRow::empty();
        row.put_i32(Col::Version, 1);
        row.put_i32(Col::Begun, 0);
        row
    }

    /// The step's latest row, at any isolation level. Above READ COMMITTED, the transaction's snapshot may be older
    /// than this row. Most step calls lock the key's row and do not change it. A lock alone causes no serialization
    /// error in other transactions. So a search with the old snapshot could miss the step without an error.
    fn find(id: KeyId, step: &[u8]) -> Result<Option<StepRow>> {
        let table = Table::to_read(TABLE)?;
        let keys = &mut [
            ScanKey::uuid(1, id_datum(&id)),
            ScanKey::text(2, row::text(step)),
        ];
        let found = table.find(BY_STEP, keys, &Snapshot::latest())?;
        Ok(found.map(StepRow::load))
    }

    fn is_done(&self) -> bool {
        self.raw(Col::DoneAt).is_some()
    }

    /// Whether this token was the last to begin the step.
    fn was_begun_by(&self, token: i64) -> bool {
        self.raw(Col::BegunToken).is_some() && self.i64(Col::BegunToken) == token
    }

    fn begun_before(&self, token: i64) -> i32 {
        self.i32(Col::Begun) - i32::from(self.was_begun_by(token))
    }

    /// Stores the step. The caller has locked the key's row, so no other session writes its steps.
    fn store(&mut self, id: KeyId, step: &[u8]) -> Result<WriteOutcome> {
        let begins = self.raw(Col::FirstAt).is_some() || self.is_done();
        if begins && self.raw(Col::BegunNo).is_none() {
            self.put_i32(Col::BegunNo, next_number(id, Col::BegunNo)?);
        }
        if self.raw(Col::OnComplete).is_some() && self.raw(Col::DoneNo).is_none() {
            self.put_i32(Col::DoneNo, next_number(id, Col::DoneNo)?);
        }
        self.put(Col::KeyId, Some(id_datum(&id)));
        self.put_text(Col::Step, Some(step));
        let table = Table::to_write(TABLE)?;
        match self.tid() {
            Some(tid) => self.update_at(&table, tid),
            None => self.insert(&table).map(|()| WriteOutcome::Done),
        }
    }
}

/// One more than the largest number that a step of the key has in this column.
fn next_number(id: KeyId, col: Col) -> Result<i32> {
    let snapshot = Snapshot::latest();
    let table = Table::to_read(TABLE)?;
    let keys = &mut [ScanKey::uuid(1, id_datum(&id))];
    let mut scan = table.scan(BY_STEP, keys, &snapshot)?;
    let mut last = 0;
    while let Some(slot) = scan.advance() {
        last = last.max(StepRow::borrow(slot).i32(col));
    }
    Ok(last + 1)
}

/// The common part of the step calls: the fence, the step's name, and one write under the key's lock.
struct StepWrite<'a> {
    fenced: FencedKey<'a>,
    step: &'a [u8],
}

impl<'a> StepWrite<'a> {
    fn from_call(call: &'a Call) -> Result<StepWrite<'a>> {
        Ok(StepWrite {
            fenced: FencedKey::from_call(call)?,
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

    /// Calls `decide` with the step; if it answers true, calls [`StepWrite::change_locked`], which may store the step.
    fn change<T>(
        &self,
        registers: bool,
        mut decide: impl FnMut(&mut StepRow, i64) -> Result<(bool, T)>,
    ) -> Result<T> {
        let (mut step, now) = self.read_step(|_| KeyChange::Nothing)?;
        match decide(&mut step, now)? {
            (false, answer) => Ok(answer),
            (true, _) => self.change_locked(registers, decide),
        }
    }

    /// Locks the key's row, calls `decide` with the step, and stores the step if `decide` answers true. `registers`:
    /// the call has events, so `emits` is set in the key's row.
    fn change_locked<T>(
        &self,
        registers: bool,
        mut decide: impl FnMut(&mut StepRow, i64) -> Result<(bool, T)>,
    ) -> Result<T> {
        let (mut step, now) = self.read_step(|row| {
            if registers && !row.emits() {
                row.put_emits(true);
                return KeyChange::Write;
            }
            KeyChange::Lock
        })?;
        let (store, answer) = decide(&mut step, now)?;
        match store && step.store(self.id(), self.step)? != WriteOutcome::Done {
            false => Ok(answer),
            true => Err(Error::retry_transaction(self.named())),
        }
    }

    /// Checks the token, then reads the step. The second value is the time of the check.
    fn read_step(
        &self,
        mut change: impl FnMut(&mut KeyRow) -> KeyChange,
    ) -> Result<(StepRow, i64)> {
        let now = (self.fenced).change(|_| None, |row, now| Ok((change(row), now)))?;
        let step = StepRow::find(self.id(), self.step)?;
        Ok((step.unwrap_or_else(StepRow::new), now))
    }

    fn named(&self) -> String {
        format!("step \"{}\" of {}", shown(self.step), self.fenced.named())
    }
}

/// `once.key_step`.
pub fn key_step(call: &Call) -> Result<Datum> {
    let on_abort = StepEvent::from_call(call, 4, "on_abort")?;
    let write = StepWrite::from_call(call)?;
    let token = write.fenced.token;
    let values = write.change(on_abort.is_some(), |step, now| {
        let fresh = !step.is_done() && !step.was_begun_by(token);
        if fresh {
            step.put_i32(Col::Begun, step.i32(Col::Begun) + 1);
            step.put_i64(Col::BegunToken, token);
            if step.raw(Col::FirstAt).is_none() {
                step.put_i64(Col::FirstAt, now);
                step.put(Col::BegunNo, None);
            }
        }
        // Until the step is done, the present holder may replace the step's on_abort event.
        let open = on_abort.as_ref().filter(|_| !step.is_done());
        let registered = register(step, Col::OnAbort, open)?;
        Ok((fresh || registered, begin_values(&write, step, token)))
    })?;
    Ok(STEP.row(&values))
}

/// Stores an event in the step; true if it differs from the event that the step has.
fn register(step: &mut StepRow, col: Col, event: Option<&StepEvent>) -> Result<bool> {
    match event.filter(|e| !e.is(step.raw(col))) {
        None => Ok(false),
        Some(event) => {
            event.ensure_open()?;
            step.put(col, Some(event.json));
            Ok(true)
        }
    }
}

fn begin_values(write: &StepWrite, step: &StepRow, token: i64) -> [Option<Datum>; 5] {
    let done = step.is_done();
    let attempted = if done { 0 } else { step.begun_before(token) };
    [
        Some(Datum::from(done)),
        step.raw(Col::Result).map(row::copied),
        Some(Datum::from(attempted)),
        step.raw(Col::FirstAt).filter(|_| attempted > 0),
        Some(write.derived_key(step.i32(Col::Version))),
    ]
}

/// `once.key_step_done`.
pub fn key_step_done(call: &Call) -> Result<Datum> {
    let on_complete = StepEvent::from_call(call, 5, "on_complete")?;
    let on_abort = StepEvent::from_call(call, 6, "on_abort")?;
    let write = StepWrite::from_call(call)?;
    let token = write.fenced.token;
    let given = call.datum(4);
    // True if this transaction began the step: a crash before the commit would leave no trace of the foreign call.
    let mut uncommitted = false;
    let registers = on_complete.is_some() || on_abort.is_some();
    // Locks the key even if the step is done, so that a superseded holder gets 40001 above READ COMMITTED.
    let values = write.change_locked(registers, |step, now| {
        if !step.is_done() {
            uncommitted = step.is_ours() && step.was_begun_by(token);
            step.put_i64(Col::DoneAt, now);
            step.put_i64(Col::DoneToken, token);
            step.put(Col::Result, given);
            register(step, Col::OnComplete, on_complete.as_ref())?;
            register(step, Col::OnAbort, on_abort.as_ref())?;
            return Ok((true, [Some(Datum::from(true)), given]));
        }
        let ours = step.i64(Col::DoneToken) == token;
        if ours && !step.is_ours() {
            return Err(Error::already_done(
                format!(
                    "this token has recorded the end of {} already",
                    write.named()
                ),
                "key_step returns the recorded result.",
            ));
        }
        // A call without on_abort keeps the event that key_step registered.
        let same = step.raw(Col::Result).map(varlena) == given.map(varlena)
            && step.bytes(Col::OnComplete) == on_complete.as_ref().map(|e| varlena(e.json))
            && on_abort
                .as_ref()
                .is_none_or(|e| e.is(step.raw(Col::OnAbort)));
        let result = step.raw(Col::Result).map(row::copied);
        Ok((false, [Some(Datum::from(ours && same)), result]))
    })?;
    if uncommitted {
        counters::count_uncommitted_step();
        raise::warn(
            format!(
                "{} began in this transaction: a crash during the foreign call would have left no record of it",
                write.named()
            ),
            "Commit after key_step, before the foreign call.",
        );
    }
    Ok(DONE.row(&values))
}

/// `once.key_rotate`.
pub fn key_rotate(call: &Call) -> Result<Datum> {
    let write = StepWrite::from_call(call)?;
    let from = call.i32(4, "from_version")?;
    let problem = |what: String| {
        Error::bad_argument(
            "from_version",
            what,
            "Versions begin at 1; give the version whose derived key was refused.",
        )
    };
    let version = write.change(false, |step, _| {
        if step.is_done() {
            return Err(Error::bad_argument(
                "step",
                format!("\"{}\" is done", shown(write.step)),
                "A step whose end is recorded keeps its derived key.",
            ));
        }
        let version = step.i32(Col::Version);
        if from >= 1 && from == version - 1 {
            return Ok((false, version));
        }
        if from != version || from == i32::MAX {
            return Err(problem(format!(
                "is {from}, but the present version is {version}"
            )));
        }
        step.put_i32(Col::Version, version + 1);
        step.put_i32(Col::Begun, 0);
        step.put(Col::BegunToken, None);
        step.put(Col::FirstAt, None);
        Ok((true, version + 1))
    })?;
    Ok(Datum::from(version))
}

/// `once.key_derive`.
pub fn key_derive(call: &Call) -> Result<Datum> {
    let key = NamedKey::from_call(call)?;
    let step = call.text(2, "step", STEP_MAX)?;
    let snapshot = Snapshot::now();
    let now = clock::now_us()?;
    let row = KeyRow::find(&Table::to_read(KEY_TABLE)?, key.id(), &snapshot)?;
    // Past its ttl a key has no steps, whether or not a sweep has deleted them.
    let version = match row.filter(|r| !r.is_gone(now)) {
        None => 1,
        Some(_) => StepRow::find(key.id(), step)?.map_or(1, |s| s.i32(Col::Version)),
    };
    Ok(row::text(
        derived_key(key.scope, key.key, step, version).as_bytes(),
    ))
}

/// Deletes all steps of a key, at any isolation level. The caller has locked the key's row.
pub fn forget_all(id: KeyId) -> Result<()> {
    let snapshot = &Snapshot::latest();
    let table = Table::to_write(TABLE)?;
    let mut scan = table.scan(BY_STEP, &mut [ScanKey::uuid(1, id_datum(&id))], snapshot)?;
    while let Some(slot) = scan.advance() {
        table.delete(slot.tid(), snapshot);
    }
    Ok(())
}
