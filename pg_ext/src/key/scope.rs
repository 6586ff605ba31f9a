//! Options of a scope: `scope_set` and `scope_get`; every other call on a key reads the options here.
//!
//! A scope needs no declaration: a scope without a row has the defaults. If a scope has an owner, only members of that
//! role may use it; every function of a key passes through [`ScopeOptions::for_caller`], which checks this.

use super::claim::STARTED;
use super::record::{self, KeyRow};
use crate::call::{Call, SCOPE_MAX, texts, varlena};
use crate::caller::{self, Owner};
use crate::clock::{self, DAY_US};
use crate::error::{Error, Result};
use crate::incarnation;
use crate::options::{Given, Member};
use crate::row;
use crate::settings;
use crate::spi::{self, Kept};
use crate::table::{self, KeptRow, Name, Recalled, ScanKey, Snapshot, Table};
use pgrx::pg_sys::{Datum, INT8OID, JSONBOID, OIDOID, TEXTOID, TIMESTAMPTZOID};
use std::rc::Rc;

pub const TABLE: Name = c"scope";
pub const BY_SCOPE: Name = c"scope_pkey";
const DEFAULT_MAX_ATTEMPTS: i32 = 25;

/// The rows of scopes; None: a scope without a row.
static STORED: Recalled<Option<KeptRow>> = Recalled::new(TABLE);

/// The options in force for one scope.
pub struct ScopeOptions {
    pub lease_us: i64,
    pub ttl_us: i64,
    pub gone_for_us: i64,
    pub max_lease_life_us: i64,
    retry_after_us: i64,
    pub park_on_expiry: bool,
    /// None: no limit.
    pub max_attempts: Option<i32>,
    pub keep_request: bool,
    recovery_points: Option<Datum>,
    /// Keeps the memory of `recovery_points` valid.
    _row: Option<Rc<Option<KeptRow>>>,
}

impl ScopeOptions {
    /// Reads the options and refuses a caller who is not a member of the scope's owner.
    pub fn for_caller(scope: &[u8]) -> Result<ScopeOptions> {
        let stored = stored(scope)?;
        if let Some(row) = stored.as_ref()
            && let Some(owner) = Owner::stored(row.column(11), row.column(12), row.column(13))?
        {
            owner.ensure_member("scope", scope)?;
        }
        Ok(ScopeOptions::read(stored))
    }

    /// The options without a check of the owner. The metrics count the keys of every scope, whoever owns it.
    pub fn for_watching(scope: &[u8]) -> Result<ScopeOptions> {
        Ok(ScopeOptions::read(stored(scope)?))
    }

    fn read(stored: Rc<Option<KeptRow>>) -> ScopeOptions {
        let defaults = ScopeOptions::defaults();
        let Some(row) = stored.as_ref() else {
            return defaults;
        };
        let us = |column| row.column(column).map(|d| d.value() as i64);
        ScopeOptions {
            lease_us: us(2).unwrap_or(defaults.lease_us),
            ttl_us: us(3).unwrap_or(defaults.ttl_us),
            gone_for_us: us(4).unwrap_or(defaults.gone_for_us),
            max_lease_life_us: us(5).unwrap_or(defaults.max_lease_life_us),
            retry_after_us: us(6).unwrap_or(defaults.retry_after_us),
            park_on_expiry: row.column(7).is_some_and(|d| varlena(d) == b"park"),
            max_attempts: match row.column(8).map(|d| d.value() as i32) {
                None => defaults.max_attempts,
                Some(0) => None,
                Some(most) => Some(most),
            },
            keep_request: row.column(9).is_some_and(|d| d.value() != 0),
            recovery_points: row.column(10),
            _row: Some(Rc::clone(&stored)),
        }
    }

    fn defaults() -> ScopeOptions {
        ScopeOptions {
            lease_us: settings::key_lease_us(),
            ttl_us: settings::key_ttl_us(),
            gone_for_us: DAY_US,
            max_lease_life_us: DAY_US,
            retry_after_us: settings::retry_after_us(),
            park_on_expiry: false,
            max_attempts: Some(DEFAULT_MAX_ATTEMPTS),
            keep_request: false,
            recovery_points: None,
            _row: None,
        }
    }

    /// The lease of a claim: the lease that the call asks for, or the scope's, but never longer than max_lease_life.
    pub fn granted_lease(&self, asked: Option<i64>) -> i64 {
        asked.unwrap_or(self.lease_us).min(self.max_lease_life_us)
    }

    /// How long to wait before the next claim if this much of the lease is left.
    pub fn retry_after(&self, lease_left_us: i64) -> i64 {
        settings::retry_within(lease_left_us, self.retry_after_us)
    }

    /// Whether the key is past ttl and gone_for: then it counts as new, whether or not a sweep has deleted it.
    pub fn is_over(&self, row: &KeyRow, now: i64) -> bool {
        row.status().finished() && now >= row.expires_at().saturating_add(self.gone_for_us)
    }

    /// The declared recovery points in order; None: any.
    pub fn recovery_points(&self) -> Option<Vec<&[u8]>> {
        self.recovery_points.map(texts)
    }
}

/// Whether the name is reserved: every key begins at `started`, and a key at the point `finished` would look finished.
pub fn is_no_point(point: &[u8]) -> bool {
    [STARTED, b"finished"].contains(&point)
}

fn stored(scope: &[u8]) -> Result<Rc<Option<KeptRow>>> {
    STORED.get(scope, || {
        let table = Table::to_read(TABLE)?;
        let key = &mut [ScanKey::text(1, row::text(scope))];
        let found = table.find(BY_SCOPE, key, &Snapshot::latest())?;
        Ok(found.as_ref().map(KeptRow::of))
    })
}

// Inserts or locks the row, so that its owner cannot change until this transaction ends.
const LOCK: &std::ffi::CStr = c"
    INSERT INTO once.scope AS s (scope) VALUES ($1)
    ON CONFLICT (scope) DO UPDATE SET scope = excluded.scope";

// Durations are in microseconds, so that Rust and the sweeps count days and months the same way.
const SET: &std::ffi::CStr = c"
    UPDATE once.scope SET
        lease_us          = CASE WHEN $2 ? 'lease' THEN $4 ELSE lease_us END,
        ttl_us            = CASE WHEN $2 ? 'ttl' THEN $5 ELSE ttl_us END,
        gone_for_us       = CASE WHEN $2 ? 'gone_for' THEN $6 ELSE gone_for_us END,
        max_lease_life_us = CASE WHEN $2 ? 'max_lease_life' THEN $7 ELSE max_lease_life_us END,
        retry_after_us    = CASE WHEN $2 ? 'retry_after' THEN $9 ELSE retry_after_us END,
        on_expiry         = CASE WHEN $2 ? 'on_expiry' THEN $2 ->> 'on_expiry' ELSE on_expiry END,
        max_attempts      = CASE WHEN NOT $2 ? 'max_attempts' THEN max_attempts
                                 ELSE COALESCE(($2 ->> 'max_attempts')::integer, 0) END,
        keep_request      = CASE WHEN $2 ? 'keep_request' THEN ($2 ->> 'keep_request')::boolean
                                 ELSE keep_request END,
        recovery_points   = CASE WHEN NOT $2 ? 'recovery_points' THEN recovery_points
                                 WHEN pg_catalog.jsonb_typeof($2 -> 'recovery_points') = 'array' THEN ARRAY(
                                     SELECT e.value
                                       FROM pg_catalog.jsonb_array_elements_text($2 -> 'recovery_points')
                                            WITH ORDINALITY e(value, n)
                                      ORDER BY e.n) END,
        owner             = CASE WHEN $2 ? 'owner' THEN $3 ELSE owner END,
        owner_name        = CASE WHEN $2 ? 'owner' THEN (SELECT r.rolname FROM pg_catalog.pg_roles r
                                                          WHERE r.oid = $3) ELSE owner_name END,
        owner_incarnation = CASE WHEN $2 ? 'owner' THEN $8 ELSE owner_incarnation END
     WHERE scope = $1";

const GET: &std::ffi::CStr = c"
    SELECT pg_catalog.jsonb_build_object(
        'lease', COALESCE(s.lease_us, $2) * interval '1 microsecond',
        'ttl', COALESCE(s.ttl_us, $3) * interval '1 microsecond',
        'gone_for', COALESCE(s.gone_for_us, $4) * interval '1 microsecond',
        'max_lease_life', COALESCE(s.max_lease_life_us, $5) * interval '1 microsecond',
        'retry_after', COALESCE(s.retry_after_us, $7) * interval '1 microsecond',
        'on_expiry', COALESCE(s.on_expiry, 'resume'),
        'max_attempts', NULLIF(COALESCE(s.max_attempts, 25), 0),
        'keep_request', COALESCE(s.keep_request, false),
        'recovery_points', s.recovery_points,
        'owner', COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r
                            WHERE r.oid = s.owner AND s.owner_incarnation = $6), s.owner_name)::text)::pg_catalog.json
      FROM (SELECT $1 AS scope) asked LEFT JOIN once.scope s ON s.scope = asked.scope";

// Ends the deferral of keys that key_take_abandoned has deferred under the old options (take.rs).
const OFFER: &std::ffi::CStr = c"
    UPDATE once.key SET look_at = lease_until
     WHERE id = ANY (ARRAY(
        SELECT k.id FROM once.key k
         WHERE k.scope = $1 AND k.look_lane = '1' AND k.look_at > $2 AND k.look_at < 'infinity'
           AND k.lease_until <= $2 AND k.status IN ('r', 'l')
           FOR NO KEY UPDATE SKIP LOCKED))";

static OFFERED: Kept = Kept::new(OFFER, &[TEXTOID, TIMESTAMPTZOID]);
static LOCKED: Kept = Kept::new(LOCK, &[TEXTOID]);
static SET_ALL: Kept = Kept::new(
    SET,
    &[
        TEXTOID, JSONBOID, OIDOID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID,
    ],
);
static GET_ALL: Kept = Kept::new(
    GET,
    &[
        TEXTOID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID,
    ],
);

/// The values of a change, except values that SQL reads from the JSON.
#[derive(Default)]
struct ScopeChange {
    owner: Option<Datum>,
    lease_us: Option<i64>,
    ttl_us: Option<i64>,
    gone_for_us: Option<i64>,
    max_lease_life_us: Option<i64>,
    retry_after_us: Option<i64>,
}

/// `once.scope_set`.
pub fn scope_set(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let options = Given::of(call, 1, OPTIONS_HINT)?;
    ScopeOptions::for_caller(scope)?;
    let mut given = ScopeChange::default();
    for option in &options.members {
        read_option(option, &mut given)?;
    }
    if let Some(role) = given.owner {
        Owner::Role(role).ensure_member("scope", scope)?;
    }
    table::ensure_writable(TABLE)?;
    caller::follow_renames()?;
    let name = row::text(scope);
    spi::query(&LOCKED, &[Some(name)])?;
    ScopeOptions::for_caller(scope)?;
    let us = |value: Option<i64>| value.map(Datum::from);
    spi::query(
        &SET_ALL,
        &[
            Some(name),
            Some(options.jsonb),
            given.owner,
            us(given.lease_us),
            us(given.ttl_us),
            us(given.gone_for_us),
            us(given.max_lease_life_us),
            Some(Datum::from(incarnation::present()?)),
            us(given.retry_after_us),
        ],
    )?;
    table::tell_all(&[TABLE])?;
    let parks = |member: &Member| matches!(member.name, b"on_expiry" | b"max_attempts");
    if options.members.iter().any(parks) {
        spi::query_latest(&OFFERED, &[Some(name), Some(Datum::from(clock::now_us()?))])?;
    }
    all_options(scope)
}

/// `once.scope_get`.
pub fn scope_get(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    ScopeOptions::for_caller(scope)?;
    all_options(scope)
}

pub fn all_options(scope: &[u8]) -> Result<Datum> {
    let rows = spi::query(
        &GET_ALL,
        &[
            Some(row::text(scope)),
            Some(Datum::from(settings::key_lease_us())),
            Some(Datum::from(settings::key_ttl_us())),
            Some(Datum::from(DAY_US)),
            Some(Datum::from(DAY_US)),
            Some(Datum::from(incarnation::present()?)),
            Some(Datum::from(settings::retry_after_us())),
        ],
    )?;
    spi::first(&rows).ok_or_else(|| Error::internal("a scope without options"))
}

/// Checks one option, and stores its value in `given`, except values that the SQL statement reads itself.
fn read_option(option: &Member, given: &mut ScopeChange) -> Result<()> {
    match option.name {
        b"lease" => given.lease_us = option.duration(1)?,
        b"ttl" => given.ttl_us = option.duration(1)?,
        b"max_lease_life" => given.max_lease_life_us = option.duration(1)?,
        b"retry_after" => given.retry_after_us = option.duration(1)?,
        b"gone_for" => given.gone_for_us = option.duration(0)?,
        b"owner" => given.owner = option.role()?,
        b"on_expiry" => option.word(["resume", "park"])?,
        b"max_attempts" => option.count(i32::MAX).map(drop)?,
        b"keep_request" => option.boolean()?,
        b"recovery_points" => {
            let points = option.texts(record::POINT_MAX)?.unwrap_or_default();
            if points.is_empty() && !option.is_null() {
                return Err(option.bad("must not be empty (null: any point)"));
            }
            if points.into_iter().any(is_no_point) {
                return Err(option.bad("must not name \"started\" or \"finished\""));
            }
        }
        _ => return Err(option.unknown()),
    }
    Ok(())
}

const OPTIONS_HINT: &str = "Options: lease, ttl, gone_for, max_lease_life, retry_after, on_expiry, max_attempts, \
                            keep_request, recovery_points, owner.";
