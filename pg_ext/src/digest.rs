//! `call_mark` hashes a call. The other functions shorten a digest (to a key, or a lock's number) or print it in hex.

use sha2::{Digest, Sha256};

/// The first 16 bytes of a digest.
pub fn first_16(digest: &[u8]) -> [u8; 16] {
    digest.first_chunk().copied().unwrap_or_default()
}

/// The first 8 bytes of a digest as a number.
pub fn first_64_bits(digest: &[u8]) -> u64 {
    u64::from_be_bytes(digest.first_chunk().copied().unwrap_or_default())
}

/// Two lowercase digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|b| digits(*b));
    digits.map(char::from).collect()
}

/// The two lowercase digits of a byte.
pub fn digits(byte: u8) -> [u8; 2] {
    [byte >> 4, byte & 15].map(|nibble| b"0123456789abcdef"[usize::from(nibble)])
}

/// A 64-bit hash of a call and its arguments, never 0. It distinguishes a repeated call from a new one. The length
/// precedes each part; a NULL is hashed as a length that no text has.
pub fn call_mark(function: &str, parts: &[Option<&[u8]>]) -> i64 {
    let mut hash = Sha256::new().chain_update(function);
    for part in parts {
        match part {
            None => hash.update(u64::MAX.to_be_bytes()),
            Some(bytes) => {
                hash.update((bytes.len() as u64).to_be_bytes());
                hash.update(bytes);
            }
        }
    }
    let mark = first_64_bits(&hash.finalize()) as i64;
    if mark == 0 { 1 } else { mark }
}
