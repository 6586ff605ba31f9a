//! A line of the ledger that the world outside keeps, as it stands in the file.
//!
//! Invariant: every request that the ledger did not refuse has a line, a repeated one too, so that the
//! driver reads there all that came over the wire and may have had an effect.

use serde::{Deserialize, Serialize};

/// What a caller wants.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub struct Request {
    pub amount_cents: i64,
    pub customer: String,
    pub reference: String,
    /// Which of its customer's it is, where they must come in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<i64>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A charge, a transfer, or a receipt that was taken in.
    Made,
    /// A reference was reversed: the amount is what went back, 0 if there was nothing. From here on
    /// nothing more is made for the reference.
    Reversed,
    /// A known key came again: nothing happened.
    Again,
    /// Somebody looked up a reference.
    Looked,
}

/// What becomes of the answer; decided before the line is written.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    Answered,
    Late,
    /// The connection is closed instead.
    Cut,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Line {
    pub charge_id: String,
    pub idempotency_key: Option<String>,
    #[serde(flatten)]
    pub request: Request,
    pub kind: Kind,
    pub fate: Fate,
    pub at_micros: u64,
}
