//! action: one row's work that can die half-way, under a lease. Told at the top of `sql/action.sql`.
//!
//! `lease` names the columns of a lease's row; `claim` decides and claims, `hold` and `end` are the writes that
//! present a token, `sweep` finds what is overdue and `revert` reverts it.

pub mod claim;
pub mod end;
mod fence;
pub mod hold;
pub mod lease;
mod revert;
pub mod sweep;
