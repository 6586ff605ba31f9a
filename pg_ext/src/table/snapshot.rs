//! The rows that a read sees.
//!
//! Under READ COMMITTED each read takes a fresh snapshot, so that a read after a lost race sees the winner's row. Above
//! READ COMMITTED a read uses the transaction's snapshot. `latest` is for a check under a lock, because the
//! transaction's snapshot may be older than the lock. `Dirty` also sees uncommitted rows of other transactions, so a
//! claim finds another session's claim without waiting.

use pgrx::pg_sys;
use std::cell::UnsafeCell;
use std::marker::PhantomData;

/// True under REPEATABLE READ and SERIALIZABLE.
pub fn above_read_committed() -> bool {
    // SAFETY: reads a variable of this backend.
    unsafe { pg_sys::XactIsoLevel >= pg_sys::XACT_REPEATABLE_READ as i32 }
}

/// The next transaction id that will be given out, with its epoch.
pub fn next_xid() -> i64 {
    // SAFETY: reads shared memory, under the server's lock.
    unsafe { pg_sys::ReadNextFullTransactionId().value as i64 }
}

/// The transaction's id with its epoch. A transaction without an id is assigned one. The caller has made sure that the
/// transaction may write.
pub fn own_xid() -> i64 {
    // SAFETY: takes no argument; raises where no id can be given.
    unsafe { pg_sys::GetTopFullTransactionId().value as i64 }
}

/// This transaction's id with its epoch; None: no id is assigned.
pub fn own_xid_if_any() -> Option<i64> {
    // SAFETY: reads a variable of this backend.
    let xid = unsafe { pg_sys::GetTopFullTransactionIdIfAny().value as i64 };
    (xid != 0).then_some(xid)
}

/// A registered snapshot, or the dirty snapshot.
pub enum Snapshot {
    Mvcc(pg_sys::Snapshot),
    Dirty(Box<UnsafeCell<pg_sys::SnapshotData>>),
}

impl Snapshot {
    /// A fresh snapshot under READ COMMITTED, else the transaction's snapshot. Both see our own earlier writes.
    pub fn now() -> Snapshot {
        // SAFETY: makes our own writes visible to the next snapshot, as SPI does for each statement of a volatile
        // function; the snapshot is unregistered on drop.
        unsafe {
            pg_sys::CommandCounterIncrement();
            Snapshot::Mvcc(pg_sys::RegisterSnapshot(pg_sys::GetTransactionSnapshot()))
        }
    }

    /// The rows that are committed now, at any isolation level, and our own earlier writes.
    pub fn latest() -> Snapshot {
        // SAFETY: as in now().
        unsafe {
            pg_sys::CommandCounterIncrement();
            Snapshot::Mvcc(pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot()))
        }
    }

    /// All live rows, and the rows that an open transaction inserts or deletes. A read can miss a committed row if a
    /// non-HOT update moves the row meanwhile, so a caller that finds nothing reads again with `latest`.
    pub fn dirty() -> Snapshot {
        Snapshot::Dirty(Box::new(UnsafeCell::new(pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..Default::default()
        })))
    }

    /// Until the result is dropped, functions in a table's CHECKs and indexes see the rows of this snapshot.
    pub fn activate(&self) -> Active<'_> {
        // SAFETY: a registered snapshot; popped once, or by the end of the (sub)transaction.
        unsafe { pg_sys::PushActiveSnapshot(self.raw()) };
        Active(PhantomData)
    }

    pub fn raw(&self) -> pg_sys::Snapshot {
        match self {
            Snapshot::Mvcc(s) => *s,
            Snapshot::Dirty(s) => s.get(),
        }
    }

    /// Returns two values. First: the ids of other transactions that ran when the snapshot was taken, but only ids
    /// below `xmax`. Second: `xmax`, one above the highest id that had ended. All ids have their epoch.
    pub fn running(&self) -> (Vec<i64>, i64) {
        let next = next_xid();
        let full = |xid: pg_sys::TransactionId| {
            next - i64::from((next as u32).wrapping_sub(xid.into_inner()))
        };
        // SAFETY: a registered MVCC snapshot stays valid until drop; xip has xcnt elements.
        unsafe {
            let snapshot = &*self.raw();
            let running = match snapshot.xcnt {
                0 => &[],
                n => std::slice::from_raw_parts(snapshot.xip, n as usize),
            };
            let running = running.iter().map(|xid| full(*xid)).collect();
            (running, full(snapshot.xmax))
        }
    }

    /// The ids below `next` that had not ended when the snapshot was taken, sorted. They are the ids that `running`
    /// returns, and all ids from `xmax` on. None if the difference `next` - `xmax` exceeds `most`.
    pub fn unended_before(&self, next: i64, most: i64) -> Option<Vec<i64>> {
        let (running, xmax) = self.running();
        if next.saturating_sub(xmax) > most {
            return None;
        }
        let mut unended: Vec<i64> = running.into_iter().filter(|xid| *xid < next).collect();
        unended.extend(xmax..next);
        unended.sort_unstable();
        unended.dedup();
        Some(unended)
    }
}

/// See [`Snapshot::activate`].
pub struct Active<'s>(PhantomData<&'s Snapshot>);

impl Drop for Active<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: pushed by activate.
            unsafe { pg_sys::PopActiveSnapshot() };
        }
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Snapshot::Mvcc(s) = self
            && !std::thread::panicking()
        {
            // SAFETY: registered by now() or latest(), and unregistered once.
            unsafe { pg_sys::UnregisterSnapshot(*s) };
        }
    }
}
