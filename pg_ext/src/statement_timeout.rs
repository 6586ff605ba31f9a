//! A statement_timeout that runs out in the moment in which a wait of our own for a lock does: the server tells of one of
//! both, and it is the lock_timeout, which we catch. The statement would go on for as long as it likes.

use crate::error::{Error, Kind, Result};
use std::ffi::c_int;

/// The server's number of it (TimeoutId), in all versions so far.
const STATEMENT_TIMEOUT: c_int = 3;

unsafe extern "C-unwind" {
    fn get_timeout_active(id: c_int) -> bool;
}

/// Whether the statement had one when this was made.
#[derive(Clone, Copy)]
pub struct StatementTimeout {
    is_set: bool,
}

impl StatementTimeout {
    pub fn now() -> StatementTimeout {
        // SAFETY: reads what is scheduled in this backend.
        let is_set = unsafe { get_timeout_active(STATEMENT_TIMEOUT) };
        StatementTimeout { is_set }
    }

    /// 57014, as the server says it, where it has run out since.
    pub fn ensure_runs(self) -> Result<()> {
        match self.is_set && !StatementTimeout::now().is_set {
            true => Err(Error::new(
                Kind::Cancelled,
                "canceling statement due to statement timeout",
            )),
            false => Ok(()),
        }
    }
}
