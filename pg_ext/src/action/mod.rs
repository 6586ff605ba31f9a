//! action: work on one row under a lease, because a worker can die half-way. `sql/action.sql` begins with an overview.
//!
//! `lease` is a row of once.action_lease. `claim` decides and claims. `hold` and `end` write with a token, which
//! `fence` checks. `sweep` finds overdue leases, and `revert` reverts their rows.

pub mod claim;
pub mod end;
mod fence;
pub mod hold;
pub mod inspect;
pub mod lease;
mod revert;
pub mod sweep;
