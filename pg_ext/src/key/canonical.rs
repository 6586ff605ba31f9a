//! Writes the same canonical bytes as `jsonb.rs`, but from a json text, without making a jsonb of it. Answers None for
//! a text that must go through jsonb: a long or deeply nested text, or one with a value that jsonb may refuse.

use super::jsonb::tagged;
use crate::call::ToUtf8;
use crate::json::{self, Members};
use std::borrow::Cow;

/// A deeper text goes through jsonb, because each level of nesting scans its text once more.
const DEEPEST: usize = 16;
const LONGEST: usize = 1 << 20;
/// A number with more digits, or a larger exponent, may be out of numeric's range.
const MOST_DIGITS: usize = 1000;

pub fn canonical(text: &[u8], to_utf8: Option<ToUtf8>, out: &mut impl FnMut(&[u8])) -> Option<()> {
    let text = text.trim_ascii();
    if text.len() > LONGEST {
        return None;
    }
    if !matches!(text.first(), Some(b'{' | b'[')) {
        tagged(b'v', 1, out);
    }
    value(text, DEEPEST, to_utf8, out)
}

fn value(
    written: &[u8],
    levels: usize,
    to_utf8: Option<ToUtf8>,
    out: &mut impl FnMut(&[u8]),
) -> Option<()> {
    match written.first()? {
        b'{' => object(written, levels.checked_sub(1)?, to_utf8, out)?,
        b'[' => {
            let elements: Vec<&[u8]> = json::elements(written)?.collect();
            tagged(b'[', elements.len(), out);
            for element in elements {
                value(element, levels.checked_sub(1)?, to_utf8, out)?;
            }
        }
        b'"' => string(&json::string(written)?, to_utf8, out),
        b't' => out(b"t"),
        b'f' => out(b"f"),
        b'n' => out(b"n"),
        _ => number(written, out)?,
    }
    Some(())
}

/// Writes the members in the order of jsonb: by the length of the name, then by its bytes. If a name repeats, the last
/// member counts.
fn object(
    written: &[u8],
    levels: usize,
    to_utf8: Option<ToUtf8>,
    out: &mut impl FnMut(&[u8]),
) -> Option<()> {
    let mut members = Members::of(written)?
        .map(|(name, value)| Some((json::string(name)?, value)))
        .collect::<Option<Vec<(Cow<[u8]>, &[u8])>>>()?;
    members.reverse();
    members.sort_by(|(a, _), (b, _)| a.len().cmp(&b.len()).then_with(|| a.cmp(b)));
    members.dedup_by(|(later, _), (name, _)| later == name);
    tagged(b'{', members.len(), out);
    for (name, member) in members {
        string(&name, to_utf8, out);
        value(member, levels, to_utf8, out)?;
    }
    Some(())
}

fn string(text: &[u8], to_utf8: Option<ToUtf8>, out: &mut impl FnMut(&[u8])) {
    let text = to_utf8.map_or(Cow::Borrowed(text), |convert| convert(text));
    tagged(b's', text.len(), out);
    out(&text);
}

/// Writes a number as numeric stores it: base-10000 digits aligned at the decimal point, no zeros at either end.
fn number(written: &[u8], out: &mut impl FnMut(&[u8])) -> Option<()> {
    let (sign, unsigned) = match written.strip_prefix(b"-") {
        Some(rest) => (b'-', rest),
        None => (b'+', written),
    };
    let mut parts = unsigned.splitn(2, |b| matches!(b, b'e' | b'E'));
    let mantissa = parts.next()?;
    let exponent: i32 = match parts.next() {
        Some(digits) => std::str::from_utf8(digits).ok()?.parse().ok()?,
        None => 0,
    };
    let point = mantissa.iter().position(|b| *b == b'.');
    let digits: Vec<u8> = mantissa.iter().copied().filter(|b| *b != b'.').collect();
    if digits.len() > MOST_DIGITS
        || exponent.unsigned_abs() as usize > MOST_DIGITS
        || !digits.iter().all(u8::is_ascii_digit)
    {
        return None;
    }
    let Some(first) = digits.iter().position(|d| *d != b'0') else {
        out(b"0");
        return Some(());
    };
    let last = digits.iter().rposition(|d| *d != b'0')?;
    // The power of ten of the first digit, and how many digits the first group lacks.
    let power = point.unwrap_or(digits.len()) as i32 + exponent - 1 - first as i32;
    let lacking = 3 - power.rem_euclid(4) as usize;
    let digits = &digits[first..=last];
    let groups = (lacking + digits.len()).div_ceil(4);
    tagged(sign, groups, out);
    out(&power.div_euclid(4).to_be_bytes());
    for group in 0..groups {
        let digit = |i: usize| {
            (4 * group + i)
                .checked_sub(lacking)
                .and_then(|at| digits.get(at))
        };
        let value = (0..4).fold(0u16, |sum, i| {
            sum * 10 + digit(i).map_or(0, |d| u16::from(d - b'0'))
        });
        out(&value.to_be_bytes());
    }
    Some(())
}
