//! The user's tables, for a plain UPDATE of one row without the executor. See `machine/direct.rs`.

use super::entries::Wants;
use super::{ScanKey, Slot, Snapshot, Table};
use pgrx::pg_sys::{self, Oid};

const FOR_UPDATE: i16 = pg_sys::TRIGGER_TYPE_UPDATE as i16;

/// The rules for a value that is written to a column.
pub struct ColumnRules {
    pub not_null: bool,
    /// GENERATED ALWAYS AS IDENTITY.
    pub is_identity_always: bool,
    /// Length, or precision and scale; -1: none.
    pub modifier: i32,
}

impl Table {
    /// Opens one of the user's tables for writing, as a statement would. None: the table was dropped.
    pub fn of_user(oid: Oid) -> Option<Table> {
        // SAFETY: null if the table was dropped.
        let rel = unsafe { pg_sys::try_table_open(oid, pg_sys::RowExclusiveLock as i32) };
        (!rel.is_null()).then(|| Table { rel })
    }

    /// Whether the caller may read and update the whole table. False if an extension's hook checks rights. A caller who
    /// has rights only on single columns gets false, too: the executor checks these.
    pub fn is_open_to_caller(&self) -> bool {
        let mode = pg_sys::AclMode::from(pg_sys::ACL_SELECT | pg_sys::ACL_UPDATE);
        let all = pg_sys::AclMaskHow::ACLMASK_ALL;
        // SAFETY: reads the system caches and a variable of this backend.
        unsafe {
            let hook = (&raw const pg_sys::ExecutorCheckPerms_hook).read();
            let user = pg_sys::GetUserId();
            hook.is_none()
                && pg_sys::pg_class_aclmask(self.oid(), user, mode, all) == mode
                && may_use_schema((*(*self.rel).rd_rel).relnamespace, user)
        }
    }

    /// The row that a unique index finds under this snapshot.
    pub fn find_by(&self, index: Oid, keys: &mut [ScanKey], snapshot: &Snapshot) -> Option<Slot> {
        self.scan_by(index, keys, snapshot, Wants::Rows).into_next()
    }

    /// Raises the server's error for an UPDATE of a published table without a replica identity.
    pub fn ensure_replicated(&self) {
        // SAFETY: the relation is open.
        unsafe { pg_sys::CheckCmdReplicaIdentity(self.rel, pg_sys::CmdType::CMD_UPDATE) };
    }

    /// Whether an UPDATE of these columns fires `known` triggers. The answer is None in these cases:
    /// - The table is a partition, a parent or no heap, or it has rules or policies.
    /// - A new row version needs a generated value or the check of a NOT NULL.
    /// - The UPDATE may need the check of a foreign key.
    /// - An UPDATE trigger is neither `known` nor one of the server's own triggers for foreign keys.
    pub fn plain(&self, written: &[i16], known: impl Fn(&pg_sys::Trigger) -> bool) -> Option<bool> {
        // SAFETY: the relation is open, so `rd_rel` points to its copy of the pg_class row.
        let is_plain = unsafe {
            let class = &*(*self.rel).rd_rel;
            class.relkind as u8 == pg_sys::RELKIND_RELATION
                && class.relam == pg_sys::HEAP_TABLE_AM_OID
                && !class.relispartition
                && !class.relhassubclass
                && !class.relhasrules
                && !class.relrowsecurity
        };
        match is_plain && !self.computes() && !self.is_in_key(written) {
            true => self.fires(known),
            false => None,
        }
    }

    /// Whether a new row version needs a generated value or the check of a NOT NULL. `machine/direct.rs` writes no NULL
    /// to a NOT NULL column, and copies the other columns from the older version. From 18 on, a NOT NULL can be NOT
    /// VALID, and the older version can then have a NULL. Only such a NOT NULL needs the check.
    fn computes(&self) -> bool {
        let Some(constraints) = self.constraints() else {
            return false;
        };
        let own = constraints.has_generated_stored;
        #[cfg(feature = "pg18")]
        // SAFETY: the relation is open, so its tuple descriptor is there.
        let own = own
            || constraints.has_generated_virtual
            || unsafe { has_unproven_not_null((*self.rel).rd_att) };
        own
    }

    /// Whether the table has CHECK constraints, which each new row version must pass.
    pub fn has_checks(&self) -> bool {
        self.constraints().is_some_and(|c| c.num_check > 0)
    }

    fn constraints(&self) -> Option<&pg_sys::TupleConstr> {
        // SAFETY: the relation is open, so its tuple descriptor is there.
        unsafe { (*(*self.rel).rd_att).constr.as_ref() }
    }

    /// Whether the table has rules or BEFORE ROW triggers. An enabled one can silently suppress a write.
    pub fn may_keep_rows_back(&self) -> bool {
        let before_row = (pg_sys::TRIGGER_TYPE_BEFORE | pg_sys::TRIGGER_TYPE_ROW) as i16;
        // SAFETY: the relation is open; null where it has no rules.
        let has_rules = unsafe { !(*self.rel).rd_rules.is_null() };
        let may = |t: &pg_sys::Trigger| t.tgtype & before_row == before_row;
        has_rules || self.all_triggers().iter().any(may)
    }

    fn all_triggers(&self) -> &[pg_sys::Trigger] {
        // SAFETY: as in constraints; the array has numtriggers elements.
        unsafe {
            match (*self.rel).trigdesc {
                none if none.is_null() => &[],
                all => std::slice::from_raw_parts((*all).triggers, (*all).numtriggers as usize),
            }
        }
    }

    fn fires(&self, known: impl Fn(&pg_sys::Trigger) -> bool) -> Option<bool> {
        let mut found = false;
        for trigger in self
            .all_triggers()
            .iter()
            .filter(|t| t.tgtype & FOR_UPDATE != 0)
        {
            // SAFETY: only compares oids.
            let key = unsafe { pg_sys::RI_FKey_trigger_type(trigger.tgfoid) };
            if known(trigger) {
                found = true;
            } else if !trigger.tgisinternal || key == pg_sys::RI_TRIGGER_NONE as i32 {
                return None;
            }
        }
        Some(found)
    }

    /// The foreign keys of this table, not those that point to it.
    fn references(&self) -> Vec<pg_sys::ForeignKeyCacheInfo> {
        // SAFETY: the relation is open; its list and the list's elements live until the next invalidation message.
        unsafe {
            let list = pg_sys::RelationGetFKeyList(self.rel);
            let length = if list.is_null() { 0 } else { (*list).length };
            let key = |i| (*(*list).elements.add(i as usize)).ptr_value;
            (0..length).map(|i| *key(i).cast()).collect()
        }
    }

    /// Whether the table has foreign keys of its own. A deferred check skips a row version that is replaced before the
    /// commit. So an UPDATE of a version that the transaction itself has written must fire the check again.
    pub fn has_references(&self) -> bool {
        !self.references().is_empty()
    }

    /// Whether one of the columns is in a foreign key, or in a unique index (a foreign key may point to its columns).
    /// Always true if the table has a foreign key with MATCH FULL. If such a key is NOT VALID, an older row can have
    /// NULLs in some of its columns, and an UPDATE that leaves them there raises an error.
    fn is_in_key(&self, columns: &[i16]) -> bool {
        let in_index = |number: &i16| {
            // SAFETY: the relation is open; the bitmap is a copy.
            unsafe {
                let which = pg_sys::IndexAttrBitmapKind::INDEX_ATTR_BITMAP_KEY;
                let keys = pg_sys::RelationGetIndexAttrBitmap(self.rel, which);
                let bit = i32::from(*number) - pg_sys::FirstLowInvalidHeapAttributeNumber;
                pg_sys::bms_is_member(bit, keys)
            }
        };
        let referring = |key: &pg_sys::ForeignKeyCacheInfo| {
            let own = &key.conkey[..key.nkeys as usize];
            own.iter().any(|number| columns.contains(number)) || matches_in_full(key.conoid)
        };
        columns.iter().any(in_index) || self.references().iter().any(referring)
    }

    /// The rules of a column. None: there is no such column.
    pub fn column_rules(&self, number: i16) -> Option<ColumnRules> {
        // SAFETY: looks into the system cache; the tuple is a row of pg_attribute until it is released.
        unsafe {
            let tuple = pg_sys::SearchSysCacheAttNum((*self.rel).rd_id, number);
            if tuple.is_null() {
                return None;
            }
            let form: *const pg_sys::FormData_pg_attribute = pg_sys::GETSTRUCT(tuple).cast();
            let rules = ColumnRules {
                not_null: (*form).attnotnull,
                is_identity_always: (*form).attidentity as u8 == pg_sys::ATTRIBUTE_IDENTITY_ALWAYS,
                modifier: (*form).atttypmod,
            };
            pg_sys::ReleaseSysCache(tuple);
            Some(rules)
        }
    }

    pub fn dropped_columns(&self) -> Vec<usize> {
        // SAFETY: looks into the system cache; a dropped column has no type.
        let dropped = |i: &usize| unsafe {
            pg_sys::get_atttype((*self.rel).rd_id, *i as i16) == pg_sys::InvalidOid
        };
        (1..=self.columns()).filter(dropped).collect()
    }

    /// Finds a valid unique btree whose only key is this column, under the column's collation; the index has no
    /// predicate. Returns the index, its equality function and its collation.
    pub fn unique_index_on(&self, number: i16) -> Option<(Oid, Oid, Oid)> {
        let (mut type_oid, mut typmod, mut collation) = (pg_sys::InvalidOid, 0, pg_sys::InvalidOid);
        // SAFETY: the relation is open; indexes of its list are there while it is locked.
        unsafe {
            pg_sys::get_atttypetypmodcoll(
                (*self.rel).rd_id,
                number,
                &mut type_oid,
                &mut typmod,
                &mut collation,
            );
            let list = pg_sys::RelationGetIndexList(self.rel);
            let length = if list.is_null() { 0 } else { (*list).length };
            (0..length).find_map(|i| {
                let oid = (*(*list).elements.add(i as usize)).oid_value;
                let index = pg_sys::index_open(oid, pg_sys::AccessShareLock as i32);
                let found = usable(index, number, collation);
                pg_sys::index_close(index, pg_sys::AccessShareLock as i32);
                found.map(|equal| (oid, equal, collation))
            })
        }
    }
}

/// Whether a column has a NOT NULL that existing rows may break (NOT VALID, from 18 on).
#[cfg(feature = "pg18")]
unsafe fn has_unproven_not_null(desc: pg_sys::TupleDesc) -> bool {
    // SAFETY: as the caller says; a descriptor has natts compact attributes.
    let columns = unsafe { (*desc).compact_attrs.as_slice((*desc).natts as usize) };
    columns.iter().any(|column| {
        ![pg_sys::ATTNULLABLE_UNRESTRICTED, pg_sys::ATTNULLABLE_VALID]
            .contains(&(column.attnullability as u8))
    })
}

/// True for a foreign key with MATCH FULL, and for a missing foreign key.
fn matches_in_full(constraint: Oid) -> bool {
    // SAFETY: looks into the system cache; the tuple is a row of pg_constraint until it is released.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::CONSTROID as i32;
        let tuple = pg_sys::SearchSysCache1(cache, constraint.into());
        if tuple.is_null() {
            return true;
        }
        let form: *const pg_sys::FormData_pg_constraint = pg_sys::GETSTRUCT(tuple).cast();
        let full = (*form).confmatchtype as u8 == pg_sys::FKCONSTR_MATCH_FULL;
        pg_sys::ReleaseSysCache(tuple);
        full
    }
}

/// The equality function of an index, if the index finds rows by this column alone.
unsafe fn usable(index: pg_sys::Relation, number: i16, collation: Oid) -> Option<Oid> {
    // SAFETY: the index is open.
    unsafe {
        let form = &*(*index).rd_index;
        let tuple = (*index).rd_indextuple;
        let predicate = pg_sys::Anum_pg_index_indpred as i32;
        let whole = pg_sys::heap_attisnull(tuple, predicate, std::ptr::null_mut());
        let fits = form.indisunique
            && form.indisvalid
            && form.indisready
            && form.indimmediate
            // Older snapshots could miss rows.
            && !form.indcheckxmin
            && form.indnkeyatts == 1
            && form.indkey.values.as_slice(1)[0] == number
            && whole
            && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && *(*index).rd_indcollation == collation;
        if !fits {
            return None;
        }
        let (family, kind) = (*(*index).rd_opfamily, *(*index).rd_opcintype);
        let strategy = pg_sys::BTEqualStrategyNumber as i16;
        let operator = pg_sys::get_opfamily_member(family, kind, kind, strategy);
        let function = pg_sys::get_opcode(operator);
        // A user's operator class may define another equality.
        let own = u32::from(function) < pg_sys::FirstGenbkiObjectId;
        (operator != pg_sys::InvalidOid && own).then_some(function)
    }
}

/// A statement that names a table also needs USAGE on the table's schema.
fn may_use_schema(schema: Oid, user: Oid) -> bool {
    let usage = pg_sys::AclMode::from(pg_sys::ACL_USAGE);
    // SAFETY: reads the system caches.
    let result = unsafe {
        #[cfg(feature = "pg15")]
        let result = pg_sys::pg_namespace_aclcheck(schema, user, usage);
        #[cfg(not(feature = "pg15"))]
        let result = pg_sys::object_aclcheck(pg_sys::NamespaceRelationId, schema, user, usage);
        result
    };
    result == pg_sys::AclResult::ACLCHECK_OK
}
