//! What the guard lets pass because one of our functions is doing it right now.
//!
//! A permit names the machine, the rows and what happens to them, and lives as long as our statement runs, so
//! that what a trigger of the user's does meanwhile to other rows, or otherwise, is still refused. It lives
//! in this backend's memory, where no statement can forge it.

use std::cell::RefCell;
use std::collections::HashSet;

/// What is about to happen to rows of one machine.
pub struct Permit {
    pub machine: String,
    /// Canonical ids in the database's encoding.
    pub ids: HashSet<Vec<u8>>,
    pub doing: Doing,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Doing {
    /// The status goes from the first to the second.
    Move(String, String),
    /// The cancel flag is set.
    Flag,
    /// Undecided items of these rows get the marker.
    Refund,
}

thread_local! {
    static PERMITS: RefCell<Vec<Permit>> = const { RefCell::new(Vec::new()) };
}

/// Ends the permit when it is dropped, also while an error unwinds.
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

/// One of our statements that runs now does this to this row.
pub fn allows(machine: &str, id: &[u8], doing: &Doing) -> bool {
    PERMITS.with(|permits| {
        permits
            .borrow()
            .iter()
            .any(|p| p.machine == machine && p.doing == *doing && p.ids.contains(id))
    })
}

/// Some permit stands; without one nothing has to be compared.
pub fn any() -> bool {
    PERMITS.with(|p| !p.borrow().is_empty())
}
