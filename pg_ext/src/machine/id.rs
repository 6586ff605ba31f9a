//! A row's id: reads an argument's text as a value of the id column's type, makes the id's canonical text and,
//! from this text, the row's key in our tables.

use crate::call::shown;
use crate::digest::first_16;
use crate::error::{Error, Result};
use crate::row;
use pgrx::pg_sys::{self, Datum, Oid};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};

/// An id; the value is of type [`parameter_type`].
#[derive(Clone)]
pub struct RowId {
    pub value: Datum,
    /// Canonical, in the database's encoding.
    pub text: Vec<u8>,
}

/// The type of a statement's parameter for an id; `base` is the base type of the id's column.
pub fn parameter_type(base: Oid) -> Oid {
    match base {
        pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID | pg_sys::UUIDOID => base,
        _ => pg_sys::TEXTOID,
    }
}

/// Whether an id may be of this type, or of a domain over it.
pub fn is_usable(base: Oid) -> bool {
    parameter_type(base) == base || base == pg_sys::VARCHAROID
}

impl RowId {
    /// Reads an id from `text`, the value of the argument called `name`.
    pub fn read(base: Oid, text: &[u8], name: &str) -> Result<RowId> {
        match base {
            pg_sys::INT2OID => integer(text, name, "a smallint", i16::MIN.into(), i16::MAX.into()),
            pg_sys::INT4OID => integer(text, name, "an integer", i32::MIN.into(), i32::MAX.into()),
            pg_sys::INT8OID => integer(text, name, "a bigint", i64::MIN, i64::MAX),
            pg_sys::UUIDOID => uuid(text, name),
            _ => Ok(RowId {
                value: row::text(text),
                text: text.to_vec(),
            }),
        }
    }

    /// For errors; only the beginning of a long id.
    pub fn shown(&self) -> String {
        beginning(&self.text)
    }

    /// The key of this row in our tables: the first 16 bytes of SHA-256(machine's name, 0x00, row id), both in UTF-8.
    pub fn key(&self, machine: &str) -> [u8; 16] {
        let digest = Sha256::new()
            .chain_update(machine)
            .chain_update([0])
            .chain_update(crate::call::utf8(&self.text))
            .finalize();
        first_16(&digest)
    }
}

fn integer(text: &[u8], name: &str, what: &str, least: i64, most: i64) -> Result<RowId> {
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|t| t.trim().parse::<i64>().ok())
        .filter(|n| (least..=most).contains(n))
        .ok_or_else(|| not_an_id(text, name, what))?;
    Ok(RowId {
        value: Datum::from(number),
        text: number.to_string().into_bytes(),
    })
}

fn uuid(text: &[u8], name: &str) -> Result<RowId> {
    let read = CString::new(text).ok().and_then(|text| {
        pgrx::PgTryBuilder::new(|| {
            // SAFETY: the input function of uuid takes a C string and only computes, so its error leaves nothing
            // behind.
            unsafe {
                let args = [Some(Datum::from(text.as_ptr()))];
                pgrx::direct_function_call_as_datum(pg_sys::uuid_in, &args)
            }
        })
        .catch_others(|_| None)
        .execute()
    });
    let value = read.ok_or_else(|| not_an_id(text, name, "a uuid"))?;
    // SAFETY: the output function of uuid makes a C string from the value that its input function made.
    let text = unsafe {
        pgrx::direct_function_call_as_datum(pg_sys::uuid_out, &[Some(value)])
            .map(|d| CStr::from_ptr(d.cast_mut_ptr()).to_bytes().to_vec())
    };
    Ok(RowId {
        value,
        text: text.unwrap_or_default(),
    })
}

fn not_an_id(text: &[u8], name: &str, what: &str) -> Error {
    Error::bad_argument(
        name,
        format!("is not {what}: \"{}\"", beginning(text)),
        "Give the id of a row of the machine's table.",
    )
}

/// The part of an id that an error shows.
fn beginning(text: &[u8]) -> String {
    match text.len() > 400 {
        false => shown(text),
        true => {
            let start: String = shown(&text[..400]).chars().take(100).collect();
            format!("{start}...")
        }
    }
}
