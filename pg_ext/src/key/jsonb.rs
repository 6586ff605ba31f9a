//! Canonical bytes of a jsonb value, read from its binary form: equal values, and only equal values, give the same
//! bytes.
//!
//! The binary form keeps an object's members sorted and unique. But a number keeps its scale (1.0 is stored differently
//! from 1), an offset depends on the entries before it, and padding depends on the position. So each value is written
//! as a tag, then its length and content if it has any. A number is written as sign, weight and base-10000 digits,
//! which PostgreSQL stores without zeros at either end. No number is written as text: 1e131071 has 131,072 digits.
//!
//! Texts are written in UTF-8, so that they stay the same when a dump is restored into another encoding. Members keep
//! the order in which jsonb stores them. That order depends on the encoding only if a name is not ASCII.
//!
//! Layout: PostgreSQL's utils/jsonb.h and utils/adt/numeric.c, on disk unchanged since 9.4.

use crate::call::ToUtf8;
use std::borrow::Cow;

const COUNT: u32 = 0x0fff_ffff;
const SCALAR: u32 = 0x1000_0000;
const OBJECT: u32 = 0x2000_0000;
const ARRAY: u32 = 0x4000_0000;

const ENTRY_LENGTH: u32 = 0x0fff_ffff;
const ENTRY_TYPE: u32 = 0x7000_0000;
const ENTRY_IS_OFFSET: u32 = 0x8000_0000;
const STRING: u32 = 0x0000_0000;
const NUMERIC: u32 = 0x1000_0000;
const FALSE: u32 = 0x2000_0000;
const TRUE: u32 = 0x3000_0000;
const NULL: u32 = 0x4000_0000;
const CONTAINER: u32 = 0x5000_0000;

/// A container being walked. Levels are on the heap, so any depth that the server can store can be hashed.
struct Level<'a> {
    bytes: &'a [u8],
    /// The number of entries. An object has its keys first, then its values.
    entries: usize,
    object: bool,
    visited: usize,
}

/// Writes the canonical bytes of a jsonb (the payload behind its varlena header) to `out`. `to_utf8` is None where
/// texts are in UTF-8 already. Answers None for an unknown layout.
pub fn canonical(jsonb: &[u8], to_utf8: Option<ToUtf8>, out: &mut impl FnMut(&[u8])) -> Option<()> {
    let mut levels = vec![enter(jsonb, out)?];
    while let Some(level) = levels.last_mut() {
        if level.visited == level.entries {
            levels.pop();
            continue;
        }
        let i = match level.object {
            true => level.visited / 2 + level.visited % 2 * (level.entries / 2),
            false => level.visited,
        };
        level.visited += 1;
        let (bytes, entries) = (level.bytes, level.entries);
        if let Some(child) = element(bytes, entries, i, to_utf8, out)? {
            levels.push(enter(child, out)?);
        }
    }
    Some(())
}

fn enter<'a>(bytes: &'a [u8], out: &mut impl FnMut(&[u8])) -> Option<Level<'a>> {
    let header = word(bytes, 0)?;
    let count = (header & COUNT) as usize;
    let object = header & OBJECT != 0;
    if !object && header & ARRAY == 0 {
        return None;
    }
    // A bare scalar is stored as an array of one element, with the flag SCALAR.
    let tag = match (object, header & SCALAR != 0) {
        (true, _) => b'{',
        (false, true) => b'v',
        (false, false) => b'[',
    };
    tagged(tag, count, out);
    Some(Level {
        bytes,
        entries: if object { count * 2 } else { count },
        object,
        visited: 0,
    })
}

/// Writes element `i` of a container; an element that is a container is returned instead.
fn element<'a>(
    bytes: &'a [u8],
    entries: usize,
    i: usize,
    to_utf8: Option<ToUtf8>,
    out: &mut impl FnMut(&[u8]),
) -> Option<Option<&'a [u8]>> {
    let entry = word(bytes, 4 + 4 * i)?;
    let (start, end) = extent(bytes, i)?;
    let data = bytes.get(4 + 4 * entries..)?;
    let content = |from: usize| data.get(from..end);
    // Numbers and containers begin at the next multiple of four. The data itself begins at a multiple of four.
    let aligned = start.next_multiple_of(4);
    match entry & ENTRY_TYPE {
        STRING => {
            let text = content(start)?;
            let text = to_utf8.map_or(Cow::Borrowed(text), |convert| convert(text));
            tagged(b's', text.len(), out);
            out(&text);
        }
        NUMERIC => number(content(aligned)?, out)?,
        CONTAINER => return content(aligned).map(Some),
        FALSE => out(b"f"),
        TRUE => out(b"t"),
        NULL => out(b"n"),
        _ => return None,
    }
    Some(None)
}

/// Where element `i` begins and ends in the data. An entry holds a length or, with ENTRY_IS_OFFSET, an end offset.
fn extent(bytes: &[u8], i: usize) -> Option<(usize, usize)> {
    let mut start = 0;
    for j in (0..i).rev() {
        let entry = word(bytes, 4 + 4 * j)?;
        start += (entry & ENTRY_LENGTH) as usize;
        if entry & ENTRY_IS_OFFSET != 0 {
            break;
        }
    }
    let entry = word(bytes, 4 + 4 * i)?;
    let value = (entry & ENTRY_LENGTH) as usize;
    let end = if entry & ENTRY_IS_OFFSET != 0 {
        value
    } else {
        start + value
    };
    Some((start, end))
}

const NUMERIC_SHORT: u16 = 0x8000;
const NUMERIC_SPECIAL: u16 = 0xc000;

/// Writes a numeric that a jsonb contains, given with its varlena header.
fn number(varlena: &[u8], out: &mut impl FnMut(&[u8])) -> Option<()> {
    let numeric = payload(varlena)?;
    let header = half(numeric, 0)?;
    let (negative, weight, digits) = match header & NUMERIC_SPECIAL {
        // jsonb refuses NaN and infinities.
        NUMERIC_SPECIAL => return None,
        NUMERIC_SHORT => {
            let magnitude = (header & 0x003f) as i32;
            let weight = if header & 0x0040 != 0 {
                magnitude - 64
            } else {
                magnitude
            };
            (header & 0x2000 != 0, weight, &numeric[2..])
        }
        sign => {
            let weight = i32::from(half(numeric, 2)? as i16);
            (sign == 0x4000, weight, &numeric[4..])
        }
    };
    let count = digits.len() / 2;
    if count == 0 {
        out(b"0");
        return Some(());
    }
    tagged(if negative { b'-' } else { b'+' }, count, out);
    out(&weight.to_be_bytes());
    for i in 0..count {
        out(&half(digits, 2 * i)?.to_be_bytes());
    }
    Some(())
}

/// A plain varlena's content; inside a jsonb nothing is compressed or stored elsewhere.
fn payload(varlena: &[u8]) -> Option<&[u8]> {
    let first = *varlena.first()?;
    if cfg!(target_endian = "little") && first & 1 == 1 {
        return varlena.get(1..(first >> 1) as usize);
    }
    let header = word(varlena, 0)?;
    let length = if cfg!(target_endian = "little") {
        header >> 2
    } else {
        header & 0x3fff_ffff
    };
    varlena.get(4..length as usize)
}

pub fn tagged(tag: u8, count: usize, out: &mut impl FnMut(&[u8])) {
    out(&[tag]);
    out(&(count as u64).to_be_bytes());
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => Some(u32::from_ne_bytes([a, b, c, d])),
        _ => None,
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    match bytes.get(at..at + 2) {
        Some(&[a, b]) => Some(u16::from_ne_bytes([a, b])),
        _ => None,
    }
}
