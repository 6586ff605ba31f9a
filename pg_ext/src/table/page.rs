//! Reads the rows of one page, to sample a large table.

use super::{Slot, Snapshot, Table};
use pgrx::pg_sys;

/// No page has more rows than this: a row has a line pointer of 4 bytes and a header of 24; a page's header has 24.
const MOST_TUPLES: u16 = ((pg_sys::BLCKSZ - 24) / 28) as u16;

impl Table {
    /// Passes to `use_it` each row that the snapshot sees on page `number` (below [`Table::pages`]).
    pub fn page(&self, number: u32, snapshot: &Snapshot, mut use_it: impl FnMut(&Slot)) {
        let slot = self.slot();
        for place in 1..=MOST_TUPLES {
            let mut tid = pg_sys::ItemPointerData {
                ip_blkid: pg_sys::BlockIdData {
                    bi_hi: (number >> 16) as u16,
                    bi_lo: number as u16,
                },
                ip_posid: place,
            };
            // SAFETY: the relation is open and locked, so the page is not truncated; the line pointer may be unused. A
            // function pointer must be called through pg_guard_ffi_boundary.
            let found = unsafe {
                let fetch = (*(*self.rel).rd_tableam).tuple_fetch_row_version;
                let (rel, raw, tid) = (self.rel, slot.raw, &raw mut tid);
                let snapshot = snapshot.raw();
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    fetch.is_some_and(|f| f(rel, tid, snapshot, raw))
                })
            };
            if found {
                use_it(&slot);
            }
        }
    }
}
