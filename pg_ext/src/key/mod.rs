//! key: one logical request, one execution. The life of a key is told at the top of `sql/key.sql`.
//!
//! `record` names the columns of a row, `claim` decides and claims, `hold`, `finish` and `step` are the
//! writes that present a token (`fence` checks it), `event` what steps have emitted at the end, `inspect`, `steps`
//! and `resolve` are for people, `abandoned` for completers, `passing` for sweeps
//! (`bookmark`, `visit`: what those two share).

pub mod abandoned;
pub mod bookmark;
pub mod claim;
pub mod fingerprint;
pub mod finish;
pub mod hold;
pub mod inspect;
pub mod passing;
pub mod resolve;
pub mod scope;
pub mod step;
pub mod steps;

pub mod decide;
mod event;
mod fence;
mod identity;
mod jsonb;
pub mod record;
mod visit;
