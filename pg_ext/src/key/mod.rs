//! key: one logical request, one execution. The life of a key is told at the top of `sql/key.sql`.
//!
//! `record` names the columns of a row, `claim` decides and claims, `hold`, `finish` and `step` are the
//! writes that present a token (`fence` checks it), `event` what steps have emitted at the end, `inspect`, `list`
//! and `resolve` are for people, `take` for completers, `abandon` for the sweeps that show them unfinished keys.

pub mod abandon;
pub mod claim;
pub mod fingerprint;
pub mod finish;
pub mod hold;
pub mod inspect;
pub mod list;
pub mod resolve;
pub mod scope;
pub mod step;
pub mod take;

pub mod decide;
mod event;
mod fence;
mod identity;
mod jsonb;
pub mod record;
