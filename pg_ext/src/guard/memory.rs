//! What a guard remembers of its table from one row to the next: good for one trigger on one table or
//! partition, until a relcache message about it or one of the machine's tables comes.

use super::event::Event;
use crate::error::Result;
use crate::machine::changes;
use pgrx::pg_sys::Oid;
use std::cell::RefCell;
use std::rc::Rc;

/// The last table's; keep it in a `thread_local`.
pub struct Memory<T>(RefCell<Option<Remembered<T>>>);

struct Remembered<T> {
    trigger: Oid,
    relation: Oid,
    changes: u64,
    guarded: Rc<T>,
}

impl<T> Remembered<T> {
    fn fits(&self, event: &Event) -> bool {
        self.trigger == event.trigger()
            && self.relation == event.relation()
            && self.changes == changes::of_tables()
    }
}

impl<T> Memory<T> {
    pub const fn new() -> Memory<T> {
        Memory(RefCell::new(None))
    }

    /// What is remembered of this event's table, or what `look_up` says now.
    pub fn of(&self, event: &Event, look_up: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        if let Some(last) = self.0.borrow().as_ref().filter(|r| r.fits(event)) {
            return Ok(last.guarded.clone());
        }
        // A message that comes meanwhile makes this worthless for the next row.
        let changes = changes::watch_guarded(event.relation());
        let guarded = Rc::new(look_up()?);
        *self.0.borrow_mut() = Some(Remembered {
            trigger: event.trigger(),
            relation: event.relation(),
            changes,
            guarded: guarded.clone(),
        });
        Ok(guarded)
    }
}
