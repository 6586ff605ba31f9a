//! key: one logical request, one execution. The top of `sql/key.sql` describes the life of a key.
//!
//! `record` names the columns of a row. `claim` reads, decides and claims. `hold`, `finish` and `step` write with a
//! token, which `fence` checks. `event` emits the events of steps. `inspect`, `list` and `resolve` serve people. `take`
//! serves completers, and the sweep task in `abandon` finds the unfinished keys for them.

pub mod abandon;
pub mod claim;
pub mod fingerprint;
pub mod finish;
pub mod hold;
pub mod inspect;
pub mod list;
pub mod resolve;
pub mod scope;
pub mod scopes;
pub mod step;
pub mod take;

mod canonical;
pub mod decide;
mod event;
mod fence;
mod identity;
mod jsonb;
pub mod record;
