//! Reads the arguments of one SQL call; a value that is not toasted is not copied. An error names the argument.

use crate::clock;
use crate::error::{Error, Result};
use pgrx::pg_sys::{self, Datum};
use std::borrow::Cow;

/// The name of a scope, machine, step, requester, topic, subscriber or status has at most this many characters.
pub const SCOPE_MAX: usize = 100;
/// A key, order_key, dedupe_key, message_id or saga has at most this many characters.
pub const KEY_MAX: usize = 255;
/// A holder has at most this many characters.
pub const HOLDER_MAX: usize = 200;
/// A stored free text (an error, a reason) has at most this many characters.
pub const TEXT_MAX: usize = 10_000;

/// One call in progress. Its slices live as long as the call.
#[derive(Clone, Copy)]
pub struct Call {
    fcinfo: pg_sys::FunctionCallInfo,
}

impl Call {
    /// SAFETY: the server passed this `fcinfo` to the function that is running now.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Call {
        Call { fcinfo }
    }

    /// The server's FunctionCallInfo, for functions that return a set, and for triggers.
    pub fn fcinfo(&self) -> pg_sys::FunctionCallInfo {
        self.fcinfo
    }

    /// Whether the procedure must not commit: it was called in a transaction block or by a function.
    pub fn is_atomic(&self) -> bool {
        // SAFETY: the context of a running call is null or a node; CALL passes a CallContext.
        unsafe {
            let context = (*self.fcinfo).context;
            context.is_null()
                || (*context).type_ != pg_sys::NodeTag::T_CallContext
                || (*context.cast::<pg_sys::CallContext>()).atomic
        }
    }

    /// Argument `i` (from 0); None for SQL NULL.
    pub fn datum(&self, i: usize) -> Option<Datum> {
        // SAFETY: the server allocated nargs arguments behind fcinfo.
        unsafe {
            let args = (*self.fcinfo).args.as_slice((*self.fcinfo).nargs as usize);
            args.get(i).filter(|a| !a.isnull).map(|a| a.value)
        }
    }

    /// The bytes of a text, json or bytea argument.
    pub fn bytes(&self, i: usize) -> Option<&[u8]> {
        self.datum(i).map(varlena)
    }

    /// Argument `i` as its type prints it, for a function that is declared twice: for text and for "any". None for
    /// SQL NULL.
    pub fn printed(&self, i: usize, name: &str) -> Result<Option<&[u8]>> {
        // SAFETY: flinfo is the running call's. InvalidOid means a call by the protocol's fast path, which has no
        // expression. Its argument is a text, because the fast path cannot pass an "any".
        let of = unsafe { pg_sys::get_fn_expr_argtype((*self.fcinfo).flinfo, i as i32) };
        let value = match self.datum(i) {
            Some(value) if of != pg_sys::TEXTOID && of != pg_sys::InvalidOid => value,
            text => return Ok(text.map(varlena)),
        };
        // SAFETY: the look-ups read the system caches. The output function belongs to the type of `value`.
        unsafe {
            let base = pg_sys::getBaseType(of);
            if pg_sys::get_element_type(base) != pg_sys::InvalidOid || pg_sys::type_is_rowtype(base)
            {
                return Err(Error::bad_argument(
                    name,
                    "must be one value, not an array or a row",
                    "Call once for each row; once.transition_many(machine, ids, to_status) moves several.",
                ));
            }
            let (mut function, mut is_varlena) = (pg_sys::InvalidOid, false);
            pg_sys::getTypeOutputInfo(of, &mut function, &mut is_varlena);
            let printed = pg_sys::OidOutputFunctionCall(function, value);
            Ok(Some(std::ffi::CStr::from_ptr(printed).to_bytes()))
        }
    }

    /// A text of 1 to `max` characters.
    pub fn text(&self, i: usize, name: &str, max: usize) -> Result<&[u8]> {
        match self.opt_text(i, name, max)? {
            Some(text) => Ok(text),
            None => Err(Error::bad_argument(
                name,
                "must not be null",
                format!("Give a text of 1 to {max} characters."),
            )),
        }
    }

    /// NULL, or a text of 1 to `max` characters.
    pub fn opt_text(&self, i: usize, name: &str, max: usize) -> Result<Option<&[u8]>> {
        let Some(text) = self.bytes(i) else {
            return Ok(None);
        };
        if text.is_empty() {
            return Err(Error::bad_argument(
                name,
                "must not be empty",
                format!("Give a text of 1 to {max} characters."),
            ));
        }
        if text.len() > max && characters(text) > max {
            return Err(Error::bad_argument(
                name,
                format!("is longer than {max} characters"),
                "Use a shorter name, or a hash of the long one.",
            ));
        }
        Ok(Some(text))
    }

    /// NULL, or a free text, cut to TEXT_MAX characters.
    pub fn note(&self, i: usize) -> Option<&[u8]> {
        self.bytes(i).map(|t| clipped(t, TEXT_MAX))
    }

    pub fn i64(&self, i: usize, name: &str) -> Result<i64> {
        self.datum(i)
            .map(|d| d.value() as i64)
            .ok_or_else(|| not_null(name, "Give a whole number."))
    }

    pub fn i32(&self, i: usize, name: &str) -> Result<i32> {
        self.datum(i)
            .map(|d| d.value() as i32)
            .ok_or_else(|| not_null(name, "Give a whole number."))
    }

    /// A number of rows between 1 and `most`.
    pub fn limit(&self, i: usize, name: &str, most: i32) -> Result<i32> {
        let n = self.i32(i, name)?;
        if n < 1 || n > most {
            return Err(Error::bad_argument(
                name,
                format!("must be between 1 and {most}, not {n}"),
                "Call again for more; every call is bounded.",
            ));
        }
        Ok(n)
    }

    /// NULL, or a bigint[] without NULLs.
    pub fn opt_i64s(&self, i: usize, name: &str) -> Result<Option<Vec<i64>>> {
        let read = |d| i64s(d).ok_or_else(|| not_null(name, "Every element is a whole number."));
        self.datum(i).map(read).transpose()
    }

    /// NULL, or a positive finite interval in microseconds.
    pub fn interval(&self, i: usize, name: &str) -> Result<Option<i64>> {
        match self.datum(i) {
            None => Ok(None),
            Some(d) => clock::positive_us(d).map(Some).map_err(|problem| {
                Error::bad_argument(name, problem, "Give an interval such as '30 seconds'.")
            }),
        }
    }

    /// Marks the result as SQL NULL.
    pub fn return_null(&self) -> Datum {
        // SAFETY: fcinfo is the running call's.
        unsafe { (*self.fcinfo).isnull = true };
        Datum::from(0)
    }
}

fn not_null(name: &str, hint: &str) -> Error {
    Error::bad_argument(name, "must not be null", hint)
}

/// The payload of a varlena datum, detoasted where it has to be.
pub fn varlena<'a>(datum: Datum) -> &'a [u8] {
    // SAFETY: the datum is a non-null varlena. The value and its detoasted copy live until the call ends; a value in a
    // slot lives as long as the slot. A plain value is read in place.
    unsafe {
        let stored: *mut pg_sys::varlena = datum.cast_mut_ptr();
        let plain = match pgrx::varlena::varatt_is_4b_u(stored)
            || (pgrx::varlena::varatt_is_1b(stored) && !pgrx::varlena::varatt_is_1b_e(stored))
        {
            true => stored,
            false => pg_sys::pg_detoast_datum_packed(stored),
        };
        pgrx::varlena_to_byte_slice(plain)
    }
}

/// The uncompressed size of a varlena datum, with its header. Does not detoast the datum.
pub fn varlena_size(datum: Datum) -> usize {
    // SAFETY: the datum is a non-null varlena.
    unsafe { pg_sys::toast_raw_datum_size(datum) }
}

/// The elements of a text[]; NULLs are dropped.
pub fn texts<'a>(array: Datum) -> Vec<&'a [u8]> {
    texts_or_null(array).into_iter().flatten().collect()
}

/// The elements of a text[].
pub fn texts_or_null<'a>(array: Datum) -> Vec<Option<&'a [u8]>> {
    let elements = elements(array, pg_sys::TEXTOID).into_iter();
    elements.map(|element| element.map(varlena)).collect()
}

/// The elements of a bigint[]; None if an element is NULL.
pub fn i64s(array: Datum) -> Option<Vec<i64>> {
    of_8_bytes(array, pg_sys::INT8OID)
}

/// The elements of a timestamptz[]; None if an element is NULL.
pub fn times(array: Datum) -> Option<Vec<i64>> {
    of_8_bytes(array, pg_sys::TIMESTAMPTZOID)
}

fn of_8_bytes(array: Datum, of: pg_sys::Oid) -> Option<Vec<i64>> {
    let elements = elements(array, of).into_iter();
    elements.map(|e| e.map(|e| e.value() as i64)).collect()
}

fn elements(array: Datum, of: pg_sys::Oid) -> Vec<Option<Datum>> {
    let (mut length, mut by_value, mut align) = (0, false, 0);
    let (mut values, mut nulls) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut count = 0;
    // SAFETY: the datum is an array of that type; the elements are allocated in the current memory context.
    unsafe {
        pg_sys::get_typlenbyvalalign(of, &mut length, &mut by_value, &mut align);
        pg_sys::deconstruct_array(
            pg_sys::pg_detoast_datum(array.cast_mut_ptr()).cast(),
            of,
            length.into(),
            by_value,
            align,
            &mut values,
            &mut nulls,
            &mut count,
        );
        let value = |i| (!*nulls.add(i)).then(|| *values.add(i));
        (0..count as usize).map(value).collect()
    }
}

/// The number of characters of a text in the database's encoding.
pub fn characters(text: &[u8]) -> usize {
    // SAFETY: reads `len` bytes of a live buffer.
    unsafe { pg_sys::pg_mbstrlen_with_len(text.as_ptr().cast(), text.len() as i32) as usize }
}

/// A text of this database in UTF-8; in a SQL_ASCII database its bytes unchanged. Hashes of the result stay the
/// same after a restore into a database of another encoding.
pub fn utf8(text: &[u8]) -> Cow<'_, [u8]> {
    match to_utf8() {
        Some(convert) => convert(text),
        None => Cow::Borrowed(text),
    }
}

/// A conversion of a text of this database to UTF-8.
pub type ToUtf8 = fn(&[u8]) -> Cow<'_, [u8]>;

/// The conversion of [`utf8`]; None where the bytes stay as they are.
pub fn to_utf8() -> Option<ToUtf8> {
    // SAFETY: reads a variable of this backend.
    let encoding = unsafe { pg_sys::GetDatabaseEncoding() };
    let as_is = [
        pg_sys::pg_enc::PG_UTF8 as i32,
        pg_sys::pg_enc::PG_SQL_ASCII as i32,
    ];
    (!as_is.contains(&encoding)).then_some(converted)
}

fn converted(text: &[u8]) -> Cow<'_, [u8]> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    // SAFETY: reads `len` bytes of a live buffer. The text is not ASCII. The database's encoding is neither UTF-8 nor
    // SQL_ASCII, because `to_utf8` excludes both. So pg_server_to_any returns a new string that ends with NUL.
    unsafe {
        let utf8 = pg_sys::pg_enc::PG_UTF8 as i32;
        let new = pg_sys::pg_server_to_any(text.as_ptr().cast(), text.len() as i32, utf8);
        Cow::Owned(std::ffi::CStr::from_ptr(new).to_bytes().to_vec())
    }
}

/// Converts UTF-8 to this database's encoding.
pub fn from_utf8(text: &str) -> Cow<'_, [u8]> {
    if text.is_ascii() || to_utf8().is_none() {
        return Cow::Borrowed(text.as_bytes());
    }
    // SAFETY: reads `len` bytes of a live buffer and returns a new string that ends with NUL; raises for a character
    // that this encoding lacks.
    unsafe {
        let utf8 = pg_sys::pg_enc::PG_UTF8 as i32;
        let copy = pg_sys::pnstrdup(text.as_ptr().cast(), text.len());
        let new = pg_sys::pg_any_to_server(copy, text.len() as i32, utf8);
        Cow::Owned(std::ffi::CStr::from_ptr(new).to_bytes().to_vec())
    }
}

/// A text of this database as errors show it.
pub fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&utf8(text)).into_owned()
}

/// At most `max` characters of a text, cut at a character's end.
fn clipped(text: &[u8], max: usize) -> &[u8] {
    if text.len() <= max {
        return text;
    }
    // SAFETY: reads `len` bytes of a live buffer and returns a length within it.
    let len = unsafe {
        pg_sys::pg_mbcharcliplen(text.as_ptr().cast(), text.len() as i32, max as i32) as usize
    };
    &text[..len.min(text.len())]
}
