//! Runs SQL: statements on the user's tables as the caller ([`Plan`]), and the extension's own statements outside the
//! hot paths (options, retries, sweeps, grants) as its owner ([`Kept`], [`run`]).
//!
//! Hot paths read and write the extension's tables through `table/` instead. The extension's own statements run with a
//! pinned search_path. The user is switched (`user.rs`) only while the server runs statements, so the caller's program
//! never sees another `current_user`. Each backend keeps the plan of each [`Kept`], except in [`query_once`].

mod user;

pub use user::{SwitchedUser, ensure_nothing_temporary};

use crate::call::{from_utf8, shown, varlena};
use crate::error::{Error, Result};
use crate::table::{self, Snapshot};
use pgrx::pg_sys::{self, Datum};
use std::cell::Cell;
use std::ffi::{CStr, CString};

/// Name of the row in errors of the extension's own statements.
const OWN_ROW: &str = "a row of pg_once";

/// One result row; None for NULL. Values are copied into the caller's memory, except in [`Plan::stream`].
pub type Row = Vec<Option<Datum>>;

pub fn column(row: &Row, i: usize) -> Option<Datum> {
    row.get(i).copied().flatten()
}

/// A whole number in a column of a result row; 0 for NULL.
pub fn number(row: &Row, i: usize) -> i64 {
    column(row, i).map_or(0, |d| d.value() as i64)
}

/// A text; None for NULL.
pub fn text_of(row: &Row, i: usize) -> Option<String> {
    column(row, i).map(|d| shown(varlena(d)))
}

/// A text; empty for NULL.
pub fn text(row: &Row, i: usize) -> String {
    text_of(row, i).unwrap_or_default()
}

/// A boolean; false for NULL.
pub fn yes(row: &Row, i: usize) -> bool {
    column(row, i).is_some_and(|d| d.value() != 0)
}

pub fn oid(row: &Row, i: usize) -> Option<pg_sys::Oid> {
    column(row, i).map(|d| pg_sys::Oid::from(d.value() as u32))
}

/// A double precision; 0 for NULL.
pub fn float(row: &Row, i: usize) -> f64 {
    column(row, i).map_or(0.0, |d| f64::from_bits(d.value() as u64))
}

/// The first column of the first row.
pub fn first(rows: &[Row]) -> Option<Datum> {
    rows.first().and_then(|row| row.first().copied().flatten())
}

/// A statement that a backend plans once and keeps in a `static`.
pub struct Kept {
    sql: &'static CStr,
    types: &'static [pg_sys::Oid],
    plan: Cell<pg_sys::SPIPlanPtr>,
}

// SAFETY: a backend is one thread.
unsafe impl Sync for Kept {}

impl Kept {
    pub const fn new(sql: &'static CStr, types: &'static [pg_sys::Oid]) -> Kept {
        Kept {
            sql,
            types,
            plan: Cell::new(std::ptr::null_mut()),
        }
    }

    fn plan(&self) -> Result<pg_sys::SPIPlanPtr> {
        if self.plan.get().is_null() {
            let plan = prepare(self.sql, self.types, 0)?;
            // SAFETY: a plan just prepared in this SPI connection; kept plans outlive it.
            unsafe { pg_sys::SPI_keepplan(plan) };
            self.plan.set(plan);
        }
        Ok(self.plan.get())
    }
}

/// Runs a kept statement as the extension's owner.
pub fn query(kept: &'static Kept, args: &[Option<Datum>]) -> Result<Vec<Row>> {
    as_owner(|| execute(kept.plan()?, args, Under::Statement, OWN_ROW))
}

/// Like [`query`], but plans the statement anew and keeps no plan: for rare calls with many statements.
pub fn query_once(kept: &'static Kept, args: &[Option<Datum>]) -> Result<Vec<Row>> {
    let planned = || prepare(kept.sql, kept.types, 0);
    as_owner(|| execute(planned()?, args, Under::Statement, OWN_ROW))
}

/// Like [`query`], but at every isolation level it sees the rows that are committed now. The server's checks of foreign
/// keys do the same. For work under a lock.
pub fn query_latest(kept: &'static Kept, args: &[Option<Datum>]) -> Result<Vec<Row>> {
    let snapshot = Snapshot::latest();
    as_owner(|| execute(kept.plan()?, args, Under::Latest(&snapshot), OWN_ROW))
}

/// Runs a statement that is made at run time and has no parameters, as the extension's owner.
pub fn run(sql: &[u8]) -> Result<()> {
    let sql = c_string(sql)?;
    as_owner(|| execute(prepare(&sql, &[], 0)?, &[], Under::Statement, OWN_ROW).map(drop))
}

/// Runs a statement without parameters as the current user.
pub fn run_as_caller(sql: &CStr) -> Result<()> {
    connected(|| execute(prepare(sql, &[], 0)?, &[], Under::Statement, OWN_ROW).map(drop))
}

/// A statement made at run time, mostly on the user's tables, and kept until it is dropped. It runs as the current
/// user, always with its generic plan.
pub struct Plan {
    raw: pg_sys::SPIPlanPtr,
    row: String,
}

impl Plan {
    /// Prepares a statement; `row` names the row in the error of a lost race.
    pub fn prepare(sql: &str, types: &[pg_sys::Oid], row: impl Into<String>) -> Result<Plan> {
        let sql = c_string(&from_utf8(sql))?;
        let raw = connected(|| {
            let plan = prepare(&sql, types, pg_sys::CURSOR_OPT_GENERIC_PLAN as i32)?;
            // SAFETY: a plan just prepared in this SPI connection; kept plans outlive it.
            unsafe { pg_sys::SPI_keepplan(plan) };
            Ok(plan)
        })?;
        Ok(Plan {
            raw,
            row: row.into(),
        })
    }

    /// Runs the statement under the transaction's usual snapshot, and returns all rows.
    pub fn query(&self, args: &[Option<Datum>]) -> Result<Vec<Row>> {
        connected(|| execute(self.raw, args, Under::Statement, &self.row))
    }

    /// Runs a statement that only reads, under the given snapshot.
    pub fn query_with(&self, args: &[Option<Datum>], snapshot: &Snapshot) -> Result<Vec<Row>> {
        connected(|| execute(self.raw, args, Under::ReadOnly(snapshot), &self.row))
    }

    /// Runs a statement that only reads, under the given snapshot, and passes its rows to `each`, `chunk` at a time,
    /// until `each` answers false. `each` runs in the memory context of `stream`'s caller. Frees the rows after `each`.
    pub fn stream(
        &self,
        args: &[Option<Datum>],
        snapshot: &Snapshot,
        chunk: i64,
        mut each: impl FnMut(Vec<Row>) -> Result<bool>,
    ) -> Result<()> {
        let (mut values, mut nulls) = parameters(args);
        // SAFETY: reads a variable of this backend.
        let memory = unsafe { pg_sys::CurrentMemoryContext };
        connected(|| {
            // SAFETY: connected; as many values as the plan has parameters. A read-only cursor runs under the active
            // snapshot, which is popped once the cursor has registered it.
            let portal = unsafe {
                pg_sys::PushActiveSnapshot(snapshot.raw());
                let name = std::ptr::null();
                let portal = pg_sys::SPI_cursor_open(
                    name,
                    self.raw,
                    values.as_mut_ptr(),
                    nulls.as_mut_ptr(),
                    true,
                );
                pg_sys::PopActiveSnapshot();
                portal
            };
            loop {
                // SAFETY: the portal is open.
                let table = unsafe {
                    pg_sys::SPI_cursor_fetch(portal, true, chunk);
                    pg_sys::SPI_tuptable
                };
                let batch = result_rows(raw_value);
                let last = batch.is_empty();
                // SAFETY: the context from before SPI_connect; memory of `each` must outlive SPI.
                let inner = unsafe { pg_sys::MemoryContextSwitchTo(memory) };
                let go_on = !last && each(batch)?;
                // SAFETY: nobody uses the rows of this batch any more.
                unsafe {
                    pg_sys::MemoryContextSwitchTo(inner);
                    pg_sys::SPI_freetuptable(table);
                }
                if !go_on {
                    break;
                }
            }
            // SAFETY: the portal is open; an error of the server closes it with the (sub)transaction.
            unsafe { pg_sys::SPI_cursor_close(portal) };
            Ok(())
        })
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: a kept plan of ours, freed once. The server counts references to a plan that is running.
        unsafe { pg_sys::SPI_freeplan(self.raw) };
    }
}

fn c_string(sql: &[u8]) -> Result<CString> {
    CString::new(sql).map_err(|_| Error::internal("a statement contains a NUL byte"))
}

fn prepare(sql: &CStr, types: &[pg_sys::Oid], options: i32) -> Result<pg_sys::SPIPlanPtr> {
    let mut types = types.to_vec();
    // SAFETY: connected to SPI; the types are copied.
    let plan = unsafe {
        pg_sys::SPI_prepare_cursor(
            sql.as_ptr(),
            types.len() as i32,
            types.as_mut_ptr(),
            options,
        )
    };
    match plan.is_null() {
        true => Err(Error::internal(
            "a statement of pg_once could not be prepared",
        )),
        false => Ok(plan),
    }
}

/// Values and NULL marks as the server takes them.
fn parameters(args: &[Option<Datum>]) -> (Vec<Datum>, Vec<std::ffi::c_char>) {
    let null = |v: &Option<Datum>| if v.is_none() { b'n' } else { b' ' } as _;
    let values = args.iter().map(|v| v.unwrap_or(Datum::from(0))).collect();
    (values, args.iter().map(null).collect())
}

/// The snapshot of a statement.
enum Under<'a> {
    /// The snapshot that any statement of this transaction takes.
    Statement,
    /// The given snapshot; the statement only reads.
    ReadOnly(&'a Snapshot),
    /// The given snapshot; the statement may write.
    Latest(&'a Snapshot),
}

fn execute(
    plan: pg_sys::SPIPlanPtr,
    args: &[Option<Datum>],
    under: Under,
    row: &str,
) -> Result<Vec<Row>> {
    let (mut values, mut nulls) = parameters(args);
    let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
    let (snapshot, read_only) = match under {
        Under::Statement => (None, false),
        Under::ReadOnly(snapshot) => (Some(snapshot.raw()), true),
        Under::Latest(snapshot) => (Some(snapshot.raw()), false),
    };
    let result = catch_races(row, || {
        // SAFETY: connected to SPI; as many values as the plan has parameters; if the caller gives a snapshot, the
        // snapshot is registered.
        Ok(unsafe {
            match snapshot {
                None => pg_sys::SPI_execute_plan(plan, values, nulls, false, 0),
                Some(snapshot) => pg_sys::SPI_execute_snapshot(
                    plan,
                    values,
                    nulls,
                    snapshot,
                    std::ptr::null_mut(),
                    read_only,
                    true,
                    0,
                ),
            }
        })
    })?;
    match result >= 0 {
        true => Ok(result_rows(copied_value)),
        false => Err(Error::internal(format!("SPI_execute_plan: {result}"))),
    }
}

/// Raises a lost race (40001) as an error that has a hint and does not show the internal statement.
pub fn catch_races<T>(row: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    pgrx::PgTryBuilder::new(std::panic::AssertUnwindSafe(work))
        .catch_when(
            pgrx::PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
            |_| Err(Error::retry_transaction(row)),
        )
        .execute()
}

type ReadValue = unsafe fn(pg_sys::HeapTuple, pg_sys::TupleDesc, i32) -> Option<Datum>;

/// The rows of the last statement, each value read by `read`.
fn result_rows(read: ReadValue) -> Vec<Row> {
    // SAFETY: SPI_tuptable is the last statement's result or null; its rows and their descriptor live
    // until SPI_finish or until it is freed.
    unsafe {
        let table = pg_sys::SPI_tuptable;
        if table.is_null() {
            return Vec::new();
        }
        let desc = (*table).tupdesc;
        let columns = (*desc).natts;
        (0..(*table).numvals as usize)
            .map(|r| {
                (1..=columns)
                    .map(|c| read(*(*table).vals.add(r), desc, c))
                    .collect()
            })
            .collect()
    }
}

/// A value in SPI's memory, not copied.
unsafe fn raw_value(
    tuple: pg_sys::HeapTuple,
    desc: pg_sys::TupleDesc,
    column: i32,
) -> Option<Datum> {
    let mut null = false;
    // SAFETY: the tuple is a row of SPI_tuptable, and desc its descriptor; column is between 1 and natts.
    let datum = unsafe { pg_sys::SPI_getbinval(tuple, desc, column, &mut null) };
    (!null).then_some(datum)
}

/// A value copied into the memory of SPI's caller.
unsafe fn copied_value(
    tuple: pg_sys::HeapTuple,
    desc: pg_sys::TupleDesc,
    column: i32,
) -> Option<Datum> {
    let (mut by_value, mut length, mut align) = (false, 0i16, 0);
    // SAFETY: the same as in raw_value; SPI_datumTransfer copies a value of the column's type.
    unsafe {
        let datum = raw_value(tuple, desc, column)?;
        let type_oid = pg_sys::SPI_gettypeid(desc, column);
        pg_sys::get_typlenbyvalalign(type_oid, &mut length, &mut by_value, &mut align);
        Some(pg_sys::SPI_datumTransfer(datum, by_value, length.into()))
    }
}

fn as_owner<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let _user = SwitchedUser::to_owner_of_extension(table::key_table_owner()?);
    connected(work)
}

fn connected<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: paired with SPI_finish below; an error of the server ends the connection with the
    // (sub)transaction.
    unsafe { pg_sys::SPI_connect() };
    let result = work();
    // SAFETY: connected above.
    unsafe { pg_sys::SPI_finish() };
    result
}
