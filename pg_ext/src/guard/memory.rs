//! This cache holds the columns of one table or partition, until a trigger fires for another one. The cache is valid
//! until the server invalidates the relcache entry of any machine's table or any guarded partition.

use super::event::RowEvent;
use crate::error::Result;
use crate::machine::changes;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::rc::Rc;

/// The cache; each trigger function has one in a `thread_local`.
pub struct TableMemory<T>(RefCell<Option<RememberedTable<T>>>);

struct RememberedTable<T> {
    trigger: Oid,
    relation: Oid,
    changes: u64,
    guarded: Rc<T>,
}

impl<T> RememberedTable<T> {
    fn is_of(&self, event: &RowEvent) -> bool {
        self.trigger == event.trigger()
            && self.relation == event.relation()
            && self.changes == changes::TABLES.count()
    }
}

impl<T> TableMemory<T> {
    pub const fn new() -> TableMemory<T> {
        TableMemory(RefCell::new(None))
    }

    /// The columns of this event's table; looks them up if they are not cached.
    pub fn recall(&self, event: &RowEvent, look_up: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        if let Some(last) = self.0.borrow().as_ref().filter(|r| r.is_of(event)) {
            return Ok(last.guarded.clone());
        }
        // If an invalidation comes during the look-up, the next row looks up the columns again.
        let changes = changes::TABLES.add([event.relation()]);
        let guarded = Rc::new(look_up()?);
        *self.0.borrow_mut() = Some(RememberedTable {
            trigger: event.trigger(),
            relation: event.relation(),
            changes,
            guarded: guarded.clone(),
        });
        Ok(guarded)
    }
}
