//! The write that fired a trigger: the old and the new row, and their columns by number.

use crate::call::Call;
use crate::error::{Error, Kind, Result};
use crate::machine::model::Machine;
use crate::machine::relation::{UserColumn, column_of};
use crate::machine::sql;
use crate::machine::statement::NO;
use crate::spi::{SwitchedUser, yes};
use pgrx::pg_sys::{self, Datum, Oid};
use std::ffi::CStr;

/// $1 the row.
const WHEN: &str = "SELECT ({when}) IS TRUE FROM (SELECT ($1).*) AS t";

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    Insert,
    Update,
    Delete,
}

/// A trigger's call for one row, before the write or at the end of the statement.
#[derive(Clone, Copy)]
pub struct RowEvent {
    data: *mut pg_sys::TriggerData,
    pub kind: WriteKind,
}

/// The old or the new row of a trigger's call.
#[derive(Clone, Copy)]
pub struct RowVersion {
    raw: pg_sys::HeapTuple,
    slot: *mut pg_sys::TupleTableSlot,
}

impl RowEvent {
    /// The event of a row trigger's call; any other call is an error.
    pub fn fired_by(call: &Call) -> Result<RowEvent> {
        const AFTER_ROW: u32 = pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_AFTER;
        const BEFORE_ROW: u32 = pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_BEFORE;
        let event = trigger_of(call.fcinfo()).and_then(|data| {
            // SAFETY: the call's own structure.
            let event = unsafe { (*data).tg_event };
            let when = event & (pg_sys::TRIGGER_EVENT_ROW | pg_sys::TRIGGER_EVENT_TIMINGMASK);
            let kind = match event & pg_sys::TRIGGER_EVENT_OPMASK {
                pg_sys::TRIGGER_EVENT_INSERT => WriteKind::Insert,
                pg_sys::TRIGGER_EVENT_DELETE => WriteKind::Delete,
                _ => WriteKind::Update,
            };
            matches!(when, AFTER_ROW | BEFORE_ROW).then_some(RowEvent { data, kind })
        });
        event.ok_or_else(|| {
            Error::new(
                Kind::NotInstalled,
                "a guard of pg_once is a trigger FOR EACH ROW and cannot be called",
            )
            .hint("Turn the guard on with once.machine_guard(machine, true).")
        })
    }

    /// The trigger's argument: the machine's name in the database's encoding.
    pub fn machine<'a>(&self) -> &'a [u8] {
        // SAFETY: the relation stays open and the trigger's argument stays valid until the call ends.
        unsafe {
            let trigger = (*self.data).tg_trigger;
            match (*trigger).tgnargs {
                0 => &[],
                _ => CStr::from_ptr(*(*trigger).tgargs).to_bytes(),
            }
        }
    }

    /// The table, or the partition, that is written.
    pub fn relation(&self) -> Oid {
        // SAFETY: the relation is open while its trigger runs.
        unsafe { (*(*self.data).tg_relation).rd_id }
    }

    pub fn trigger(&self) -> Oid {
        // SAFETY: the relation is open while its trigger runs.
        unsafe { (*(*self.data).tg_trigger).tgoid }
    }

    /// Whether this is an AFTER trigger's call for the DELETE half of a move to another partition. The heap marks the
    /// old version of a moved row. Some access methods do not, so each DELETE in their partitions counts as a move.
    pub fn is_move(&self) -> bool {
        // SAFETY: the call's own structure, whose relation is open while its trigger runs; an event has a row.
        unsafe {
            let timing = (*self.data).tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK;
            let class = (*(*self.data).tg_relation).rd_rel;
            let next = (*(*(*self.data).tg_trigtuple).t_data).t_ctid;
            timing == pg_sys::TRIGGER_EVENT_AFTER
                && (*class).relispartition
                && ((*class).relam != pg_sys::HEAP_TABLE_AM_OID || is_moved(next))
        }
    }

    pub fn old(&self) -> Option<RowVersion> {
        (self.kind != WriteKind::Insert).then(|| self.trigger_tuple())
    }

    pub fn written(&self) -> Option<RowVersion> {
        match self.kind {
            WriteKind::Insert => Some(self.trigger_tuple()),
            // SAFETY: an update has a new row.
            WriteKind::Update => unsafe {
                Some(RowVersion {
                    raw: (*self.data).tg_newtuple,
                    slot: (*self.data).tg_newslot,
                })
            },
            WriteKind::Delete => None,
        }
    }

    /// The trigger's result that lets the row pass; the server ignores the result of an AFTER trigger.
    pub fn pass(&self) -> Datum {
        self.written()
            .or(self.old())
            .map_or(Datum::from(0), |t| Datum::from(t.raw))
    }

    fn trigger_tuple(&self) -> RowVersion {
        // SAFETY: every row event has this tuple, in this slot.
        unsafe {
            RowVersion {
                raw: (*self.data).tg_trigtuple,
                slot: (*self.data).tg_trigslot,
            }
        }
    }

    /// Finds a machine's column in the written table; a partition may have other column numbers.
    pub fn column(&self, column: &UserColumn) -> Result<GuardedColumn> {
        let here = column_of(self.relation(), &column.plain);
        let here = here.ok_or_else(|| {
            Error::new(
                Kind::InvalidDefinition,
                format!("column {} of a guarded table is gone", column.name),
            )
            .hint("Define the machine again, or take its guard off.")
        })?;
        Ok(GuardedColumn::of_column(&here))
    }
}

/// The server's macro ItemPointerIndicatesMovedPartitions.
fn is_moved(next: pg_sys::ItemPointerData) -> bool {
    let (block, offset) = pgrx::itemptr::item_pointer_get_both(next);
    block == pg_sys::InvalidBlockNumber && u32::from(offset) == pg_sys::MovedPartitionsOffsetNumber
}

/// The data of a trigger's call; None for any other call.
fn trigger_of(fcinfo: pg_sys::FunctionCallInfo) -> Option<*mut pg_sys::TriggerData> {
    // SAFETY: fcinfo is what the server passed; a trigger's context is a node of this type.
    unsafe {
        let context = (*fcinfo).context;
        let is_trigger = !context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData;
        is_trigger.then_some(context.cast())
    }
}

/// A column of a guarded table: its number and its type.
#[derive(Clone, Copy)]
pub struct GuardedColumn {
    pub number: i16,
    type_oid: Oid,
    modifier: i32,
    by_value: bool,
    length: i16,
}

impl GuardedColumn {
    fn of_column(column: &UserColumn) -> GuardedColumn {
        let (mut length, mut by_value) = (0i16, false);
        // SAFETY: looks into the system cache.
        unsafe { pg_sys::get_typlenbyval(column.type_oid, &mut length, &mut by_value) };
        GuardedColumn {
            number: column.number,
            type_oid: column.type_oid,
            modifier: column.modifier,
            by_value,
            length,
        }
    }

    pub fn value_in(&self, row: &RowVersion) -> Option<Datum> {
        // SAFETY: the slot holds a row of its table, and the number is that of a column; column numbers begin at 1.
        unsafe {
            if (*row.slot).tts_nvalid < self.number {
                pg_sys::slot_getsomeattrs_int(row.slot, self.number.into());
            }
            let i = self.number as usize - 1;
            (!*(*row.slot).tts_isnull.add(i)).then(|| *(*row.slot).tts_values.add(i))
        }
    }

    /// Whether two rows have the same value in this column, byte by byte.
    pub fn is_same(&self, a: &RowVersion, b: &RowVersion) -> bool {
        match (self.value_in(a), self.value_in(b)) {
            (None, None) => true,
            (Some(a), Some(b)) if self.by_value => a.value() == b.value(),
            // SAFETY: two values of the column's type.
            (Some(a), Some(b)) => unsafe {
                pg_sys::datum_image_eq(a, b, false, self.length.into())
            },
            _ => false,
        }
    }

    /// The value as the server prints it; None for NULL.
    pub fn text(&self, row: &RowVersion) -> Option<Vec<u8>> {
        self.value_in(row).map(|value| self.printed(value))
    }

    fn printed(&self, value: Datum) -> Vec<u8> {
        let (mut output, mut is_varlena) = (pg_sys::InvalidOid, false);
        // SAFETY: the type's own output function on a value of the type.
        unsafe {
            pg_sys::getTypeOutputInfo(self.type_oid, &mut output, &mut is_varlena);
            let text = pg_sys::OidOutputFunctionCall(output, value);
            CStr::from_ptr(text).to_bytes().to_vec()
        }
    }

    /// Prints a literal of the definition as the server would.
    pub fn canonical(&self, literal: &str) -> Result<Vec<u8>> {
        let plain = std::ffi::CString::new(crate::call::from_utf8(literal).into_owned())
            .map_err(|_| Error::new(Kind::InvalidDefinition, "a literal has a NUL byte"))?;
        let (mut input, mut parameter) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
        // SAFETY: the type's own input function; machine_define has checked that the type accepts the literal.
        let value = unsafe {
            pg_sys::getTypeInputInfo(self.type_oid, &mut input, &mut parameter);
            let literal = plain.as_ptr().cast_mut();
            pg_sys::OidInputFunctionCall(input, literal, parameter, self.modifier)
        };
        Ok(self.printed(value))
    }

    pub fn is_true(&self, row: &RowVersion) -> bool {
        self.value_in(row).is_some_and(|d| d.value() != 0)
    }
}

impl RowVersion {
    /// Whether a `when` of the machine is true for this row of the table. The writer's search_path is not used.
    pub fn satisfies(&self, machine: &Machine, table: Oid, when: &str) -> Result<bool> {
        let _path = SwitchedUser::caller_by_pinned_path();
        // SAFETY: looks into the system cache.
        let row_type = unsafe { pg_sys::get_rel_type_id(table) };
        let key = format!("when\0{}\0{when}", table.to_u32());
        let plan = machine.plan(&key, &[row_type], [NO; 3], || {
            sql::fill(WHEN, &[("when", when)])
        })?;
        // SAFETY: the slot's descriptor describes the tuple, and the call copies the tuple.
        let row =
            unsafe { pg_sys::heap_copy_tuple_as_datum(self.raw, (*self.slot).tts_tupleDescriptor) };
        let rows = plan.query(&[Some(row)])?;
        Ok(rows.first().is_some_and(|row| yes(row, 0)))
    }
}
