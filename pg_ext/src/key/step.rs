//! Foreign calls inside a request: `key_step`, `key_step_done`, `key_derive`, `key_rotate`.
//!
//! The key's row is locked before a step is written, so the steps of one key are written by one
//! transaction at a time, and never by a superseded holder.

use super::event::StepEvent;
use super::fence::{Change, Fenced, Named};
use super::identity::{KeyId, derived_key};
use super::record::{Record, TABLE as KEY_TABLE, id_datum};
use crate::call::{Call, shown, varlena};
use crate::clock;
use crate::counters;
use crate::error::{Error, Result};
use crate::raise;
use crate::row::{self, Shape};
use crate::table::{self, Name, Outcome, ScanKey, Snapshot, Table};
use pgrx::pg_sys::{self, Datum};

pub const TABLE: Name = c"key_step";
pub const BY_STEP: Name = c"key_step_pkey";
/// The longest step, in characters.
const STEP_MAX: usize = 100;

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
pub type Row = table::Record<Col, 13>;

impl Row {
    fn new() -> Row {
        let mut row = Row::empty();
        row.put_i32(Col::Version, 1);
        row.put_i32(Col::Begun, 0);
        row
    }

    fn find(id: KeyId, step: &[u8], snapshot: &Snapshot) -> Result<Option<Row>> {
        let table = Table::to_read(TABLE)?;
        let keys = &mut [
            ScanKey::uuid(1, id_datum(&id)),
            ScanKey::text(2, row::text(step)),
        ];
        Ok(table.find(BY_STEP, keys, snapshot)?.map(Row::load))
    }

    /// This transaction has begun it for this token. A crash before the commit leaves no trace of the call.
    fn is_begun_here(id: KeyId, step: &[u8], token: i64) -> Result<bool> {
        let row = Row::find(id, step, &Snapshot::now())?;
        Ok(row.is_some_and(|row| row.is_ours() && row.was_begun_by(token) && !row.is_done()))
    }

    fn is_done(&self) -> bool {
        self.raw(Col::DoneAt).is_some()
    }

    /// This token was the last to begin it.
    fn was_begun_by(&self, token: i64) -> bool {
        self.raw(Col::BegunToken).is_some() && self.i64(Col::BegunToken) == token
    }

    fn begun_before(&self, token: i64) -> i32 {
        self.i32(Col::Begun) - i32::from(self.was_begun_by(token))
    }

    /// Stores the step; the key's row is locked, so nobody else writes it.
    fn store(&mut self, id: KeyId, step: &[u8]) -> Result<Outcome> {
        let begins = self.raw(Col::FirstAt).is_some() || self.is_done();
        let begins = begins && self.raw(Col::BegunNo).is_none();
        let ends = self.raw(Col::OnComplete).is_some() && self.raw(Col::DoneNo).is_none();
        if self.tid().is_none() || begins || ends {
            let all = Numbers::of(id, step)?;
            if self.tid().is_none() && all.has_this {
                return Ok(Outcome::Changed);
            }
            if begins {
                self.put_i32(Col::BegunNo, all.begun + 1);
            }
            if ends {
                self.put_i32(Col::DoneNo, all.done + 1);
            }
        }
        self.put(Col::KeyId, Some(id_datum(&id)));
        self.put_text(Col::Step, Some(step));
        let table = Table::to_write(TABLE)?;
        match self.tid() {
            Some(tid) => self.update_at(&table, tid),
            None => self.insert(&table).map(|()| Outcome::Done),
        }
    }
}

/// How far the numbers of a key's steps have come, and whether this step is among them.
#[derive(Default)]
struct Numbers {
    begun: i32,
    done: i32,
    has_this: bool,
}

impl Numbers {
    fn of(id: KeyId, step: &[u8]) -> Result<Numbers> {
        let snapshot = Snapshot::latest();
        let table = Table::to_read(TABLE)?;
        let keys = &mut [ScanKey::uuid(1, id_datum(&id))];
        let mut scan = table.scan(BY_STEP, keys, &snapshot)?;
        let mut numbers = Numbers::default();
        while let Some(slot) = scan.advance() {
            let row = Row::look(slot);
            numbers.begun = numbers.begun.max(row.i32(Col::BegunNo));
            numbers.done = numbers.done.max(row.i32(Col::DoneNo));
            numbers.has_this |= row.bytes(Col::Step) == Some(step);
        }
        Ok(numbers)
    }
}

/// What a look does with the key's row.
#[derive(Clone, Copy)]
enum Look {
    Only,
    Lock,
    /// Locks it, and notes that the key's end has events to emit.
    Mark,
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

    /// Shows the step to `decide`; true from it: store the step. `registers`: it may get events with that, which
    /// the key's row has to tell.
    fn change<T>(
        &self,
        registers: bool,
        mut decide: impl FnMut(&mut Row, i64) -> Result<(bool, T)>,
    ) -> Result<T> {
        let mut at = self.look(Look::Only)?;
        let (store, answer) = decide(&mut at.0, at.1)?;
        if !store {
            return Ok(answer);
        }
        at = self.look(if registers { Look::Mark } else { Look::Lock })?;
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
    fn look(&self, look: Look) -> Result<(Row, i64)> {
        let now = self.fenced.change(
            |_| None,
            |row, now| {
                let change = match look {
                    Look::Only => Change::Nothing,
                    Look::Mark if !row.emits() => {
                        row.put_emits(true);
                        Change::Write
                    }
                    Look::Mark | Look::Lock => Change::Lock,
                };
                Ok((change, now))
            },
        )?;
        let step = Row::find(self.id(), self.step, &Snapshot::now())?;
        Ok((step.unwrap_or_else(Row::new), now))
    }

    fn named(&self) -> String {
        format!("step \"{}\" of {}", shown(self.step), self.fenced.named())
    }

    fn raced(&self) -> Error {
        Error::retry_transaction(self.named())
    }
}

/// `once.key_step`.
pub fn key_step(call: &Call) -> Result<Datum> {
    let on_abort = StepEvent::of(call, 4, "on_abort")?;
    let write = Write::of(call)?;
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
        // Until the step is done, the present holder knows best what would undo it.
        let open = on_abort.as_ref().filter(|_| !step.is_done());
        let registered = register(step, Col::OnAbort, open)?;
        Ok((fresh || registered, begin_values(&write, step, token)))
    })?;
    Ok(STEP.with(|shape| shape.row(&values)))
}

/// Puts an event into the step, where it is another one than the step has: true.
fn register(step: &mut Row, col: Col, event: Option<&StepEvent>) -> Result<bool> {
    match event.filter(|e| !e.is(step.raw(col))) {
        None => Ok(false),
        Some(event) => {
            event.ensure_open()?;
            step.put(col, Some(event.json));
            Ok(true)
        }
    }
}

fn begin_values(write: &Write, step: &Row, token: i64) -> [Option<Datum>; 5] {
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
    let on_complete = StepEvent::of(call, 5, "on_complete")?;
    let on_abort = StepEvent::of(call, 6, "on_abort")?;
    let write = Write::of(call)?;
    let token = write.fenced.token;
    let given = call.datum(4);
    let uncommitted = Row::is_begun_here(write.id(), write.step, token)?;
    let registers = on_complete.is_some() || on_abort.is_some();
    let values = write.change(registers, |step, now| {
        if !step.is_done() {
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
                "key_step tells the recorded result.",
            ));
        }
        // Without an on_abort of its own, the call has left the one of the beginning.
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
                "{} began in this transaction: had the process died at the call, nobody would know of it",
                write.named()
            ),
            "Commit after key_step, before the foreign call.",
        );
    }
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
    let key = Named::of(call)?;
    let step = call.text(2, "step", STEP_MAX)?;
    let snapshot = Snapshot::now();
    let now = clock::now_us()?;
    let row = Record::find(&Table::to_read(KEY_TABLE)?, key.id(), &snapshot)?;
    // Past its ttl a key has no steps any more, swept or not.
    let version = match row.filter(|r| !(r.status().finished() && now >= r.expires_at())) {
        None => 1,
        Some(_) => Row::find(key.id(), step, &snapshot)?.map_or(1, |s| s.i32(Col::Version)),
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
