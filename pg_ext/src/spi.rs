//! Running SQL as the extension's owner, for the paths that are not hot (options, sweeps, grants).
//!
//! The hot paths do not come here (see `table/`). Everything named in these statements is qualified, and
//! the user is switched only while the server runs them: to the caller's program `current_user` never
//! changes. Plans are kept per backend.

use crate::error::{Error, Kind, Result};
use crate::table;
use pgrx::pg_sys::{self, Datum};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::thread::LocalKey;

/// One result row; None for NULL. Values are copied into the caller's memory.
pub type Row = Vec<Option<Datum>>;

/// A statement that a backend plans once; keep it in a `thread_local`.
pub struct Kept {
    sql: &'static CStr,
    types: &'static [pg_sys::Oid],
    plan: Cell<pg_sys::SPIPlanPtr>,
}

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
            let plan = prepare(self.sql, self.types)?;
            // SAFETY: a plan just prepared in this SPI connection; kept plans outlive it.
            unsafe { pg_sys::SPI_keepplan(plan) };
            self.plan.set(plan);
        }
        Ok(self.plan.get())
    }
}

/// Runs a kept statement as the extension's owner.
pub fn query(kept: &'static LocalKey<Kept>, args: &[Option<Datum>]) -> Result<Vec<Row>> {
    as_owner(|| kept.with(|k| execute(k.plan()?, args)))
}

/// Runs a statement made at run time (utility statements have no parameters) as the extension's owner.
pub fn run(sql: &[u8]) -> Result<()> {
    let sql = CString::new(sql)
        .map_err(|_| Error::new(Kind::Internal, "a statement contains a NUL byte"))?;
    as_owner(|| execute(prepare(&sql, &[])?, &[]).map(drop))
}

fn prepare(sql: &CStr, types: &[pg_sys::Oid]) -> Result<pg_sys::SPIPlanPtr> {
    let mut types = types.to_vec();
    // SAFETY: connected to SPI by as_owner; the types are copied.
    let plan = unsafe { pg_sys::SPI_prepare(sql.as_ptr(), types.len() as i32, types.as_mut_ptr()) };
    match plan.is_null() {
        true => Err(Error::new(
            Kind::Internal,
            "a statement of pg_once could not be prepared",
        )),
        false => Ok(plan),
    }
}

fn execute(plan: pg_sys::SPIPlanPtr, args: &[Option<Datum>]) -> Result<Vec<Row>> {
    let mut values: Vec<Datum> = args.iter().map(|v| v.unwrap_or(Datum::from(0))).collect();
    let mut nulls: Vec<std::ffi::c_char> = args
        .iter()
        .map(|v| if v.is_none() { b'n' } else { b' ' } as _)
        .collect();
    let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
    let result = pgrx::PgTryBuilder::new(|| {
        // SAFETY: connected to SPI by as_owner; as many values as the plan has parameters.
        Some(unsafe { pg_sys::SPI_execute_plan(plan, values, nulls, false, 0) })
    })
    // Raised anew with a hint and without the text of an internal statement.
    .catch_when(
        pgrx::PgSqlErrorCode::ERRCODE_T_R_SERIALIZATION_FAILURE,
        |_| None,
    )
    .execute();
    match result {
        Some(result) if result >= 0 => Ok(rows()),
        Some(result) => Err(Error::new(
            Kind::Internal,
            format!("SPI_execute_plan: {result}"),
        )),
        None => Err(Error::retry_transaction("a row of pg_once")),
    }
}

/// The rows of the last statement, copied out of SPI's memory.
fn rows() -> Vec<Row> {
    // SAFETY: SPI_tuptable is the last statement's result or null; its rows and their descriptor live
    // until SPI_finish; SPI_datumTransfer copies each value into the memory of SPI's caller.
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
                    .map(|c| value(*(*table).vals.add(r), desc, c))
                    .collect()
            })
            .collect()
    }
}

unsafe fn value(tuple: pg_sys::HeapTuple, desc: pg_sys::TupleDesc, column: i32) -> Option<Datum> {
    let mut null = false;
    let (mut by_value, mut length, mut align) = (false, 0i16, 0);
    // SAFETY: as the caller says; column is between 1 and natts.
    unsafe {
        let datum = pg_sys::SPI_getbinval(tuple, desc, column, &mut null);
        if null {
            return None;
        }
        let type_oid = pg_sys::SPI_gettypeid(desc, column);
        pg_sys::get_typlenbyvalalign(type_oid, &mut length, &mut by_value, &mut align);
        Some(pg_sys::SPI_datumTransfer(datum, by_value, length.into()))
    }
}

fn as_owner<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let owner = table::key_table_owner()?;
    let _user = SwitchedUser::to(owner);
    // SAFETY: paired with SPI_finish below; an error of the server ends the connection with the
    // (sub)transaction.
    unsafe { pg_sys::SPI_connect() };
    let result = work();
    // SAFETY: connected above.
    unsafe { pg_sys::SPI_finish() };
    result
}

/// The user and search_path while the owner's statements run; an abort restores both by itself.
struct SwitchedUser {
    user: pg_sys::Oid,
    context: i32,
    settings_level: i32,
}

impl SwitchedUser {
    fn to(owner: pg_sys::Oid) -> SwitchedUser {
        let mut before = SwitchedUser {
            user: pg_sys::InvalidOid,
            context: 0,
            settings_level: 0,
        };
        // SAFETY: reads and sets this backend's user and, at a settings level of its own, its search_path
        // (an operator of the caller's must never run as the owner); restored on drop.
        unsafe {
            pg_sys::GetUserIdAndSecContext(&mut before.user, &mut before.context);
            let context = before.context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as i32;
            pg_sys::SetUserIdAndSecContext(owner, context);
            before.settings_level = pg_sys::NewGUCNestLevel();
            pg_sys::set_config_option(
                c"search_path".as_ptr(),
                c"pg_catalog, pg_temp".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        before
    }
}

impl Drop for SwitchedUser {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: the level and the values of before the switch.
            unsafe {
                pg_sys::AtEOXact_GUC(true, self.settings_level);
                pg_sys::SetUserIdAndSecContext(self.user, self.context);
            }
        }
    }
}
