//! shard: which part of the routing values this database holds. A shard is a database; the number of shards is fixed.
//!
//! The routing value is the text before the first separator in a key, message id or saga. With `by => 'scope'` it is
//! the text before the first separator in the scope. A claim, message or saga step whose value belongs to another shard
//! is refused with ON007: a request that was sent to the wrong database must not run there a second time. Nothing is
//! checked until `shard_set` was called.

use crate::call::{Call, shown, utf8};
use crate::digest::first_64_bits;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::spi::{self, Kept};
use crate::table::{self, Name, Recalled, Snapshot, Table};
use pgrx::pg_sys::{Datum, INT4OID, TEXTOID};
use sha2::{Digest, Sha256};
use std::ffi::CStr;
use std::rc::Rc;

const TABLE: Name = c"shard";
const MOST_SHARDS: i32 = 65_536;
const SEPARATOR_MAX: usize = 10;

const SET: &CStr = c"
    INSERT INTO once.shard (one, shard, shards, routing, separator) VALUES (true, $1, $2, $3, $4)
        ON CONFLICT (one) DO NOTHING";

const GET: &CStr = c"
    SELECT pg_catalog.json_build_object('shard', s.shard, 'shards', s.shards, 'by', s.routing, 'separator', s.separator)
      FROM once.shard s";

static SET_ONE: Kept = Kept::new(SET, &[INT4OID, INT4OID, TEXTOID, TEXTOID]);
static GET_ONE: Kept = Kept::new(GET, &[]);
static KNOWN: Recalled<Option<Shard>> = Recalled::new(TABLE);

/// The shard that this database is.
#[derive(PartialEq, Eq)]
pub struct Shard {
    shard: i32,
    shards: i32,
    by_scope: bool,
    /// In the database's encoding.
    separator: Vec<u8>,
}

/// `once.shard_of`.
pub fn shard_of(call: &Call) -> Result<Datum> {
    let shards = call.i32(1, "shards")?;
    if !(1..=MOST_SHARDS).contains(&shards) {
        return Err(Error::bad_argument(
            "shards",
            format!("must be from 1 to {MOST_SHARDS}, not {shards}"),
            "Give the number of shards that once.shard_set was called with.",
        ));
    }
    let routing = call.bytes(0).unwrap_or_default();
    Ok(Datum::from(number(routing, shards)))
}

/// The first 6 bytes of SHA-256, big-endian, modulo the number of shards.
fn number(routing: &[u8], shards: i32) -> i32 {
    let first = first_64_bits(&Sha256::digest(utf8(routing))) >> 16;
    (first % u64::from(shards.unsigned_abs().max(1))) as i32
}

/// `once.shard_set`.
pub fn shard_set(call: &Call) -> Result<Datum> {
    let wanted = Shard::of_call(call)?;
    table::ensure_writable(TABLE)?;
    let by: &[u8] = if wanted.by_scope { b"scope" } else { b"key" };
    let args = [
        Some(Datum::from(wanted.shard)),
        Some(Datum::from(wanted.shards)),
        Some(row::text(by)),
        Some(row::text(&wanted.separator)),
    ];
    spi::query(&SET_ONE, &args)?;
    table::tell_all(&[TABLE])?;
    match stored()? {
        Some(present) if present == wanted => shard_get(call),
        Some(present) => Err(Error::new(
            Kind::InUse,
            format!("this database is shard {} of {} already", present.shard, present.shards),
        )
        .hint("shard, shards, by and separator never change once they are set: once.shard_get() shows them. Other shards are other databases.")),
        None => Err(Error::retry_transaction("the shard")),
    }
}

/// `once.shard_get`.
pub fn shard_get(call: &Call) -> Result<Datum> {
    let rows = spi::query_latest(&GET_ONE, &[])?;
    Ok(spi::first(&rows).unwrap_or_else(|| call.return_null()))
}

impl Shard {
    fn of_call(call: &Call) -> Result<Shard> {
        let (shard, shards) = (call.i32(0, "shard")?, call.i32(1, "shards")?);
        let by = call.text(2, "by", 10)?;
        let bad =
            |name: &str, problem: String, hint: &str| Error::bad_argument(name, problem, hint);
        if !(1..=MOST_SHARDS).contains(&shards) {
            let problem = format!("must be from 1 to {MOST_SHARDS}, not {shards}");
            return Err(bad(
                "shards",
                problem,
                "Choose a number from 16 to 64, the same for all databases.",
            ));
        }
        if !(0..shards).contains(&shard) {
            let problem = format!("must be from 0 to {}, not {shard}", shards - 1);
            return Err(bad("shard", problem, "Shards are numbered from 0."));
        }
        if !matches!(by, b"key" | b"scope") {
            let problem = format!("must not be \"{}\"", shown(by));
            return Err(bad("by", problem, "Give key or scope."));
        }
        Ok(Shard {
            shard,
            shards,
            by_scope: by == b"scope",
            separator: call.text(3, "separator", SEPARATOR_MAX)?.to_vec(),
        })
    }

    /// The routing value of a scope and a key, and the shard that it belongs to.
    fn home<'a>(&self, scope: &'a [u8], key: &'a [u8]) -> (&'a [u8], i32) {
        let whole = if self.by_scope { scope } else { key };
        let length = self.separator.len().max(1);
        let end = whole
            .windows(length)
            .position(|part| part == self.separator);
        let routing = &whole[..end.unwrap_or(whole.len())];
        (routing, number(routing, self.shards))
    }
}

/// ON007 if the key, message or saga belongs to another shard.
pub fn ensure_home(scope: &[u8], key: &[u8]) -> Result<()> {
    let known = known()?;
    let Some(shard) = known.as_ref() else {
        return Ok(());
    };
    let (routing, home) = shard.home(scope, key);
    if home == shard.shard {
        return Ok(());
    }
    Err(Error::new(
        Kind::WrongShard,
        format!("\"{}\" belongs to another shard", shown(routing)),
    )
    .detail(format!(
        "This is shard {} of {}, \"{}\" belongs to {home}.",
        shard.shard,
        shard.shards,
        shown(routing)
    ))
    .hint("Compare the application's number of shards and separator with once.shard_get, its hash with once.shard_of, and see which database it is connected to. Nothing was done here."))
}

pub fn is_set() -> Result<bool> {
    Ok(known()?.is_some())
}

fn known() -> Result<Rc<Option<Shard>>> {
    KNOWN.get(b"", stored)
}

fn stored() -> Result<Option<Shard>> {
    let table = Table::to_read(TABLE)?;
    let snapshot = Snapshot::latest();
    let mut scan = table.scan(c"shard_pkey", &mut [], &snapshot)?;
    let shard = scan.advance().map(|slot| {
        let int = |column| slot.column(column).map_or(0, |d: Datum| d.value() as i32);
        let text = |column| {
            slot.column(column)
                .map(crate::call::varlena)
                .unwrap_or_default()
        };
        Shard {
            shard: int(2),
            shards: int(3),
            by_scope: text(4) == b"scope",
            separator: text(5).to_vec(),
        }
    });
    Ok(shard)
}
