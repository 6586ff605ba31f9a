//! A sequence of the extension: the next number, and the last number that was given out.

use super::{Name, Table};
use crate::error::Result;
use pgrx::pg_sys;

pub struct Sequence {
    table: Table,
}

impl Sequence {
    pub fn to_read(name: Name) -> Result<Sequence> {
        let table = Table::to_read(name)?;
        Ok(Sequence { table })
    }

    pub fn oid(&self) -> pg_sys::Oid {
        self.table.oid()
    }

    /// The next number. No other call gets the same number, unless a crash loses the WAL record of this call.
    pub fn next(name: Name) -> Result<i64> {
        let oid = super::names::oid_of(name)?;
        // SAFETY: the oid is a sequence of the extension; raises at the sequence's end. No right is checked.
        Ok(unsafe { pg_sys::nextval_internal(oid, false) })
    }

    /// The last number that was given out, read under the lock that the server takes to give a number out.
    pub fn last(&self) -> i64 {
        // SAFETY: a sequence is one page with one row. The page is pinned and locked while the row is read, and no call
        // meanwhile raises.
        unsafe {
            let buffer = pg_sys::ReadBuffer(self.table.rel, 0);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let page = pg_sys::BufferGetPage(buffer);
            let row = pg_sys::PageGetItem(page, pg_sys::PageGetItemId(page, 1));
            let head = row.cast::<pg_sys::HeapTupleHeaderData>();
            let offset = usize::from((*head).t_hoff);
            let numbers = row.add(offset).cast::<pg_sys::FormData_pg_sequence_data>();
            let last = (*numbers).last_value - i64::from(!(*numbers).is_called);
            pg_sys::UnlockReleaseBuffer(buffer);
            last
        }
    }
}
