//! Counts the server's messages about changed relations, so that a backend knows when its caches are stale. A message
//! about a schema counts as a message about every relation.

use super::{Name, Table};
use crate::error::Result;
use pgrx::pg_sys::{self, Datum, Oid};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

thread_local! {
    static WATCHES: RefCell<Vec<&'static Watch>> = const { RefCell::new(Vec::new()) };
}

/// Relations, and a count of the messages about any of them; kept in a `static`.
pub struct Watch {
    relations: RefCell<BTreeSet<u32>>,
    count: Cell<u64>,
}

// SAFETY: a backend is one thread.
unsafe impl Sync for Watch {}

impl Watch {
    pub const fn new() -> Watch {
        Watch {
            relations: RefCell::new(BTreeSet::new()),
            count: Cell::new(0),
        }
    }

    /// Counts messages about these relations from now on; returns the present count.
    pub fn add(&'static self, relations: impl IntoIterator<Item = Oid>) -> u64 {
        if self.relations.borrow().is_empty() {
            WATCHES.with_borrow_mut(|all| {
                if all.is_empty() {
                    listen();
                }
                all.push(self);
            });
        }
        let relations = relations.into_iter().map(Oid::to_u32);
        self.relations.borrow_mut().extend(relations);
        self.count()
    }

    pub fn count(&self) -> u64 {
        self.count.get()
    }
}

fn listen() {
    let schemas = pg_sys::SysCacheIdentifier::NAMESPACEOID as i32;
    // SAFETY: registered once per backend; the callbacks live as long as the library.
    unsafe {
        pg_sys::CacheRegisterRelcacheCallback(Some(relation_changed), Datum::from(0));
        pg_sys::CacheRegisterSyscacheCallback(schemas, Some(schema_changed), Datum::from(0));
    }
}

/// The server calls this for each changed relation. InvalidOid stands for all relations.
#[pgrx::pg_guard]
extern "C-unwind" fn relation_changed(_arg: Datum, relation: Oid) {
    let is_every = relation == pg_sys::InvalidOid;
    WATCHES.with_borrow(|all| {
        for watch in all {
            if is_every || watch.relations.borrow().contains(&relation.to_u32()) {
                watch.count.set(watch.count() + 1);
            }
        }
    });
}

/// The server calls this for each schema that is created, changed or dropped.
#[pgrx::pg_guard]
extern "C-unwind" fn schema_changed(arg: Datum, _cache: i32, _hash: u32) {
    relation_changed(arg, pg_sys::InvalidOid);
}

/// Sends a message about these tables to the watches of every backend. This backend gets the message with its next
/// command, the others get it when the transaction commits.
pub fn tell_all(names: &[Name]) -> Result<()> {
    for name in names {
        let table = Table::to_read(name)?.oid();
        // SAFETY: the table is there, locked to the end of the transaction. GetCurrentCommandId marks this command as a
        // write. After a write, the server passes the message to this backend with its next command.
        unsafe {
            pg_sys::GetCurrentCommandId(true);
            pg_sys::CacheInvalidateRelcacheByRelid(table);
        }
    }
    Ok(())
}
