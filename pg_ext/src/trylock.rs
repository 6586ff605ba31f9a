//! A try-lock per key in a lock space of our own, held for the few microseconds between the last look
//! and the insert: whoever does not get it knows that somebody is claiming the key right now.
//!
//! It is given back before the function returns, so claiming 200,000 keys in one transaction does not
//! fill shared memory. An error gives it back with the (sub)transaction.

use pgrx::pg_sys;

/// `objsubid` in pg_locks; the server's own advisory functions use 1 and 2.
const LOCK_SPACE: u16 = 0x6f6e;
const ADVISORY_METHOD: u8 = 2;

/// A held lock; dropping it gives it back.
pub struct TryLock(pg_sys::LOCKTAG);

impl TryLock {
    /// None: somebody else holds it.
    pub fn acquire(hash: u64) -> Option<TryLock> {
        // SAFETY: MyDatabaseId is set in every backend that runs a function; the tag is plain data.
        let (tag, got) = unsafe {
            let tag = pg_sys::LOCKTAG {
                locktag_field1: pg_sys::MyDatabaseId.to_u32(),
                locktag_field2: (hash >> 32) as u32,
                locktag_field3: hash as u32,
                locktag_field4: LOCK_SPACE,
                locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
                locktag_lockmethodid: ADVISORY_METHOD,
            };
            let got = pg_sys::LockAcquire(&tag, pg_sys::ExclusiveLock as i32, false, true);
            (tag, got)
        };
        (got != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL).then_some(TryLock(tag))
    }

    /// Keeps the lock until the transaction ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for TryLock {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: the lock is held by this transaction since acquire; an abort would have freed it,
            // but then this value is dropped while unwinding and does nothing.
            unsafe { pg_sys::LockRelease(&self.0, pg_sys::ExclusiveLock as i32, false) };
        }
    }
}
