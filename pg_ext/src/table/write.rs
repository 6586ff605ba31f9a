//! Insert, update, lock and delete of one row.

use super::{Name, Slot, Snapshot, Table};
use crate::error::{Error, Kind, Result};
use pgrx::pg_sys::{self, Datum, ItemPointerData, TM_Result};

/// How a write of one row ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOutcome {
    Done,
    /// Another transaction changed or deleted the row and committed.
    Changed,
    /// Another open transaction holds the row. Only [`Table::lock`] with `Wait::No` returns this.
    Busy,
}

/// Whether a lock waits for another transaction that holds the row. An update always waits, so a caller that must not
/// wait locks the row first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    Yes,
    No,
}

/// False in a READ ONLY transaction and on a standby.
pub fn is_writable() -> bool {
    // SAFETY: both read this server's state.
    unsafe { !(pg_sys::XactReadOnly || pg_sys::RecoveryInProgress()) }
}

/// 25006 in a READ ONLY transaction and on a standby.
pub fn ensure_writable(name: Name) -> Result<()> {
    match is_writable() {
        false => Err(Error::read_only(format!("once.{}", name.to_string_lossy()))),
        true => Ok(()),
    }
}

impl Table {
    /// Inserts one row; the caller has made sure that no unique index refuses it.
    pub fn insert(&self, row: &[Option<Datum>]) -> Result<()> {
        let slot = self.filled_slot(row)?;
        // SAFETY: the slot holds a complete virtual row of this table.
        unsafe { pg_sys::simple_table_tuple_insert(self.rel, slot.raw) };
        self.index(&slot, row, Indexes::AllNew);
        Ok(())
    }

    /// Replaces the row at `tid`; waits for a transaction that holds it.
    pub fn update(&self, tid: ItemPointerData, row: &[Option<Datum>]) -> Result<WriteOutcome> {
        self.replace(tid, self.filled_slot(row)?, row)
    }

    /// Like [`Table::update`], but raises the error of a CHECK before it writes or waits.
    pub fn update_checked(
        &self,
        tid: ItemPointerData,
        row: &[Option<Datum>],
    ) -> Result<WriteOutcome> {
        let slot = self.filled_slot(row)?;
        if self.has_checks() {
            // SAFETY: the slot holds a complete row of this table, which has constraints; a CHECK may read tableoid.
            self.as_target(|info, estate| unsafe {
                (*slot.raw).tts_tableOid = self.oid();
                pg_sys::ExecConstraints(info, slot.raw, estate);
            });
        }
        self.replace(tid, slot, row)
    }

    fn replace(
        &self,
        tid: ItemPointerData,
        slot: Slot,
        row: &[Option<Datum>],
    ) -> Result<WriteOutcome> {
        let mut tid = tid;
        let mut failure = pg_sys::TM_FailureData::default();
        let mut mode = 0;
        let mut update_indexes = Default::default();
        // SAFETY: the table's own access method, called as the executor does; every argument is plain data that
        // outlives the call. A function pointer must be called through pg_guard_ffi_boundary.
        let result = unsafe {
            let update = (*(*self.rel).rd_tableam).tuple_update;
            let (rel, raw) = (self.rel, slot.raw);
            let (tid, failure) = (&raw mut tid, &raw mut failure);
            let (mode, indexes) = (&raw mut mode, &raw mut update_indexes);
            let nothing = std::ptr::null_mut();
            // The heap requires `true`: with `false` it asserts that no transaction holds the row.
            let wait = true;
            let cid = pg_sys::GetCurrentCommandId(true);
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                update.map(|f| {
                    f(
                        rel, tid, raw, cid, nothing, nothing, wait, failure, mode, indexes,
                    )
                })
            })
        };
        let outcome = outcome(result)?;
        if outcome == WriteOutcome::Done
            && let Some(indexes) = stale_indexes(update_indexes)
        {
            self.index(&slot, row, indexes);
        }
        Ok(outcome)
    }

    /// True if an open transaction, perhaps this one, has locked the row. Also true if another open transaction has
    /// updated or deleted the row. An update of such a row may have to wait.
    pub fn is_held(&self, tid: ItemPointerData) -> bool {
        let mut tuple = pg_sys::HeapTupleData {
            t_self: tid,
            ..Default::default()
        };
        let mut buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
        // SAFETY: the table is an open heap; the page of a found row is pinned, and locked while it is read.
        unsafe {
            let any = &raw mut pg_sys::SnapshotAnyData;
            if !pg_sys::heap_fetch(self.rel, any, &mut tuple, &mut buffer, false) {
                return false;
            }
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let cid = pg_sys::GetCurrentCommandId(false);
            let result = pg_sys::HeapTupleSatisfiesUpdate(&mut tuple, cid, buffer);
            pg_sys::UnlockReleaseBuffer(buffer);
            result == TM_Result::TM_BeingModified
        }
    }

    /// Locks the row at `tid` as an update would, without writing it.
    pub fn lock(
        &self,
        tid: ItemPointerData,
        snapshot: &Snapshot,
        wait: Wait,
    ) -> Result<WriteOutcome> {
        let slot = self.slot();
        let mut tid = tid;
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: as in update.
        let result = unsafe {
            let lock = (*(*self.rel).rd_tableam).tuple_lock;
            let (rel, raw, snapshot) = (self.rel, slot.raw, snapshot.raw());
            let (tid, failure) = (&raw mut tid, &raw mut failure);
            let policy = match wait {
                Wait::Yes => pg_sys::LockWaitPolicy::LockWaitBlock,
                Wait::No => pg_sys::LockWaitPolicy::LockWaitSkip,
            };
            let cid = pg_sys::GetCurrentCommandId(false);
            let mode = pg_sys::LockTupleMode::LockTupleNoKeyExclusive;
            pg_sys::ffi::pg_guard_ffi_boundary(|| {
                lock.map(|f| f(rel, tid, snapshot, raw, cid, mode, policy, 0, failure))
            })
        };
        outcome(result)
    }

    /// Deletes the row at `tid`, which the caller has locked.
    pub fn delete(&self, tid: ItemPointerData, snapshot: &Snapshot) {
        let mut tid = tid;
        // SAFETY: this transaction has locked the row, so no other can have changed it.
        unsafe { pg_sys::simple_table_tuple_delete(self.rel, &mut tid, snapshot.raw()) };
    }

    fn filled_slot(&self, row: &[Option<Datum>]) -> Result<Slot> {
        if row.len() != self.columns() {
            return Err(Error::new(
                Kind::NotInstalled,
                format!("a table of pg_once has {} columns instead of {}", self.columns(), row.len()),
            )
            .hint("Do not alter the extension's tables. If the library is newer than the extension, run ALTER EXTENSION pg_once UPDATE."));
        }
        let slot = self.slot();
        // SAFETY: the slot has room for natts values; `row` has exactly that many (checked).
        unsafe {
            for (i, value) in row.iter().enumerate() {
                *(*slot.raw).tts_values.add(i) = value.unwrap_or(Datum::from(0));
                *(*slot.raw).tts_isnull.add(i) = value.is_none();
            }
            pg_sys::ExecStoreVirtualTuple(slot.raw);
        }
        Ok(slot)
    }

    /// Adds entries for the stored row to the table's indexes, including those that a DBA has created.
    fn index(&self, slot: &Slot, row: &[Option<Datum>], which: Indexes) {
        if self.index_plainly(slot.tid(), row, which) {
            return;
        }
        // SAFETY: the same calls as in the server's own ExecSimpleRelationInsert and ExecSimpleRelationUpdate.
        self.as_target(|info, estate| unsafe {
            pg_sys::ExecOpenIndices(info, false);
            insert_index_entries(info, slot.raw, estate, which);
            pg_sys::ExecCloseIndices(info);
        });
    }

    /// Adds index entries without the executor's state. False: an index is not plain, and nothing was written.
    fn index_plainly(&self, tid: ItemPointerData, row: &[Option<Datum>], which: Indexes) -> bool {
        let indexes = OpenIndexes::of(self);
        if !indexes.are_plain() {
            return false;
        }
        let mut tid = tid;
        // A plain btree reads nothing of an IndexInfo.
        let mut info = pg_sys::IndexInfo {
            type_: pg_sys::NodeTag::T_IndexInfo,
            ..Default::default()
        };
        for index in &indexes.0 {
            let (mut values, mut nulls) = ([Datum::from(0); COLUMNS], [true; COLUMNS]);
            // SAFETY: the index is open and belongs to this table; its columns are columns of the row that is stored
            // at `tid`.
            unsafe {
                let form = (**index).rd_index;
                let columns = (*form).indkey.values.as_slice((*form).indnatts as usize);
                for (i, column) in columns.iter().enumerate() {
                    let value = row.get(*column as usize - 1).copied().flatten();
                    nulls[i] = value.is_none();
                    values[i] = value.unwrap_or(Datum::from(0));
                }
                let check = match (*form).indisunique {
                    true => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES,
                    false => pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO,
                };
                let (values, nulls) = (values.as_mut_ptr(), nulls.as_mut_ptr());
                let unchanged = which != Indexes::AllNew;
                pg_sys::index_insert(
                    *index, values, nulls, &mut tid, self.rel, check, unchanged, &mut info,
                );
            }
        }
        true
    }

    /// Calls `work` with the structures that the executor has for a statement that writes this table.
    fn as_target(&self, work: impl FnOnce(*mut pg_sys::ResultRelInfo, *mut pg_sys::EState)) {
        // SAFETY: the table is open; with range table index 0 the executor reads no list of updated columns. An
        // error frees `info` and `estate` with their memory context.
        unsafe {
            let estate = pg_sys::CreateExecutorState();
            let info: *mut pg_sys::ResultRelInfo =
                pg_sys::palloc0(std::mem::size_of::<pg_sys::ResultRelInfo>()).cast();
            (*info).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(info, self.rel, 0, std::ptr::null_mut(), 0);
            work(info, estate);
            pg_sys::FreeExecutorState(estate);
        }
    }
}

const COLUMNS: usize = pg_sys::INDEX_MAX_KEYS as usize;

struct OpenIndexes(Vec<pg_sys::Relation>);

impl OpenIndexes {
    fn of(table: &Table) -> OpenIndexes {
        // SAFETY: the table is open and locked for a write; the list is a copy.
        unsafe {
            let list =
                pgrx::PgList::<pg_sys::Oid>::from_pg(pg_sys::RelationGetIndexList(table.rel));
            let open = |oid| pg_sys::index_open(oid, pg_sys::RowExclusiveLock as i32);
            OpenIndexes(list.iter_oid().map(open).collect())
        }
    }

    /// Whether all indexes are ready btrees of plain columns, without a predicate or a deferrable constraint.
    fn are_plain(&self) -> bool {
        // SAFETY: the indexes are open; the columns of their pg_index rows exist.
        self.0.iter().all(|index| unsafe {
            let form = (**index).rd_index;
            let lacks = |column| {
                pg_sys::heap_attisnull((**index).rd_indextuple, column as i32, std::ptr::null_mut())
            };
            (*(**index).rd_rel).relam == pg_sys::BTREE_AM_OID
                && (*form).indisready
                && (*form).indimmediate
                && !(*form).indisexclusion
                && lacks(pg_sys::Anum_pg_index_indexprs)
                && lacks(pg_sys::Anum_pg_index_indpred)
        })
    }
}

impl Drop for OpenIndexes {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            for index in &self.0 {
                // SAFETY: opened by us. The lock ends here, as in the server's ExecCloseIndices.
                unsafe { pg_sys::index_close(*index, pg_sys::RowExclusiveLock as i32) };
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Indexes {
    AllNew,
    AllUpdated,
    /// After a HOT update: only the BRIN indexes (PostgreSQL 16 and later).
    #[cfg_attr(feature = "pg15", allow(dead_code))]
    OnlySummarizing,
}

fn outcome(result: Option<TM_Result::Type>) -> Result<WriteOutcome> {
    match result {
        Some(TM_Result::TM_Ok) => Ok(WriteOutcome::Done),
        Some(TM_Result::TM_Updated | TM_Result::TM_Deleted) => Ok(WriteOutcome::Changed),
        Some(TM_Result::TM_BeingModified | TM_Result::TM_WouldBlock) => Ok(WriteOutcome::Busy),
        other => Err(Error::internal(format!(
            "unexpected result {other:?} of a row write"
        ))),
    }
}

#[cfg(feature = "pg15")]
fn stale_indexes(update_indexes: bool) -> Option<Indexes> {
    update_indexes.then_some(Indexes::AllUpdated)
}

#[cfg(not(feature = "pg15"))]
fn stale_indexes(update_indexes: pg_sys::TU_UpdateIndexes::Type) -> Option<Indexes> {
    match update_indexes {
        pg_sys::TU_UpdateIndexes::TU_None => None,
        pg_sys::TU_UpdateIndexes::TU_Summarizing => Some(Indexes::OnlySummarizing),
        _ => Some(Indexes::AllUpdated),
    }
}

unsafe fn insert_index_entries(
    info: *mut pg_sys::ResultRelInfo,
    slot: *mut pg_sys::TupleTableSlot,
    estate: *mut pg_sys::EState,
    which: Indexes,
) {
    let nil: *mut pg_sys::List = std::ptr::null_mut();
    let update = which != Indexes::AllNew;
    // SAFETY: see the caller. There is no ON CONFLICT clause, so no list of arbiter indexes.
    unsafe {
        #[cfg(feature = "pg15")]
        pg_sys::ExecInsertIndexTuples(info, slot, estate, update, false, nil.cast(), nil);
        #[cfg(not(feature = "pg15"))]
        pg_sys::ExecInsertIndexTuples(
            info,
            slot,
            estate,
            update,
            false,
            nil.cast(),
            nil,
            which == Indexes::OnlySummarizing,
        );
    }
}
