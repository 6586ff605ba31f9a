//! Transactions that were open when a lane was last taken from, and may have emitted since: whoever writes anywhere in the
//! server is among them, so each is asked once whether it has emitted anything, and those that have lane by lane.

use crate::error::Result;
use crate::outbox::event::Home;
use crate::outbox::window::{Window, emitters};
use crate::table::{Snapshot, Table};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

/// Probes of all lanes together; where they do not suffice, only what was not late is told.
const PROBES: usize = 100_000;

/// Transaction ids: from, to (excluded).
type Ids = (i64, i64);

/// What one call of metrics has found out, under its one snapshot.
#[derive(Default)]
pub struct Late {
    used: Cell<usize>,
    /// Those that emitted, by the ids that were asked for.
    emitters: RefCell<HashMap<Ids, Rc<[i64]>>>,
}

impl Late {
    /// Keeps in the window those of its transactions that have emitted to this lane.
    pub fn keep(
        &self,
        window: &mut Window,
        (topic, lane): (i32, i32),
        tables: &[(&'static Home, Table)],
        snapshot: &Snapshot,
    ) -> Result<()> {
        if self.is_used_up() {
            return Ok(());
        }
        let mut candidates = Vec::new();
        for xid in window.unfinished() {
            candidates.extend_from_slice(&self.emitters(xid, xid + 1, tables, snapshot)?);
        }
        let (first, end) = window.fresh();
        candidates.extend_from_slice(&self.emitters(first, end, tables, snapshot)?);
        if self.may_probe(candidates.len() * tables.len()) {
            window.keep_late(&candidates, topic, lane, tables, snapshot)?;
        }
        Ok(())
    }

    fn emitters(
        &self,
        first: i64,
        end: i64,
        tables: &[(&'static Home, Table)],
        snapshot: &Snapshot,
    ) -> Result<Rc<[i64]>> {
        if let Some(known) = self.emitters.borrow().get(&(first, end)) {
            return Ok(known.clone());
        }
        let left = PROBES.saturating_sub(self.used.get());
        let found: Rc<[i64]> = emitters(tables, first, end, left, snapshot)?.into();
        self.may_probe(found.len() + tables.len());
        self.emitters
            .borrow_mut()
            .insert((first, end), found.clone());
        Ok(found)
    }

    /// So many more probes; false: there were enough.
    fn may_probe(&self, probes: usize) -> bool {
        self.used.set(self.used.get().saturating_add(probes));
        !self.is_used_up()
    }

    /// Something late may have been left out.
    pub fn is_used_up(&self) -> bool {
        self.used.get() > PROBES
    }
}
