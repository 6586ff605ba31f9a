//! Raises an [`Error`] as a PostgreSQL error with its own SQLSTATE; pgrx cannot raise a code outside its enum. No value
//! with a destructor may be alive when `raise` jumps.

use crate::error::Error;
use pgrx::pg_sys;
use std::ffi::{c_char, c_int};

unsafe extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
    fn errdetail_internal(fmt: *const c_char, ...) -> c_int;
    fn errhint(fmt: *const c_char, ...) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

/// Packs a SQLSTATE, six bits a character, as the server's MAKE_SQLSTATE does.
fn packed(sqlstate: &[u8; 5]) -> c_int {
    sqlstate.iter().enumerate().fold(0, |code, (i, c)| {
        code | (((c - b'0') as c_int & 0x3f) << (6 * i))
    })
}

/// Copies a text into server memory, in the database's encoding and with a NUL at its end; a NUL inside ends it early.
fn server_string(text: Option<String>) -> *mut c_char {
    match text {
        None => std::ptr::null_mut(),
        // SAFETY: pnstrdup copies at most len bytes of a live buffer into the current memory context;
        // the conversion returns its argument or another server string.
        Some(t) => unsafe {
            let copy = pg_sys::pnstrdup(t.as_ptr().cast(), t.len());
            match t.is_ascii() {
                true => copy,
                false => {
                    let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
                    pg_sys::pg_any_to_server(copy, t.len() as c_int, utf8)
                }
            }
        },
    }
}

/// Sends a WARNING to the client and the server's log.
pub fn warn(message: String, hint: &str) {
    let message = server_string(Some(message));
    let hint = server_string(Some(hint.to_owned()));
    // SAFETY: as in raise; after a WARNING errfinish returns.
    unsafe {
        if errstart(pgrx::PgLogLevel::WARNING as c_int, std::ptr::null()) {
            errcode(packed(b"01000"));
            errmsg_internal(c"%s".as_ptr(), message);
            errhint(c"%s".as_ptr(), hint);
            errfinish(c"pg_once".as_ptr(), 0, c"warn".as_ptr());
        }
    }
}

pub fn raise(error: Error) -> ! {
    let code = packed(error.kind.sqlstate());
    let message = server_string(Some(error.message));
    let detail = server_string(error.detail);
    let hint = server_string(error.hint);
    // SAFETY: all arguments are NUL-terminated server strings passed through "%s". This frame holds plain data only, so
    // the jump out of errfinish skips no destructor.
    unsafe {
        errstart(pgrx::PgLogLevel::ERROR as c_int, std::ptr::null());
        errcode(code);
        errmsg_internal(c"%s".as_ptr(), message);
        if !detail.is_null() {
            errdetail_internal(c"%s".as_ptr(), detail);
        }
        if !hint.is_null() {
            errhint(c"%s".as_ptr(), hint);
        }
        errfinish(c"pg_once".as_ptr(), 0, c"raise".as_ptr());
    }
    unreachable!("errfinish(ERROR) does not return")
}
