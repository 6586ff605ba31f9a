//! Permits: the writes that the guard lets pass because one of our own functions makes them.
//!
//! A permit lasts while our statement runs. The permit names the machine, the rows and the write, so the guard still
//! judges every other write that a user's trigger makes meanwhile. Permits are in this backend's memory, where no
//! statement can forge one.

use std::cell::RefCell;
use std::collections::HashSet;

/// A write that our statement makes to rows of one machine.
pub struct Permit {
    pub machine: String,
    /// Canonical ids in the database's encoding.
    pub ids: HashSet<Vec<u8>>,
    pub doing: Doing,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Doing {
    /// The status changes from the first to the second.
    Move(String, String),
    /// The cancel flag is set.
    Flag,
    /// In items of these rows, the marker column changes from NULL or the value `undecided` to the value `marked`.
    Refund,
}

thread_local! {
    static PERMITS: RefCell<Vec<Permit>> = const { RefCell::new(Vec::new()) };
}

/// A granted permit, which ends when this value is dropped, also while an error unwinds.
pub struct Granted(());

/// Grants a permit until the result is dropped.
pub fn grant<'a>(machine: &str, ids: impl IntoIterator<Item = &'a [u8]>, doing: Doing) -> Granted {
    PERMITS.with(|p| {
        p.borrow_mut().push(Permit {
            machine: machine.to_owned(),
            ids: ids.into_iter().map(<[u8]>::to_vec).collect(),
            doing,
        });
    });
    Granted(())
}

impl Drop for Granted {
    fn drop(&mut self) {
        PERMITS.with(|p| p.borrow_mut().pop());
    }
}

/// Whether a present permit covers this write.
pub fn allows(machine: &str, id: &[u8], doing: &Doing) -> bool {
    PERMITS.with(|permits| {
        permits
            .borrow()
            .iter()
            .any(|p| p.machine == machine && p.doing == *doing && p.ids.contains(id))
    })
}

pub fn any() -> bool {
    PERMITS.with(|p| !p.borrow().is_empty())
}
