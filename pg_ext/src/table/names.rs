//! The oids of the extension's relations by name, cached per backend.
//!
//! DROP and CREATE EXTENSION give new oids, so a relcache message about one of these relations (or about all) empties
//! the cache.

use super::{Name, Watch};
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

static OURS: Watch = Watch::new();

thread_local! {
    static KNOWN: RefCell<Vec<(Name, pg_sys::Oid)>> = const { RefCell::new(Vec::new()) };
    static KNOWN_AT: Cell<u64> = const { Cell::new(0) };
}

/// The oid of a table, index or sequence of the extension.
pub fn oid_of(name: Name) -> Result<pg_sys::Oid> {
    if KNOWN_AT.replace(OURS.count()) != OURS.count() {
        KNOWN.with(|k| k.borrow_mut().clear());
    }
    let same = |known: &&(Name, _)| std::ptr::eq(known.0, name);
    if let Some(known) = KNOWN.with_borrow(|all| all.iter().find(same).copied()) {
        return Ok(known.1);
    }
    // SAFETY: both calls look up a C string in the system caches.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(c"once".as_ptr(), true);
        match schema {
            pg_sys::InvalidOid => pg_sys::InvalidOid,
            schema => pg_sys::get_relname_relid(name.as_ptr(), schema),
        }
    };
    if oid == pg_sys::InvalidOid {
        return Err(missing(name));
    }
    OURS.add([oid]);
    KNOWN.with(|k| k.borrow_mut().push((name, oid)));
    Ok(oid)
}

/// The owner of once.key, taken as the owner of all tables of the extension. Reads only the catalog, so a lock on
/// once.key does not block the call.
pub fn key_table_owner() -> Result<pg_sys::Oid> {
    let table = oid_of(c"key")?;
    // SAFETY: looks into the system cache; the tuple is a row of pg_class until it is released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::RELOID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, table.into());
        if tuple.is_null() {
            return Err(missing(c"key"));
        }
        let form: *const pg_sys::FormData_pg_class = pg_sys::GETSTRUCT(tuple).cast();
        let owner = (*form).relowner;
        pg_sys::ReleaseSysCache(tuple);
        Ok(owner)
    }
}

fn missing(name: Name) -> Error {
    Error::new(
        Kind::NotInstalled,
        format!("relation once.{} is missing", name.to_string_lossy()),
    )
    .hint("Run CREATE EXTENSION pg_once, or restore all of the extension's tables from the dump.")
}
