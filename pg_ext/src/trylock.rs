//! Locks on numbers in a lock space of our own.
//!
//! Before a claim writes a key, it tries to lock a number, a hash of the key. A session that does not get the lock
//! knows that another session is claiming the key. The claim releases the lock after the write, so 200,000 claims in
//! one transaction do not fill shared memory. Some other locks are kept to the end of the transaction
//! ([`TryLock::keep`]). A (sub)transaction that an error aborts releases all locks that it has taken.

use crate::error::{Error, Result};
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys;
use std::panic::AssertUnwindSafe;

/// `objsubid` in pg_locks; the server's own advisory functions use 1 and 2.
const LOCK_SPACE: u16 = 0x6f6e;
const ADVISORY_METHOD: u8 = 2;

/// Fixed lock numbers. All numbers of lanes and topics are larger, because they have an id in the upper 32 bits.
pub const OUTBOX_SERIES: u64 = 1;
pub const OUTBOX_RETIRE: u64 = 2;
pub const OUTBOX_NUMBERS: u64 = 3;

/// A held lock, released on drop.
pub struct TryLock {
    tag: pg_sys::LOCKTAG,
    mode: i32,
}

impl TryLock {
    /// None: another session holds the lock.
    pub fn acquire(hash: u64) -> Option<TryLock> {
        TryLock::attempt(hash, pg_sys::ExclusiveLock as i32)
    }

    /// A shared lock. None: another session holds the exclusive lock, or waits for it.
    pub fn shared(hash: u64) -> Option<TryLock> {
        TryLock::attempt(hash, pg_sys::ShareLock as i32)
    }

    /// Waits for the lock; lock_timeout bounds the wait.
    pub fn wait(hash: u64) -> TryLock {
        TryLock::wait_for(hash, pg_sys::ExclusiveLock as i32)
    }

    /// Waits for a shared lock; lock_timeout bounds the wait.
    pub fn wait_shared(hash: u64) -> TryLock {
        TryLock::wait_for(hash, pg_sys::ShareLock as i32)
    }

    fn wait_for(hash: u64, mode: i32) -> TryLock {
        let tag = tag(hash);
        // SAFETY: the tag is plain data; lock_timeout bounds the wait.
        unsafe { pg_sys::LockAcquire(&tag, mode, false, false) };
        TryLock { tag, mode }
    }

    fn attempt(hash: u64, mode: i32) -> Option<TryLock> {
        let tag = tag(hash);
        // SAFETY: the tag is plain data; the transaction gets the lock at once or not at all.
        let got = unsafe { pg_sys::LockAcquire(&tag, mode, false, true) };
        (got != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL).then(|| TryLock { tag, mode })
    }

    /// Keeps the lock until the transaction ends.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

/// Calls `wait`, which takes a lock of any kind. If lock_timeout ends the wait (55P03), returns the error from `late`.
pub fn wait_or(wait: impl FnOnce(), late: impl FnOnce() -> Error) -> Result<()> {
    let wait = AssertUnwindSafe(wait);
    let is_locked = pgrx::PgTryBuilder::new(move || {
        let wait = wait;
        (wait.0)();
        true
    })
    .catch_when(Code::ERRCODE_LOCK_NOT_AVAILABLE, |_| false)
    .execute();
    if is_locked { Ok(()) } else { Err(late()) }
}

fn tag(hash: u64) -> pg_sys::LOCKTAG {
    pg_sys::LOCKTAG {
        // SAFETY: set once when this backend started.
        locktag_field1: unsafe { pg_sys::MyDatabaseId.to_u32() },
        locktag_field2: (hash >> 32) as u32,
        locktag_field3: hash as u32,
        locktag_field4: LOCK_SPACE,
        locktag_type: pg_sys::LockTagType::LOCKTAG_ADVISORY as u8,
        locktag_lockmethodid: ADVISORY_METHOD,
    }
}

impl Drop for TryLock {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: this transaction holds the lock. While an error unwinds the stack, this call is skipped,
            // because the abort releases the lock.
            unsafe { pg_sys::LockRelease(&self.tag, self.mode, false) };
        }
    }
}
