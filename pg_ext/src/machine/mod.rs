//! machine: the declared states and moves of one of the user's tables. Told at the top of `sql/machine.sql`.
//!
//! `definition` is what a machine declares; `validate` makes one out of JSON and tells every fault,
//! `predicate` reads a `when`; `define` stores it.

pub mod define;
pub mod definition;

mod predicate;
mod validate;
