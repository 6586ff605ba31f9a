//! Options of a scope: `scope_set`, `scope_get`, and what every other call needs to know of them.
//!
//! A scope needs no declaration; one without a row has the defaults. A scope with an owner is closed to
//! all but the owner's members: every function of a key passes through [`Options::of`], which checks it.

use super::record;
use crate::call::{Call, SCOPE_MAX, varlena};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::settings;
use crate::spi::{self, Kept};
use crate::table::{Name, ScanKey, Slot, Snapshot, Table};
use pgrx::pg_sys::{self, Datum};

const TABLE: Name = c"scope";
const BY_SCOPE: Name = c"scope_pkey";
const DAY_US: i64 = 86_400_000_000;
const MAX_ATTEMPTS: i32 = 25;

/// The options in force for one scope.
pub struct Options {
    pub lease_us: i64,
    pub ttl_us: i64,
    pub gone_for_us: i64,
    pub max_lease_life_us: i64,
    pub park_on_expiry: bool,
    /// None: no limit.
    pub max_attempts: Option<i32>,
    pub keep_request: bool,
    recovery_points: Option<Datum>,
    /// Keeps what `recovery_points` points into.
    _row: Option<Slot>,
}

impl Options {
    /// Reads the options and refuses a caller who is not a member of the scope's owner.
    pub fn of(scope: &[u8]) -> Result<Options> {
        let table = Table::to_read(TABLE)?;
        let key = &mut [ScanKey::text(1, row::text(scope))];
        let Some(row) = table.find(BY_SCOPE, key, &Snapshot::now())? else {
            return Ok(Options::defaults());
        };
        if let Some(owner) = row.column(10) {
            ensure_member(scope, owner)?;
        }
        let us = |column| row.column(column).map(|d| clock::interval_us(d).unwrap_or(0));
        let defaults = Options::defaults();
        Ok(Options {
            lease_us: us(2).unwrap_or(defaults.lease_us),
            ttl_us: us(3).unwrap_or(defaults.ttl_us),
            gone_for_us: us(4).unwrap_or(defaults.gone_for_us),
            max_lease_life_us: us(5).unwrap_or(defaults.max_lease_life_us),
            park_on_expiry: row.column(6).is_some_and(|d| varlena(d) == b"park"),
            max_attempts: match row.column(7).map(|d| d.value() as i32) {
                None => defaults.max_attempts,
                Some(0) => None,
                Some(most) => Some(most),
            },
            keep_request: row.column(8).is_some_and(|d| d.value() != 0),
            recovery_points: row.column(9),
            _row: Some(row),
        })
    }

    fn defaults() -> Options {
        Options {
            lease_us: settings::key_lease_us(),
            ttl_us: settings::key_ttl_us(),
            gone_for_us: DAY_US,
            max_lease_life_us: DAY_US,
            park_on_expiry: false,
            max_attempts: Some(MAX_ATTEMPTS),
            keep_request: false,
            recovery_points: None,
            _row: None,
        }
    }

    /// The lease that a claim gets: what it asks for, at most max_lease_life.
    pub fn granted_lease(&self, asked: Option<i64>) -> i64 {
        asked.unwrap_or(self.lease_us).min(self.max_lease_life_us)
    }

    /// The declared recovery points in order, where the scope has some.
    pub fn recovery_points(&self) -> Option<Vec<&[u8]>> {
        self.recovery_points.map(texts_of)
    }
}

/// The elements of a text[] without NULLs.
fn texts_of<'a>(array: Datum) -> Vec<&'a [u8]> {
    let mut elements: *mut Datum = std::ptr::null_mut();
    let mut count = 0;
    // SAFETY: the datum is a text[]; the elements are allocated in the current memory context.
    unsafe {
        let array = pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast();
        let (typlen, byval, align) = (-1, false, b'i' as std::ffi::c_char);
        let nulls = std::ptr::null_mut();
        pg_sys::deconstruct_array(
            array,
            pg_sys::TEXTOID,
            typlen,
            byval,
            align,
            &mut elements,
            nulls,
            &mut count,
        );
        (0..count as usize).map(|i| varlena(*elements.add(i))).collect()
    }
}

fn ensure_member(scope: &[u8], owner: Datum) -> Result<()> {
    let owner = pg_sys::Oid::from(owner.value() as u32);
    // SAFETY: both read the system caches; an owner that is gone has no members but superusers.
    let member = unsafe { pg_sys::has_privs_of_role(pg_sys::GetUserId(), owner) };
    match member {
        true => Ok(()),
        false => Err(Error::new(
            Kind::NotYours,
            format!("permission denied for scope \"{}\"", String::from_utf8_lossy(scope)),
        )
        .hint("The scope has an owner: GRANT its role to the caller, or use another scope.")),
    }
}

const EACH_OPTION: &std::ffi::CStr = c"
    SELECT o.key, pg_catalog.jsonb_typeof(o.value), o.value #>> '{}'
      FROM pg_catalog.jsonb_each(CASE pg_catalog.jsonb_typeof($1) WHEN 'object' THEN $1 ELSE '{\"\": 0}' END) o";

const ELEMENTS: &std::ffi::CStr = c"
    SELECT pg_catalog.jsonb_typeof(e.value), e.value #>> '{}'
      FROM pg_catalog.jsonb_array_elements($1::jsonb) e";

const ROLE: &std::ffi::CStr = c"SELECT r.oid FROM pg_catalog.pg_roles r WHERE r.rolname = $1";

// Makes the row and locks it; the owner it returns is the one that this change is made under.
const LOCK: &std::ffi::CStr = c"
    INSERT INTO once.scope AS s (scope) VALUES ($1)
    ON CONFLICT (scope) DO UPDATE SET scope = excluded.scope RETURNING s.owner";

const SET: &std::ffi::CStr = c"
    INSERT INTO once.scope AS s (scope, lease, ttl, gone_for, max_lease_life, on_expiry, max_attempts,
                                 keep_request, recovery_points, owner)
    VALUES ($1, ($2 ->> 'lease')::interval, ($2 ->> 'ttl')::interval, ($2 ->> 'gone_for')::interval,
            ($2 ->> 'max_lease_life')::interval, $2 ->> 'on_expiry',
            CASE pg_catalog.jsonb_typeof($2 -> 'max_attempts') WHEN 'null' THEN 0
                 ELSE ($2 ->> 'max_attempts')::integer END,
            ($2 ->> 'keep_request')::boolean,
            CASE pg_catalog.jsonb_typeof($2 -> 'recovery_points') WHEN 'array' THEN ARRAY(
                SELECT e.value
                  FROM pg_catalog.jsonb_array_elements_text($2 -> 'recovery_points')
                       WITH ORDINALITY e(value, n)
                 ORDER BY e.n) END,
            $3)
    ON CONFLICT (scope) DO UPDATE SET
        lease           = CASE WHEN $2 ? 'lease' THEN excluded.lease ELSE s.lease END,
        ttl             = CASE WHEN $2 ? 'ttl' THEN excluded.ttl ELSE s.ttl END,
        gone_for        = CASE WHEN $2 ? 'gone_for' THEN excluded.gone_for ELSE s.gone_for END,
        max_lease_life  = CASE WHEN $2 ? 'max_lease_life' THEN excluded.max_lease_life
                               ELSE s.max_lease_life END,
        on_expiry       = CASE WHEN $2 ? 'on_expiry' THEN excluded.on_expiry ELSE s.on_expiry END,
        max_attempts    = CASE WHEN $2 ? 'max_attempts' THEN excluded.max_attempts ELSE s.max_attempts END,
        keep_request    = CASE WHEN $2 ? 'keep_request' THEN excluded.keep_request ELSE s.keep_request END,
        recovery_points = CASE WHEN $2 ? 'recovery_points' THEN excluded.recovery_points
                               ELSE s.recovery_points END,
        owner           = CASE WHEN $2 ? 'owner' THEN excluded.owner ELSE s.owner END";

// Keys that a take has put aside as parked by the old options are looked at again.
const LOOK_AGAIN: &std::ffi::CStr = c"
    UPDATE once.key SET look_at = $2
     WHERE scope = $1 AND look_at = 'infinity' AND status IN ('r', 'l')";

const GET: &std::ffi::CStr = c"
    SELECT pg_catalog.jsonb_build_object(
        'lease', COALESCE(s.lease, $2), 'ttl', COALESCE(s.ttl, $3),
        'gone_for', COALESCE(s.gone_for, '24:00:00'),
        'max_lease_life', COALESCE(s.max_lease_life, '24:00:00'),
        'on_expiry', COALESCE(s.on_expiry, 'resume'),
        'max_attempts', NULLIF(COALESCE(s.max_attempts, 25), 0),
        'keep_request', COALESCE(s.keep_request, false),
        'recovery_points', s.recovery_points,
        'owner', COALESCE((SELECT r.rolname::text FROM pg_catalog.pg_roles r WHERE r.oid = s.owner),
                          s.owner::oid::text))
      FROM (SELECT $1 AS scope) asked LEFT JOIN once.scope s ON s.scope = asked.scope";

thread_local! {
    static EACH: Kept = const { Kept::new(EACH_OPTION, &[pg_sys::JSONBOID]) };
    static EACH_ELEMENT: Kept = const { Kept::new(ELEMENTS, &[pg_sys::TEXTOID]) };
    static ROLE_OID: Kept = const { Kept::new(ROLE, &[pg_sys::NAMEOID]) };
    static LOCKED: Kept = const { Kept::new(LOCK, &[pg_sys::TEXTOID]) };
    static SET_ALL: Kept =
        const { Kept::new(SET, &[pg_sys::TEXTOID, pg_sys::JSONBOID, pg_sys::REGROLEOID]) };
    static RELOOK: Kept = const { Kept::new(LOOK_AGAIN, &[pg_sys::TEXTOID, pg_sys::TIMESTAMPTZOID]) };
    static GET_ALL: Kept = const {
        Kept::new(GET, &[pg_sys::TEXTOID, pg_sys::INTERVALOID, pg_sys::INTERVALOID])
    };
}

/// `once.scope_set`.
pub fn scope_set(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    let options = call.datum(1).ok_or_else(|| {
        Error::bad_argument("options", "must not be null", "Give a JSON object of options.")
    })?;
    Options::of(scope)?;
    let mut owner = None;
    for option in spi::query(&EACH, &[Some(options)])? {
        if let Some(role) = check_option(&option)? {
            ensure_member(scope, role)?;
            owner = Some(role);
        }
    }
    crate::table::ensure_writable(TABLE)?;
    let name = row::text(scope);
    for present in spi::query(&LOCKED, &[Some(name)])?.iter().flatten().flatten() {
        ensure_member(scope, *present)?;
    }
    spi::query(&SET_ALL, &[Some(name), Some(options), owner])?;
    spi::query(&RELOOK, &[Some(name), Some(Datum::from(clock::now_us()?))])?;
    all_options(scope)
}

/// `once.scope_get`.
pub fn scope_get(call: &Call) -> Result<Datum> {
    let scope = call.text(0, "scope", SCOPE_MAX)?;
    Options::of(scope)?;
    all_options(scope)
}

fn all_options(scope: &[u8]) -> Result<Datum> {
    let rows = spi::query(
        &GET_ALL,
        &[
            Some(row::text(scope)),
            Some(clock::interval_datum(settings::key_lease_us())),
            Some(clock::interval_datum(settings::key_ttl_us())),
        ],
    )?;
    rows.first()
        .and_then(|r| r.first().copied().flatten())
        .ok_or_else(|| Error::new(Kind::Internal, "a scope without options"))
}

/// Checks one option (name, JSON type, value as text); returns the role of an owner.
fn check_option(option: &[Option<Datum>]) -> Result<Option<Datum>> {
    let text = |i: usize| option.get(i).copied().flatten().map(varlena).unwrap_or_default();
    let (name, json_type, value) = (text(0), text(1), text(2));
    let null = json_type == b"null";
    match name {
        b"lease" | b"ttl" | b"max_lease_life" if null => Ok(()),
        b"lease" | b"ttl" | b"max_lease_life" => check_interval(name, value, 1),
        b"gone_for" if null => Ok(()),
        b"gone_for" => check_interval(name, value, 0),
        b"on_expiry" if null || value == b"resume" || value == b"park" => Ok(()),
        b"on_expiry" => Err(bad(name, "must be \"resume\" or \"park\"")),
        b"max_attempts" if null || (json_type == b"number" && is_count(value)) => Ok(()),
        b"max_attempts" => Err(bad(name, "must be a whole number above 0, or null for no limit")),
        b"keep_request" if null || json_type == b"boolean" => Ok(()),
        b"keep_request" => Err(bad(name, "must be true or false")),
        b"recovery_points" if null => Ok(()),
        b"recovery_points" if json_type == b"array" => check_points(value),
        b"recovery_points" => Err(bad(name, "must be an array of texts")),
        b"owner" if null => Ok(()),
        b"owner" if json_type == b"string" => return owner_role(value).map(Some),
        b"owner" => Err(bad(name, "must be the name of a role")),
        b"" => Err(Error::bad_argument("options", "must be a JSON object of options", OPTIONS_HINT)),
        other => Err(Error::bad_argument(
            "options",
            format!("has an unknown option \"{}\"", String::from_utf8_lossy(other)),
            OPTIONS_HINT,
        )),
    }
    .map(|()| None)
}

const OPTIONS_HINT: &str = "Options: lease, ttl, gone_for, max_lease_life, on_expiry, max_attempts, \
                            keep_request, recovery_points, owner.";

fn bad(option: &[u8], problem: &str) -> Error {
    let option = String::from_utf8_lossy(option);
    Error::bad_argument("options", format!("has a bad value: option \"{option}\" {problem}"), OPTIONS_HINT)
}

fn is_count(value: &[u8]) -> bool {
    std::str::from_utf8(value).is_ok_and(|v| v.parse::<i32>().is_ok_and(|n| n > 0))
}

fn check_interval(option: &[u8], value: &[u8], least: i64) -> Result<()> {
    let parsed = parse_interval(value)
        .ok_or_else(|| bad(option, "must be an interval as text, such as \"30 seconds\""))?;
    match clock::interval_us(parsed) {
        Err(problem) => Err(bad(option, problem)),
        Ok(us) if us < least => Err(bad(
            option,
            if least > 0 { "must be positive" } else { "must not be negative" },
        )),
        Ok(_) => Ok(()),
    }
}

fn parse_interval(value: &[u8]) -> Option<Datum> {
    let text = std::ffi::CString::new(value).ok()?;
    pgrx::PgTryBuilder::new(|| {
        // SAFETY: interval_in takes a C string, an unused oid and a typmod, and returns a pointer.
        unsafe {
            pgrx::direct_function_call_as_datum(
                pg_sys::interval_in,
                &[
                    Some(Datum::from(text.as_ptr())),
                    Some(Datum::from(0)),
                    Some(Datum::from(-1i32)),
                ],
            )
        }
    })
    .catch_others(|_| None)
    .execute()
}

fn check_points(array: &[u8]) -> Result<()> {
    let name = b"recovery_points";
    let points = spi::query(&EACH_ELEMENT, &[Some(row::text(array))])?;
    let mut seen: Vec<&[u8]> = Vec::new();
    for point in &points {
        let text = |i: usize| point.get(i).copied().flatten().map(varlena).unwrap_or_default();
        let (json_type, value) = (text(0), text(1));
        if json_type != b"string" || value.is_empty() || value.len() > record::POINT_MAX {
            return Err(bad(name, "must be an array of texts of 1 to 100 characters"));
        }
        if seen.contains(&value) {
            return Err(bad(name, "names a point twice"));
        }
        seen.push(value);
    }
    match points.is_empty() {
        true => Err(bad(name, "must not be empty (null: any point)")),
        false => Ok(()),
    }
}

fn owner_role(name: &[u8]) -> Result<Datum> {
    let missing = || bad(b"owner", "names a role that does not exist");
    if name.is_empty() || name.len() >= pg_sys::NAMEDATALEN as usize {
        return Err(missing());
    }
    let mut padded = [0u8; pg_sys::NAMEDATALEN as usize];
    padded[..name.len()].copy_from_slice(name);
    let rows = spi::query(&ROLE_OID, &[Some(Datum::from(padded.as_ptr()))])?;
    rows.first().and_then(|r| r.first().copied().flatten()).ok_or_else(missing)
}
