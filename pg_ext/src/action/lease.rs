//! One row of `once.action_lease`, with names for its columns (in the order of `sql/action.sql`).

use crate::call::{from_utf8, shown};
use crate::clock;
use crate::error::Result;
use crate::machine::id::RowId;
use crate::machine::model::Machine;
use crate::row;
use crate::table::{self, Name, ScanKey, Snapshot, Table};
use pgrx::pg_sys::Datum;

pub const TABLE: Name = c"action_lease";
const BY_ID: Name = c"action_lease_pkey";
pub const BY_LOOK: Name = c"action_lease_look";

/// How long an ended lease is kept, to answer a repeated call that presents its token.
pub const REMEMBERED_US: i64 = clock::DAY_US;

/// Column numbers, from 1.
#[derive(Clone, Copy)]
pub enum LeaseCol {
    Token = 1,
    LeaseUntil,
    LookAt,
    EndedAt,
    LastCall,
    EndedVersion,
    Failures,
    Attempts,
    LeaseState,
    Id,
    Machine,
    RowId,
    ClaimInto,
    RevertTo,
    StepKey,
    /// The status that the step began in; NULL: the same as revert_to.
    StepStatus,
    SuccessfulState,
    Requester,
    Holder,
    Note,
    /// The tokens of the last finished actions, the oldest first.
    FinishedTokens,
}

const COLUMNS: usize = 21;

/// How many tokens of finished actions (8 bytes each) a lease remembers. A worker that lost the answer of action_finish
/// may repeat the call late, after other workers have finished the next steps.
const REMEMBERED_TOKENS: usize = 8;

table::columns!(LeaseCol);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LeaseState {
    Held = b'h',
    Finished = b'f',
    Released = b'l',
    Swept = b's',
}

impl LeaseState {
    fn from_code(code: u8) -> LeaseState {
        match code {
            b'f' => LeaseState::Finished,
            b'l' => LeaseState::Released,
            b's' => LeaseState::Swept,
            // An unknown code (of a newer library) counts as held.
            _ => LeaseState::Held,
        }
    }
}

pub type Lease = table::Record<LeaseCol, COLUMNS>;

impl Lease {
    /// The lease of a machine's row under a snapshot.
    pub fn find(
        table: &Table,
        machine: &Machine,
        id: &RowId,
        snapshot: &Snapshot,
    ) -> Result<Option<Lease>> {
        Lease::find_by_key(table, &id.key(machine.name()), snapshot)
    }

    pub fn find_by_key(
        table: &Table,
        key: &[u8; 16],
        snapshot: &Snapshot,
    ) -> Result<Option<Lease>> {
        let keys = &mut [ScanKey::uuid(1, row::uuid(key))];
        Ok(table.find(BY_ID, keys, snapshot)?.map(Lease::load))
    }

    /// A row's lease in the latest snapshot.
    pub fn latest(machine: &Machine, id: &RowId) -> Result<Option<Lease>> {
        Lease::find(&Table::to_read(TABLE)?, machine, id, &Snapshot::latest())
    }

    pub fn state(&self) -> LeaseState {
        LeaseState::from_code(
            self.raw(LeaseCol::LeaseState)
                .map_or(0, |d| d.value() as u8),
        )
    }

    /// The part of a lease that no other session can change while this session has the user's row locked.
    pub fn mark(&self) -> (i64, LeaseState) {
        (self.i64(LeaseCol::Token), self.state())
    }

    pub fn put_state(&mut self, state: LeaseState) {
        self.put(LeaseCol::LeaseState, Some(Datum::from(state as u8)));
    }

    /// The lease's key, a hash of the machine and the row's id.
    pub fn key(&self) -> Option<[u8; 16]> {
        // SAFETY: a uuid datum points at 16 bytes of the stored row.
        self.raw(LeaseCol::Id)
            .map(|d| unsafe { *d.cast_mut_ptr::<[u8; 16]>() })
    }

    /// Sets the columns that are the same for a claim and an adoption, among them the next token.
    pub fn begin(&mut self, machine: &Machine, id: &RowId, now: i64, lease_us: i64) {
        self.put_i64(
            LeaseCol::Token,
            clock::next_token(self.i64(LeaseCol::Token)),
        );
        self.put_i64(LeaseCol::LeaseUntil, now + lease_us);
        self.put_i64(LeaseCol::LookAt, now + lease_us);
        self.put(LeaseCol::EndedAt, None);
        self.put_i64(LeaseCol::LastCall, 0);
        self.put(LeaseCol::EndedVersion, None);
        self.put_i32(LeaseCol::Failures, 0);
        self.put_state(LeaseState::Held);
        self.put(LeaseCol::Id, Some(row::uuid(&id.key(machine.name()))));
        self.put_text(LeaseCol::Machine, Some(&from_utf8(machine.name())));
        self.put_text(LeaseCol::RowId, Some(&id.text));
        self.put(LeaseCol::Note, None);
    }

    /// The last tokens that finished an action of the row, the oldest first.
    fn finished_tokens(&self) -> impl Iterator<Item = i64> {
        let bytes = self.bytes(LeaseCol::FinishedTokens).unwrap_or_default();
        let (tokens, _) = bytes.as_chunks();
        tokens.iter().map(|token| i64::from_be_bytes(*token))
    }

    pub fn was_finished_by(&self, token: i64) -> bool {
        self.finished_tokens().any(|finished| finished == token)
    }

    /// Whether the list of finished tokens may have dropped this token: it is full, and all its tokens are newer.
    pub fn may_have_forgotten(&self, token: i64) -> bool {
        self.finished_tokens().count() >= REMEMBERED_TOKENS
            && self.finished_tokens().all(|finished| token < finished)
    }

    /// Whether the lease is held, and `status` is its claim state. A held lease with another claim state is dead.
    pub fn covers(&self, status: &[u8]) -> bool {
        self.state() == LeaseState::Held && self.bytes(LeaseCol::ClaimInto) == Some(status)
    }

    pub fn text(&self, col: LeaseCol) -> String {
        let bytes = self.bytes(col).unwrap_or_default();
        shown(bytes)
    }

    pub fn began_in(&self) -> String {
        let status = self.bytes(LeaseCol::StepStatus).map(shown);
        status.unwrap_or_else(|| self.text(LeaseCol::RevertTo))
    }

    /// Ends the lease. `mark`: the `call_mark` of an action_finish, to recognise its repetition; else 0.
    pub fn end(&mut self, state: LeaseState, now: i64, mark: i64, version: Option<Datum>) {
        if state == LeaseState::Finished {
            let mut tokens: Vec<_> = self.finished_tokens().collect();
            tokens.push(self.i64(LeaseCol::Token));
            let oldest = tokens.len().saturating_sub(REMEMBERED_TOKENS);
            let bytes: Vec<u8> = tokens[oldest..]
                .iter()
                .flat_map(|t| t.to_be_bytes())
                .collect();
            self.put_text(LeaseCol::FinishedTokens, Some(&bytes));
        }
        self.put_state(state);
        self.put_i64(LeaseCol::EndedAt, now);
        self.put_i64(LeaseCol::LastCall, mark);
        self.put(LeaseCol::EndedVersion, version);
    }
}
