//! The `once.*` settings.

use crate::clock;
use crate::error::{Error, Result};
use pgrx::pg_sys;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::{CStr, CString};
use std::time::Duration;

/// Runs `work`, which waits for each lock no longer than once.sweep_lock_timeout.
pub fn with_sweep_lock_timeout<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    with_lock_timeout(SWEEP_LOCK_TIMEOUT.get(), work)
}

/// Runs `work`, which waits for locks on machines or whole tables up to the caller's lock_timeout. If that is 0, the
/// limit is deadlock_timeout plus one second: by then the server has cancelled an autovacuum that holds the lock. The
/// wait is limited because every writer of the table queues behind it.
pub fn with_table_lock_timeout<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    // SAFETY: reads two settings, in milliseconds; a lock_timeout of 0 means no limit.
    let (own, deadlock) = unsafe { (pg_sys::LockTimeout, pg_sys::DeadlockTimeout) };
    match own {
        0 => with_lock_timeout(deadlock.saturating_add(1_000), work),
        _ => work(),
    }
}

fn with_lock_timeout<T>(ms: i32, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let timeout = CString::new(ms.to_string()).map_err(Error::internal)?;
    under(&[(c"lock_timeout", &timeout)], work)
}

static KEY_LEASE: GucSetting<i32> = GucSetting::<i32>::new(60_000);
static KEY_TTL: GucSetting<i32> = GucSetting::<i32>::new(86_400);
static ACTION_LEASE: GucSetting<i32> = GucSetting::<i32>::new(300_000);
static RETRY_AFTER: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static JANITOR_GRACE: GucSetting<i32> = GucSetting::<i32>::new(600_000);
static JANITOR_DATABASES: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c""));
static JANITOR_NAPTIME: GucSetting<i32> = GucSetting::<i32>::new(10_000);
static JANITOR_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(2);
static SWEEP_LOCK_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(100);
static FAKE_NOW: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(None);

/// The shortest and the longest once.janitor_naptime, in milliseconds. The longest is half of the ten minutes after
/// which the alert JanitorNotRunning fires.
const LEAST_NAPTIME: i32 = 10;
const MOST_NAPTIME: i32 = 300_000;

/// The largest once.janitor_workers.
pub const MOST_WORKERS: i32 = 64;

/// The lease of a claim if neither the call nor the scope sets one (once.key_lease).
pub fn key_lease_us() -> i64 {
    i64::from(KEY_LEASE.get()) * 1_000
}

/// How long an answer is replayed if neither the call nor the scope sets a ttl (once.key_ttl).
pub fn key_ttl_us() -> i64 {
    i64::from(KEY_TTL.get()) * 1_000_000
}

/// The lease of a claimed action if neither the call nor the step sets one (once.action_lease).
pub fn action_lease_us() -> i64 {
    i64::from(ACTION_LEASE.get()) * 1_000
}

/// The shortest retry_after of an answer.
pub const LEAST_RETRY_US: i64 = 100_000;

/// Upper limit of the retry_after if the scope sets no limit (once.retry_after).
pub fn retry_after_us() -> i64 {
    i64::from(RETRY_AFTER.get()) * 1_000
}

/// The retry_after while a lease is alive: the rest of the lease, limited to `most`, but at least [`LEAST_RETRY_US`].
pub fn retry_within(lease_left_us: i64, most: i64) -> i64 {
    lease_left_us.min(most).max(LEAST_RETRY_US)
}

/// `machine_assert` raises ON004 if a machine's last sweep without failures is older than this (once.janitor_grace).
pub fn janitor_grace_us() -> i64 {
    i64::from(JANITOR_GRACE.get()) * 1_000
}

/// The setting once.janitor_databases as it is written.
pub fn janitor_databases() -> Vec<u8> {
    let names = JANITOR_DATABASES.get();
    names.map(CString::into_bytes).unwrap_or_default()
}

/// At most this many databases are swept at the same time (once.janitor_workers).
pub fn janitor_workers() -> usize {
    JANITOR_WORKERS.get().max(1) as usize
}

/// The time from the start of one pass over a database to the next (once.janitor_naptime), at most [`longest_pause`].
pub fn covering_naptime() -> Duration {
    let nap = Duration::from_millis(JANITOR_NAPTIME.get().unsigned_abs().into());
    nap.min(longest_pause())
}

/// The time from the start of one pass over an idle database to the next: half of once.janitor_grace, but at most
/// [`MOST_NAPTIME`]. This keeps the last sweep of claim states recent enough for `machine_assert`.
pub fn longest_pause() -> Duration {
    let covered = (JANITOR_GRACE.get() / 2).clamp(LEAST_NAPTIME, MOST_NAPTIME);
    Duration::from_millis(covered.unsigned_abs().into())
}

/// The pretended clock in microseconds since 2000, if once.fake_now is set.
pub fn fake_now() -> Result<Option<i64>> {
    let Some(text) = FAKE_NOW.get() else {
        return Ok(None);
    };
    if text.is_empty() {
        return Ok(None);
    }
    // Times after the year 148,000 are refused, so that no sum with a time overflows an i64.
    let sane = |us: &i64| us.unsigned_abs() < u64::MAX / 4;
    match clock::parse_timestamptz(&text).filter(sane) {
        Some(us) => Ok(Some(us)),
        None => Err(Error::bad_argument(
            "once.fake_now",
            "is not a finite timestamptz",
            "SET LOCAL once.fake_now = '2030-01-01 00:00:00+00', or RESET once.fake_now.",
        )),
    }
}

/// Runs `work` under these settings. After a failure, the end of the (sub)transaction resets them.
pub fn under<T>(settings: &[(&CStr, &CStr)], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let level = begin_level(settings);
    let result = work()?;
    // SAFETY: the level begun above.
    unsafe { pg_sys::AtEOXact_GUC(true, level) };
    Ok(result)
}

/// Sets these settings at a level of their own, which the caller ends with AtEOXact_GUC.
pub fn begin_level(settings: &[(&CStr, &CStr)]) -> i32 {
    // SAFETY: the server has these settings, and the values are valid. With PGC_SUSET the server does not check the
    // user's privileges.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        for (name, value) in settings {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_SUSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
        level
    }
}

/// Runs `work` so that its statements read rows by index and in index order, whatever size the tables had at planning.
/// jit is off: before PostgreSQL 18 a disabled kind of plan only gets a high cost, which would start jit.
pub fn by_index<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    const BY_INDEX: &[(&CStr, &CStr)] = &[
        (c"enable_seqscan", c"off"),
        (c"enable_bitmapscan", c"off"),
        (c"jit", c"off"),
    ];
    under(BY_INDEX, work)
}

/// Registers every setting; called when the library is loaded.
pub fn register() {
    GucRegistry::define_int_guc(
        c"once.key_lease",
        c"Lease of a claimed key where neither the call nor its scope gives one.",
        c"In milliseconds without a unit; default 60s. Precedence: argument, scope option, this setting.",
        &KEY_LEASE,
        1,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"once.key_ttl",
        c"How long a finished key replays its answer where neither the call nor its scope gives a ttl.",
        c"In seconds without a unit; default 1d. Precedence: argument, scope option, this setting.",
        &KEY_TTL,
        1,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"once.action_lease",
        c"Lease of a claimed action where neither the call nor its step gives one.",
        c"In milliseconds without a unit; default 5min. Precedence: argument, the step's lease, this setting.",
        &ACTION_LEASE,
        1,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"once.retry_after",
        c"Upper limit of the retry_after while another attempt has the key or row.",
        c"In milliseconds without a unit, from 100ms; default 1s. Precedence: scope option, this setting.",
        &RETRY_AFTER,
        100,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"once.janitor_grace",
        c"machine_assert raises ON004 if the last successful sweep of a machine with claim states is longer ago.",
        c"In milliseconds without a unit; default 10min.",
        &JANITOR_GRACE,
        1,
        i32::MAX,
        GucContext::Suset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"once.janitor_databases",
        c"Databases in which the background workers sweep.",
        c"Names separated by commas. A name with a comma, or with a space at its start or end, is put in double quotes. Default none. Read again on reload; needs shared_preload_libraries = 'pg_once'.",
        &JANITOR_DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"once.janitor_naptime",
        c"Time from the start of one pass of a background worker over a database to the start of the next.",
        c"In milliseconds without a unit, up to 5min; default 10s. The time is never longer than half of once.janitor_grace. A database in which nothing is due is swept after half of once.janitor_grace, or five minutes if that is shorter. Read again on reload.",
        &JANITOR_NAPTIME,
        LEAST_NAPTIME,
        MOST_NAPTIME,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"once.janitor_workers",
        c"The most databases that the background workers sweep at the same time.",
        c"From 1 to 64; default 2. Each sweep of a database takes one of max_worker_processes. Read again on reload.",
        &JANITOR_WORKERS,
        1,
        MOST_WORKERS,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"once.sweep_lock_timeout",
        c"How long sweeps, janitor_status, metrics, doctor, machine_check, topic_set and action_list wait for each lock.",
        c"In milliseconds without a unit; default 100ms. A sweep that cannot lock a table reports a failure, and the next sweep tries again. Locked rows are skipped.",
        &SWEEP_LOCK_TIMEOUT,
        1,
        60_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_string_guc(
        c"once.fake_now",
        c"Pretended clock of every call, for tests only.",
        c"A timestamptz; empty (the default): the real clock. Tokens always come from the real clock.",
        &FAKE_NOW,
        GucContext::Suset,
        GucFlags::default(),
    );
    // SAFETY: a C string; unknown once.* settings are refused from now on.
    unsafe { pg_sys::MarkGUCPrefixReserved(c"once".as_ptr()) };
}
