//! Where a pass over rows that fail ended before its end. once.janitor says so to the next one, whatever session that is.
//! Where it could not be noted (somebody keeps the table, or an open transaction has noted a run) this session remembers
//! it, until something newer is noted: a backend is one thread.

use super::runs::Noted;
use std::cell::RefCell;
use std::collections::BTreeMap;

/// What was noted then, None: nothing could be read; and where the pass ended.
type Remembered = (Option<Option<i64>>, Option<String>);

thread_local! {
    static NOT_NOTED: RefCell<BTreeMap<&'static str, Remembered>> = const { RefCell::new(BTreeMap::new()) };
}

/// Where the next pass of a task goes on; `noted`: what once.janitor says, None: it cannot be read.
pub fn start(task: &'static str, noted: Option<&Noted>) -> Option<String> {
    let remembered = NOT_NOTED.with_borrow(|all| all.get(task).cloned());
    match (remembered, noted) {
        (Some((_, place)), None) | (Some((None, place)), Some(_)) => place,
        (Some((then, place)), Some(now)) if then == Some(now.last_end) => place,
        (_, now) => now.and_then(|noted| noted.reached.clone()),
    }
}

/// The pass ended there, and that could not be noted.
pub fn remember(task: &'static str, noted: Option<&Noted>, reached: Option<String>) {
    let last_end = noted.map(|noted| noted.last_end);
    NOT_NOTED.with_borrow_mut(|all| all.insert(task, (last_end, reached)));
}

/// It is noted.
pub fn forget(task: &'static str) {
    NOT_NOTED.with_borrow_mut(|all| all.remove(task));
}
