//! A sequence of the extension: the next number, and the last one that was given out.

use super::{Name, Table};
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys;

/// An open sequence.
pub struct Sequence {
    table: Table,
}

impl Sequence {
    /// Opens it for looking.
    pub fn to_read(name: Name) -> Result<Sequence> {
        let table = Table::to_read(name)?;
        Ok(Sequence { table })
    }

    pub fn oid(&self) -> pg_sys::Oid {
        self.table.oid()
    }

    /// The next number; it is nobody else's, but for what a crash takes back.
    pub fn next(name: Name) -> Result<i64> {
        let oid = super::names::oid_of(name)?;
        // SAFETY: the oid is a sequence of the extension; raises at its end. No right of the caller's is asked.
        Ok(unsafe { pg_sys::nextval_internal(oid, false) })
    }

    /// The last number that was given out: read under the lock that the server gives them out under.
    pub fn last_exactly(&self) -> i64 {
        // SAFETY: a sequence is one page with one row; pinned and locked while it is read, and nothing here raises
        // between.
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

    /// Every number that was given out before this call is at most this. It may be too large by what the server
    /// logs ahead (32): it writes that first and takes it back, and nobody is kept from reading meanwhile.
    pub fn last(&self) -> Result<i64> {
        let slot = self.table.slot();
        let mut first = pg_sys::ItemPointerData {
            ip_blkid: pg_sys::BlockIdData { bi_hi: 0, bi_lo: 0 },
            ip_posid: 1,
        };
        // SAFETY: a sequence is a heap of one row at a fixed place, frozen, and pinned by the slot; its
        // last_value is written in place as one aligned word. Called behind pgrx's barrier because the access
        // method is a function pointer.
        let found = unsafe {
            let fetch = (*(*self.table.rel).rd_tableam).tuple_fetch_row_version;
            let (rel, raw, tid) = (self.table.rel, slot.raw, &raw mut first);
            let any = &raw mut pg_sys::SnapshotAnyData;
            pg_sys::ffi::pg_guard_ffi_boundary(|| fetch.is_some_and(|f| f(rel, tid, any, raw)))
        };
        let (last, called) = (slot.column(1), slot.column(3));
        match (found, last, called) {
            (true, Some(last), Some(called)) => {
                Ok(last.value() as i64 - i64::from(called.value() == 0))
            }
            _ => Err(Error::new(
                Kind::Internal,
                "a sequence of pg_once has no row",
            )),
        }
    }
}
