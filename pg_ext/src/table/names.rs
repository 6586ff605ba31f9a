//! The oids of our tables and indexes by name, cached per backend.
//!
//! A backend is one thread, so a `thread_local` is enough. DROP and CREATE EXTENSION give new oids: a relcache message about
//! one of ours (or about every relation) empties the cache.

use super::Name;
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys;
use std::cell::{Cell, RefCell};

thread_local! {
    static KNOWN: RefCell<Vec<(Name, pg_sys::Oid)>> = const { RefCell::new(Vec::new()) };
    static STALE: Cell<bool> = const { Cell::new(false) };
    static WATCHING: Cell<bool> = const { Cell::new(false) };
}

/// The server calls this for every relation that changes; it only sets a flag.
#[pgrx::pg_guard]
extern "C-unwind" fn relation_changed(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    let ours = |known: &Vec<(Name, pg_sys::Oid)>| known.iter().any(|(_, oid)| *oid == relation);
    if relation == pg_sys::InvalidOid || KNOWN.with(|k| k.try_borrow().is_ok_and(|k| ours(&k))) {
        STALE.set(true);
    }
}

fn watch() {
    if !WATCHING.replace(true) {
        // SAFETY: registered once per backend; the callback lives as long as the library.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), pg_sys::Datum::from(0));
        }
    }
}

/// The oid of a table or index of the extension.
pub fn oid_of(name: Name) -> Result<pg_sys::Oid> {
    if STALE.replace(false) {
        KNOWN.with(|k| k.borrow_mut().clear());
    }
    let known = KNOWN.with(|k| {
        k.borrow()
            .iter()
            .find(|(n, _)| std::ptr::eq(*n, name) || *n == name)
            .map(|(_, oid)| *oid)
    });
    if let Some(oid) = known {
        return Ok(oid);
    }
    watch();
    // SAFETY: both look up a C string in the system caches.
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
    KNOWN.with(|k| k.borrow_mut().push((name, oid)));
    Ok(oid)
}

/// The role that owns the extension's tables. Reads the catalog alone, so that a lock on one of these tables does not block
/// statements on others.
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
    .hint("CREATE EXTENSION pg_once; in this database, or restore it whole.")
}
