//! Names made of hashes: the row id of a key, and the derived key of a step.
//!
//! Both depend only on their inputs and are the same in every version of pg_once: rows are found by the id, and other
//! systems remember derived keys. Texts are hashed in UTF-8, so that a dump can be restored into another encoding.

use crate::call::utf8;
use crate::digest::{first_16, first_64_bits, hex};
use sha2::{Digest, Sha256};

/// The id of a key's row.
#[derive(Clone, Copy)]
pub struct KeyId([u8; 16]);

impl KeyId {
    /// First 16 bytes of SHA-256(scope, 0x00, key). A text cannot contain a NUL byte, so two pairs of scope and key
    /// never give the same input. If the key ends in a UUIDv7 or a ULID, its time replaces the first four bytes, so
    /// that the keys of one minute share a few pages of the index.
    pub fn hashed(scope: &[u8], key: &[u8]) -> KeyId {
        let key = utf8(key);
        let digest = Sha256::new()
            .chain_update(utf8(scope))
            .chain_update([0])
            .chain_update(&key)
            .finalize();
        let mut id = first_16(&digest);
        if let Some(time) = time_of_uuid(&key).or_else(|| time_of_ulid(&key)) {
            id[..4].copy_from_slice(&time.to_be_bytes());
        }
        KeyId(id)
    }

    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// The number of the key's try-lock.
    pub fn lock_hash(&self) -> u64 {
        first_64_bits(&self.0[8..])
    }
}

/// The time of the UUID of version 7 at the end of a key, in units of 2^16 ms (RFC 9562).
fn time_of_uuid(key: &[u8]) -> Option<u32> {
    let uuid = key.last_chunk::<36>()?;
    let fits = |(i, b): (usize, &u8)| match i {
        8 | 13 | 18 | 23 => *b == b'-',
        14 => *b == b'7',
        _ => b.is_ascii_hexdigit(),
    };
    let hex = std::str::from_utf8(&uuid[..8]).ok()?;
    let is_v7 = uuid.iter().enumerate().all(fits);
    u32::from_str_radix(hex, 16).ok().filter(|_| is_v7)
}

/// The time of the ULID at the end of a key, in units of 2^16 ms. The first ten digits of a ULID (Crockford's base 32)
/// count milliseconds.
fn time_of_ulid(key: &[u8]) -> Option<u32> {
    let ulid = key.last_chunk::<26>()?;
    let digits = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
    let mut time = 0;
    for (i, byte) in ulid.iter().enumerate() {
        let digit = digits.iter().position(|d| d == byte)? as u64;
        time = if i < 7 { time << 5 | digit } else { time };
    }
    u32::try_from(time >> 1).ok()
}

/// The idempotency key that a step sends to the other side: "once-" and 64 hex digits of
/// SHA-256(scope, 0x00, key, 0x00, step, 0x00, version in decimal).
pub fn derived_key(scope: &[u8], key: &[u8], step: &[u8], version: i32) -> String {
    let digest = Sha256::new()
        .chain_update(utf8(scope))
        .chain_update([0])
        .chain_update(utf8(key))
        .chain_update([0])
        .chain_update(utf8(step))
        .chain_update([0])
        .chain_update(version.to_string())
        .finalize();
    format!("once-{}", hex(&digest))
}
