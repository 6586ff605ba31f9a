//! machine_get: a stored definition as somebody would write it, so that it can be given to machine_define
//! again; the tables by their present names, the leases as they were given.

use super::stored::{Col, Stored};
use crate::call::{Call, SCOPE_MAX, from_utf8, shown, varlena};
use crate::caller::Owner;
use crate::error::{Error, Kind, Result};
use crate::row;
use crate::spi::{self, Kept};
use pgrx::pg_sys::{self, Datum};
use serde_json::{Map, Value};
use std::ffi::CStr;

// A table that is gone is its number.
const TABLE_NAME: &CStr = c"
    SELECT COALESCE((SELECT pg_catalog.format('%I.%I', n.nspname, c.relname)
                       FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
                      WHERE c.oid = $1), $1::text)";

// An owner that is gone has the name it had.
const OWNER_NAME: &CStr = c"
    SELECT COALESCE((SELECT r.rolname FROM pg_catalog.pg_roles r WHERE r.oid = $1), $2)::text";

const AS_JSONB: &CStr = c"SELECT $1::pg_catalog.jsonb";

thread_local! {
    static NAME_OF_TABLE: Kept = const { Kept::new(TABLE_NAME, &[pg_sys::OIDOID]) };
    static NAME_OF_OWNER: Kept =
        const { Kept::new(OWNER_NAME, &[pg_sys::OIDOID, pg_sys::NAMEOID]) };
    static JSONB: Kept = const { Kept::new(AS_JSONB, &[pg_sys::TEXTOID]) };
}

/// `once.machine_get`.
pub fn machine_get(call: &Call) -> Result<Datum> {
    let name = call.text(0, "machine", SCOPE_MAX)?;
    let stored = Stored::of(name)?;
    if let Some(owner) = stored.owner()? {
        owner.ensure_member("machine", name)?;
    }
    described(&stored)
}

/// A stored machine as jsonb.
pub fn described(stored: &Stored) -> Result<Datum> {
    let text = as_written(stored)?.to_string();
    let rows = spi::query(&JSONB, &[Some(row::text(&from_utf8(&text)))])?;
    spi::first(&rows).ok_or_else(|| Error::new(Kind::Internal, "a definition without a value"))
}

/// A stored machine as somebody would write it.
pub fn as_written(stored: &Stored) -> Result<Value> {
    let mut json = object(serde_json::to_value(stored.definition()?))?;
    let named = [
        ("table", Col::Relation),
        ("items", Col::Items),
        ("wallet", Col::Wallet),
    ];
    for (member, col) in named {
        let Some(oid) = stored.column(col) else {
            continue;
        };
        let name = one_text(&NAME_OF_TABLE, &[Some(oid)])?;
        match (member, json.get_mut("refund")) {
            ("table", _) => drop(json.insert(member.to_owned(), name)),
            (_, Some(Value::Object(refund))) => drop(refund.insert(member.to_owned(), name)),
            _ => {}
        }
    }
    if let Some(owner) = stored.owner()? {
        let role = match owner {
            Owner::Role(role) => Some(role),
            Owner::Gone => None,
        };
        let name = one_text(&NAME_OF_OWNER, &[role, stored.column(Col::OwnerName)])?;
        json.insert("owner".to_owned(), name);
    }
    for step in json
        .get_mut("steps")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        if let Value::Object(step) = step {
            step.remove("lease_us");
        }
    }
    Ok(Value::Object(json))
}

fn object(json: serde_json::Result<Value>) -> Result<Map<String, Value>> {
    match json {
        Ok(Value::Object(map)) => Ok(map),
        _ => Err(Error::new(Kind::Internal, "a definition is no object")),
    }
}

fn one_text(kept: &'static std::thread::LocalKey<Kept>, args: &[Option<Datum>]) -> Result<Value> {
    let rows = spi::query(kept, args)?;
    let text = spi::first(&rows).map(|d| shown(varlena(d)));
    Ok(text.map_or(Value::Null, Value::String))
}
