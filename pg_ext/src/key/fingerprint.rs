//! The fingerprint of a request: a scheme byte and a SHA-256.

use super::{canonical, jsonb};
use crate::call::{to_utf8, varlena};
use crate::error::{Error, Result};
use crate::json;
use pgrx::pg_sys::Datum;
use sha2::{Digest, Sha256};

/// Scheme 1: the canonical bytes of `jsonb.rs`.
const CANONICAL_JSONB: u8 = 1;
/// Scheme 2: the caller's own 32 bytes.
const CALLERS_HASH: u8 = 2;

/// The request of a claim. If the caller gives a hash, `json` is not compared.
pub struct Request<'a> {
    /// Stored where the scope has keep_request.
    pub json: Option<Datum>,
    pub hash: Option<&'a [u8; 32]>,
}

impl Request<'_> {
    /// None for a NULL request without a hash.
    pub fn fingerprint(&self) -> Result<Option<[u8; 33]>> {
        match self.hash {
            Some(hash) => Ok(Some(with_scheme(CALLERS_HASH, hash.as_slice()))),
            None => self.json.map(|json| of_json(varlena(json))).transpose(),
        }
    }

    pub fn matches(&self, stored: Option<&[u8]>) -> Result<bool> {
        Ok(self.fingerprint()?.as_ref().map(|f| f.as_slice()) == stored)
    }
}

/// The fingerprint of a request under scheme 1.
pub fn of_json(text: &[u8]) -> Result<[u8; 33]> {
    let to_utf8 = to_utf8();
    let mut hash = Sha256::new();
    if canonical::canonical(text, to_utf8, &mut |bytes| hash.update(bytes)).is_none() {
        hash = Sha256::new();
        let jsonb = varlena(json::to_jsonb(text)?);
        jsonb::canonical(jsonb, to_utf8, &mut |bytes| hash.update(bytes))
            .ok_or_else(|| Error::internal("argument \"request\" has an unknown jsonb layout"))?;
    }
    Ok(with_scheme(CANONICAL_JSONB, hash.finalize().as_slice()))
}

fn with_scheme(scheme: u8, hash: &[u8]) -> [u8; 33] {
    let mut fingerprint = [scheme; 33];
    fingerprint[1..].copy_from_slice(hash);
    fingerprint
}
