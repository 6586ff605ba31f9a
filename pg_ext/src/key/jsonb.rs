//! Canonical bytes of a jsonb value, read from its binary form: equal values, and only equal values,
//! give the same bytes.
//!
//! Texts are written in UTF-8, so that a dump may be restored into a database of another encoding. The
//! binary form keeps object keys sorted and unique, but numbers keep their scale (1.0 is stored
//! otherwise than 1), offsets depend on neighbours and padding on position. So values are walked and
//! written as tag, length and content; a number as sign, weight and base-10000 digits without zeros at
//! either end, which is what numeric equality compares. Nothing is parsed or printed: nine kilobytes of
//! 1e131071 stay nine kilobytes.
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

/// The value's bytes do not have jsonb's layout.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed;

type Walk = Result<(), Malformed>;

/// A container being walked. Nesting is kept on the heap, not on the stack: whatever depth the server
/// can hold, a claim can hash.
struct Level<'a> {
    bytes: &'a [u8],
    /// Entries in all; an object has its keys first, then its values.
    entries: usize,
    object: bool,
    /// The order of an object's members where it is not the stored one.
    order: Option<Vec<usize>>,
    visited: usize,
}

/// Writes the canonical bytes of a jsonb (the payload behind its varlena header) to `out`, its texts in
/// UTF-8 (`to_utf8` None: they are).
pub fn canonical(jsonb: &[u8], to_utf8: Option<ToUtf8>, out: &mut impl FnMut(&[u8])) -> Walk {
    let mut levels = vec![enter(jsonb, to_utf8, out)?];
    while let Some(level) = levels.last_mut() {
        if level.visited == level.entries {
            levels.pop();
            continue;
        }
        let i = match level.object {
            true => level.member(level.visited / 2) + level.visited % 2 * (level.entries / 2),
            false => level.visited,
        };
        level.visited += 1;
        let (bytes, entries) = (level.bytes, level.entries);
        if let Some(child) = element(bytes, entries, i, to_utf8, out)? {
            levels.push(enter(child, to_utf8, out)?);
        }
    }
    Ok(())
}

impl Level<'_> {
    /// The stored place of the n-th member.
    fn member(&self, n: usize) -> usize {
        self.order
            .as_ref()
            .and_then(|o| o.get(n).copied())
            .unwrap_or(n)
    }
}

/// Members by length and bytes of their names in UTF-8, as a database in UTF-8 stores them.
fn utf8_order(bytes: &[u8], count: usize, to_utf8: ToUtf8) -> Result<Vec<usize>, Malformed> {
    let data = bytes.get(4 + 8 * count..).ok_or(Malformed)?;
    let mut members = Vec::with_capacity(count);
    for i in 0..count {
        let (start, end) = extent(bytes, i)?;
        let name = to_utf8(data.get(start..end).ok_or(Malformed)?);
        members.push((name.len(), name, i));
    }
    members.sort();
    Ok(members.into_iter().map(|(_, _, i)| i).collect())
}

fn enter<'a>(
    bytes: &'a [u8],
    to_utf8: Option<ToUtf8>,
    out: &mut impl FnMut(&[u8]),
) -> Result<Level<'a>, Malformed> {
    let header = word(bytes, 0)?;
    let count = (header & COUNT) as usize;
    let object = header & OBJECT != 0;
    if !object && header & ARRAY == 0 {
        return Err(Malformed);
    }
    // A bare scalar is stored as an array of one that is marked so.
    let tag = match (object, header & SCALAR != 0) {
        (true, _) => b'{',
        (false, true) => b'v',
        (false, false) => b'[',
    };
    tagged(tag, count, out);
    Ok(Level {
        bytes,
        entries: if object { count * 2 } else { count },
        object,
        order: match to_utf8 {
            Some(to_utf8) if object => Some(utf8_order(bytes, count, to_utf8)?),
            _ => None,
        },
        visited: 0,
    })
}

/// Writes element `i` of a container, or returns it where it is a container itself.
fn element<'a>(
    bytes: &'a [u8],
    entries: usize,
    i: usize,
    to_utf8: Option<ToUtf8>,
    out: &mut impl FnMut(&[u8]),
) -> Result<Option<&'a [u8]>, Malformed> {
    let entry = word(bytes, 4 + 4 * i)?;
    let (start, end) = extent(bytes, i)?;
    let data = bytes.get(4 + 4 * entries..).ok_or(Malformed)?;
    let content = |from: usize| data.get(from..end).ok_or(Malformed);
    // Numbers and containers begin at the next multiple of four; data begins at one, too.
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
        _ => return Err(Malformed),
    }
    Ok(None)
}

/// Where element `i` begins and ends in the data: entries hold lengths, some of them end offsets.
fn extent(bytes: &[u8], i: usize) -> Result<(usize, usize), Malformed> {
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
    Ok((start, end))
}

const NUMERIC_SHORT: u16 = 0x8000;
const NUMERIC_SPECIAL: u16 = 0xc000;

/// A numeric with its varlena header, as it stands inside a jsonb.
fn number(varlena: &[u8], out: &mut impl FnMut(&[u8])) -> Walk {
    let numeric = payload(varlena)?;
    let header = half(numeric, 0)?;
    let (negative, weight, digits) = match header & NUMERIC_SPECIAL {
        // NaN and infinities cannot be in a jsonb; they would be told apart by their header.
        NUMERIC_SPECIAL => return Err(Malformed),
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
    let digit = |i: usize| half(digits, 2 * i);
    let (mut first, mut last) = (0, digits.len() / 2);
    while first < last && digit(first)? == 0 {
        first += 1;
    }
    while last > first && digit(last - 1)? == 0 {
        last -= 1;
    }
    if first == last {
        out(b"0");
        return Ok(());
    }
    tagged(if negative { b'-' } else { b'+' }, last - first, out);
    out(&(weight - first as i32).to_be_bytes());
    for i in first..last {
        out(&digit(i)?.to_be_bytes());
    }
    Ok(())
}

/// A plain varlena's content; inside a jsonb nothing is compressed or stored elsewhere.
fn payload(varlena: &[u8]) -> Result<&[u8], Malformed> {
    let first = *varlena.first().ok_or(Malformed)?;
    if cfg!(target_endian = "little") && first & 1 == 1 {
        return varlena.get(1..(first >> 1) as usize).ok_or(Malformed);
    }
    let header = word(varlena, 0)?;
    let length = if cfg!(target_endian = "little") {
        header >> 2
    } else {
        header & 0x3fff_ffff
    };
    varlena.get(4..length as usize).ok_or(Malformed)
}

fn tagged(tag: u8, count: usize, out: &mut impl FnMut(&[u8])) {
    out(&[tag]);
    out(&(count as u64).to_be_bytes());
}

fn word(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => Ok(u32::from_ne_bytes([a, b, c, d])),
        _ => Err(Malformed),
    }
}

fn half(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    match bytes.get(at..at + 2) {
        Some(&[a, b]) => Ok(u16::from_ne_bytes([a, b])),
        _ => Err(Malformed),
    }
}
