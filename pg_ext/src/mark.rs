//! A hash of a call and its arguments.

use crate::digest::first_64_bits;
use sha2::{Digest, Sha256};

/// 64 bits over a call and its arguments, never 0: tells a repeated call from a new one. The length precedes each part; NULL
/// is a length that no text has.
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
