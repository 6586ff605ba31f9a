//! Names made of hashes: the row id of a key, and the derived key of a step.
//!
//! Both are pure functions of their inputs and never change between versions: rows are found by the id, and other
//! systems remember derived keys. Texts are hashed in UTF-8, so that a dump can be restored into another encoding.

use crate::call::utf8;
use crate::digest::{first_16, first_64_bits, hex};
use sha2::{Digest, Sha256};

/// The id of a key's row.
#[derive(Clone, Copy)]
pub struct KeyId([u8; 16]);

impl KeyId {
    /// First 16 bytes of SHA-256(scope, 0x00, key). A text cannot contain a NUL byte, so two pairs never give the same
    /// input.
    pub fn hashed(scope: &[u8], key: &[u8]) -> KeyId {
        let digest = Sha256::new()
            .chain_update(utf8(scope))
            .chain_update([0])
            .chain_update(utf8(key))
            .finalize();
        KeyId(first_16(&digest))
    }

    pub fn bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// 64 bits for the try-lock.
    pub fn lock_hash(&self) -> u64 {
        first_64_bits(&self.0)
    }
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
