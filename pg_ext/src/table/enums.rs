//! Values of an enum by their labels, in the database's encoding.

use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::{CStr, CString};

pub fn is_enum(type_oid: Oid) -> bool {
    // SAFETY: looks into the system cache.
    unsafe { pg_sys::get_typtype(type_oid) as u8 == pg_sys::TYPTYPE_ENUM }
}

/// The label of a value.
pub fn label(value: Datum) -> Vec<u8> {
    // SAFETY: the value was read from a column of an enum type; the server's function makes a new string of it.
    unsafe {
        let text = call(pg_sys::enum_out, value, pg_sys::InvalidOid);
        CStr::from_ptr(text.cast_mut_ptr()).to_bytes().to_vec()
    }
}

/// The value with this label; None: there is none. Raises the server's error for a label that may not be used yet.
pub fn value(of: Oid, label: &[u8]) -> Option<Datum> {
    let label = CString::new(label).ok()?;
    // SAFETY: looks into the system cache, never with a label that is too long; the string outlives the call.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::ENUMTYPOIDNAME as i32;
        let text = Datum::from(label.as_ptr());
        if label.as_bytes().len() >= pg_sys::NAMEDATALEN as usize
            || !pg_sys::SearchSysCacheExists(cache, of.into(), text, Datum::from(0), Datum::from(0))
        {
            return None;
        }
        Some(call(pg_sys::enum_in, text, of))
    }
}

/// Calls enum_out or enum_in.
///
/// # Safety
/// `value` is what `function` takes.
unsafe fn call(
    function: unsafe fn(pg_sys::FunctionCallInfo) -> Datum,
    value: Datum,
    of: Oid,
) -> Datum {
    // SAFETY: as the caller says.
    unsafe {
        let args = [Some(value), Some(of.into())];
        pgrx::fcinfo::direct_function_call_as_datum(function, &args).unwrap_or(Datum::from(0))
    }
}
