//! Finds the transaction that wrote a row, and waits for its end.

use super::{Slot, Snapshot};
use pgrx::pg_sys;

const XMIN: i32 = pg_sys::MinTransactionIdAttributeNumber;

impl Slot {
    /// Whether the present transaction has written this version of the row.
    pub fn is_ours(&self) -> bool {
        let mut null = false;
        // SAFETY: the slot holds a stored row, so it has system columns. A function pointer must be called through
        // pg_guard_ffi_boundary.
        unsafe {
            let (raw, null) = (self.raw, &raw mut null);
            let read = (*(*raw).tts_ops).getsysattr;
            let xmin = pg_sys::ffi::pg_guard_ffi_boundary(|| read.map(|f| f(raw, XMIN, null)));
            xmin.is_some_and(|xid| {
                let xid = pg_sys::TransactionId::from_inner(xid.value() as u32);
                pg_sys::TransactionIdIsCurrentTransactionId(xid)
            })
        }
    }
}

impl Snapshot {
    /// After a read with this dirty snapshot: the open transaction that inserted or deleted the row that was found.
    pub fn undecided_xid(&self) -> Option<pg_sys::TransactionId> {
        match self {
            Snapshot::Mvcc(_) => None,
            Snapshot::Dirty(_) => {
                // SAFETY: the server wrote the ids through the pointer from `raw()`.
                let s = unsafe { &*self.raw() };
                [s.xmin, s.xmax]
                    .into_iter()
                    .find(|xid| *xid != pg_sys::InvalidTransactionId)
            }
        }
    }
}

/// Waits until a transaction or subtransaction has ended, as the server does for a unique index; lock_timeout bounds
/// the wait. The caller must hold no pin and no lock that the other transaction may want.
pub fn wait_for(xid: pg_sys::TransactionId) {
    // SAFETY: plain arguments; no relation and no tuple to name in the error's context.
    unsafe {
        pg_sys::XactLockTableWait(
            xid,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            pg_sys::XLTW_Oper::XLTW_None,
        );
    }
}
