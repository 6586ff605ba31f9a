//! Reads a `json` value in place: the members of an object, byte for byte. Also converts it to `jsonb`, which drops
//! spacing and repeated members and compares numbers by value.
//!
//! The server checked the text when it became `json`, so this file only finds the parts. All structural bytes are
//! ASCII, and no server encoding has ASCII bytes inside another character.

use crate::error::{Error, Result};
use crate::row;
use pgrx::pg_sys::{self, Datum};
use std::borrow::Cow;
use std::ffi::{CStr, CString};

/// The members of an object: name (with its quotation marks and escapes) and value.
pub struct Members<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Members<'a> {
    /// None: the value is no object.
    pub fn of(text: &'a [u8]) -> Option<Members<'a>> {
        let mut members = Members { text, at: 0 };
        members.skip_space();
        members.pass(b'{').then_some(members)
    }

    fn present(&self) -> u8 {
        self.text.get(self.at).copied().unwrap_or(b'}')
    }

    fn skip_space(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn pass(&mut self, byte: u8) -> bool {
        let found = self.text.get(self.at) == Some(&byte);
        self.at += usize::from(found);
        found
    }

    /// The next value, without the space around it.
    fn value(&mut self) -> &'a [u8] {
        self.skip_space();
        let from = self.at;
        let mut depth = 0usize;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => self.pass_string(),
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => break,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
        }
        let value = &self.text[from..self.at];
        self.skip_space();
        value
    }

    /// Moves from the opening quotation mark of a string to the closing one.
    fn pass_string(&mut self) {
        self.at += 1;
        while let Some(byte) = self.text.get(self.at) {
            match byte {
                b'"' => return,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        self.skip_space();
        self.pass(b',');
        self.skip_space();
        if self.present() == b'}' {
            return None;
        }
        let name = self.value();
        self.pass(b':');
        Some((name, self.value()))
    }
}

/// The elements of an array; None: the value is no array.
pub fn elements(text: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let mut at = Members { text, at: 0 };
    at.skip_space();
    let is_array = at.pass(b'[');
    let next = move || {
        at.skip_space();
        at.pass(b',');
        at.skip_space();
        (at.text.get(at.at) != Some(&b']')).then(|| at.value())
    };
    is_array.then(|| std::iter::from_fn(next))
}

/// A json text as jsonb, by the server's own input function: of repeated members the last one counts.
pub fn to_jsonb(json: &[u8]) -> Result<Datum> {
    let broken = || Error::internal("a json text that jsonb cannot read");
    let text = CString::new(json).map_err(|_| broken())?;
    // SAFETY: the input function of jsonb takes a C string.
    let jsonb = unsafe {
        pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(Datum::from(text.as_ptr()))])
    };
    jsonb.ok_or_else(broken)
}

/// A jsonb as the server prints it.
pub fn jsonb_text(jsonb: Datum) -> Vec<u8> {
    // SAFETY: the output function of jsonb returns a C string.
    unsafe {
        pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(jsonb)])
            .map(|d| CStr::from_ptr(d.cast_mut_ptr()).to_bytes().to_vec())
            .unwrap_or_default()
    }
}

/// Decodes a JSON string literal. None: the literal is no string, or a text of this database cannot hold the string
/// (NUL, half a surrogate pair, a character that the encoding lacks).
pub fn string(written: &[u8]) -> Option<Cow<'_, [u8]>> {
    let inside = written.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    match inside.contains(&b'\\') {
        false => Some(Cow::Borrowed(inside)),
        true => short_escapes(inside)
            .or_else(|| unescaped(written))
            .map(Cow::Owned),
    }
}

/// Decodes a string whose escapes have two characters; None: it has a longer escape.
fn short_escapes(inside: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(inside.len());
    let mut rest = inside.iter();
    while let Some(&byte) = rest.next() {
        text.push(match byte {
            b'\\' => match rest.next()? {
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'u' => return None,
                &itself => itself,
            },
            _ => byte,
        });
    }
    Some(text)
}

/// Decodes a string literal with the server's own function, which knows this database's encoding.
fn unescaped(written: &[u8]) -> Option<Vec<u8>> {
    let array = row::text(&[b"[", written, b"]"].concat());
    pgrx::PgTryBuilder::new(|| {
        // SAFETY: a function of the server over a json array and an integer. It only computes, so its error leaves
        // nothing to clean up.
        unsafe {
            let args = [Some(array), Some(Datum::from(0i32))];
            pgrx::direct_function_call_as_datum(pg_sys::json_array_element_text, &args)
        }
    })
    .catch_others(|_| None)
    .execute()
    .map(|text| crate::call::varlena(text).to_vec())
}
