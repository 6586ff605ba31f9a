//! key: one logical request, one execution. The top of `sql/key.sql` describes the life of a key.
//!
//! `record` names the columns of a row. `decide` says how a claim of an existing key is answered; `claim` acts on that
//! decision. `hold`, `finish` and `step` write with a token, which `fence` checks. `event` emits the events of steps.
//! `inspect`, `list` and `resolve` serve operators. `take` serves completers. `abandon`, a sweep task, moves unfinished
//! keys whose first lease has expired into the lane that `take` reads.

pub mod abandon;
mod canonical;
pub mod claim;
pub mod decide;
mod event;
mod fence;
pub mod fingerprint;
pub mod finish;
pub mod hold;
mod identity;
pub mod inspect;
mod jsonb;
pub mod list;
pub mod record;
pub mod resolve;
pub mod scope;
pub mod scopes;
pub mod step;
pub mod take;
