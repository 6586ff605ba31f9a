//! The incarnation of the database: a number that a restore changes. A stored transaction id or role OID is valid
//! only in the incarnation that wrote it, so the incarnation is stored beside it.
//!
//! The incarnation is made of the system identifier and a random number in the body of `once.incarnation()`. No table
//! stores the random number, so a restored dump gets a new one, and a publication does not copy it. A physical copy and
//! a copy by TEMPLATE keep the incarnation. pg_upgrade keeps only the random number, so it begins a new incarnation.

use crate::call::{Call, varlena};
use crate::error::{Error, Kind, Result};
use crate::spi;
use crate::table;
use pgrx::pg_sys::{self, Datum};

const BODY: &[u8] = b"SELECT ";

/// The present incarnation.
pub fn present() -> Result<i64> {
    let number = || {
        let body = stored_body()?;
        let digits = body.strip_prefix(BODY)?;
        std::str::from_utf8(digits).ok()?.parse::<i64>().ok()
    };
    let number = number().ok_or_else(|| {
        Error::new(
            Kind::NotInstalled,
            "function once.incarnation() is not as pg_once made it",
        )
        .hint("SELECT once.incarnation_renew(); as the extension's owner.")
    })?;
    // SAFETY: reads the control file's copy in memory.
    Ok(number ^ unsafe { pg_sys::GetSystemIdentifier() as i64 })
}

/// The source of `once.incarnation()`, from the system cache.
fn stored_body() -> Option<Vec<u8>> {
    // SAFETY: looks names up in the system caches; the tuple lives until it is released, the body is copied.
    unsafe {
        let schema = pg_sys::get_namespace_oid(c"once".as_ptr(), true);
        let cache = pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP as i32;
        let none = pg_sys::buildoidvector(std::ptr::null(), 0);
        let name = Datum::from(c"incarnation".as_ptr());
        let tuple = pg_sys::SearchSysCache3(cache, name, Datum::from(none), schema.into());
        if tuple.is_null() {
            return None;
        }
        let mut is_null = true;
        let column = pg_sys::Anum_pg_proc_prosrc as i16;
        let body = pg_sys::SysCacheGetAttr(cache, tuple, column, &mut is_null);
        let body = (!is_null).then(|| varlena(body).to_vec());
        pg_sys::ReleaseSysCache(tuple);
        body
    }
}

/// `once.incarnation_renew`.
pub fn incarnation_renew(call: &Call) -> Result<Datum> {
    table::ensure_writable(c"key")?;
    let mut number = [0u8; 8];
    // SAFETY: fills the eight bytes.
    if !unsafe { pg_sys::pg_strong_random(number.as_mut_ptr().cast(), number.len()) } {
        return Err(Error::internal("the server has no random numbers"));
    }
    // Not negative, so that the body is digits only.
    let number = i64::from_ne_bytes(number) & i64::MAX;
    spi::run(
        format!(
            "CREATE OR REPLACE FUNCTION once.incarnation() RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS 'SELECT {number}'"
        )
        .as_bytes(),
    )?;
    // The present series of events depends on the incarnation. CREATE EXTENSION calls this before once.series exists.
    table::tell_all(&[c"series"]).ok();
    Ok(call.return_null())
}
