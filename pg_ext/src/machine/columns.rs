//! The user's tables and columns for the checks of a definition: read once from the catalog, under a lock that is held
//! to the end of the transaction.

use super::faults::{Faults, quoted};
use crate::call::from_utf8;
use crate::error::Result;
use crate::row;
use crate::spi::{self, Kept, Plan, Row, column, oid, text, text_of, yes};
use crate::subxact;
use pgrx::pg_sys::{self, Datum, OIDOID, Oid};
use std::ffi::CStr;

/// Finds a table by the caller's search_path.
const BY_NAME: &str = "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid";

const TABLE: &CStr = c"
    SELECT pg_catalog.format('%I.%I', n.nspname, c.relname), c.relkind, c.relpersistence = 't',
           n.nspname IN ('pg_catalog', 'information_schema', 'pg_toast', 'once'),
           c.relkind = 'r' AND EXISTS (SELECT FROM pg_catalog.pg_inherits i WHERE i.inhparent = c.oid),
           (SELECT pg_catalog.min(r.rulename::text) FROM pg_catalog.pg_rewrite r
             WHERE r.ev_class = c.oid AND r.ev_enabled <> 'D')
      FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
     WHERE c.oid = $1";

// The length or precision of a domain is in pg_type, not in the column. A NOT NULL constraint that is not valid
// (PostgreSQL 18) does not count. A column of a partition key has an internal dependency on its table. The partition
// keys of parent and child tables are looked up, too.
const COLUMNS: &CStr = c"
    WITH RECURSIVE base (number, type, modifier) AS (
        SELECT a.attnum, a.atttypid, a.atttypmod FROM pg_catalog.pg_attribute a
         WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        SELECT b.number, t.typbasetype, t.typtypmod
          FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.type WHERE t.typtype = 'd'),
    family (relation) AS (
        SELECT $1::oid UNION SELECT relid::oid FROM pg_catalog.pg_partition_ancestors($1)
        UNION SELECT relid::oid FROM pg_catalog.pg_partition_tree($1)),
    partition_key (name) AS (
        SELECT k.attname FROM family f JOIN pg_catalog.pg_partitioned_table p ON p.partrelid = f.relation
          JOIN pg_catalog.pg_depend d ON d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = p.partrelid
           AND d.refclassid = d.classid AND d.refobjid = p.partrelid AND d.refobjsubid = 0 AND d.deptype = 'i'
          JOIN pg_catalog.pg_attribute k ON k.attrelid = p.partrelid AND k.attnum = d.objsubid)
    SELECT a.attname::text, b.type, b.modifier, pg_catalog.format_type(a.atttypid, a.atttypmod),
           CASE a.atttypmod WHEN -1 THEN (SELECT pg_catalog.format('%I.%I', n.nspname, w.typname)
                                            FROM pg_catalog.pg_type w
                                            JOIN pg_catalog.pg_namespace n ON n.oid = w.typnamespace
                                           WHERE w.oid = a.atttypid)
                            ELSE pg_catalog.format_type(a.atttypid, a.atttypmod) END,
           t.typtype = 'e',
           a.attnotnull AND NOT EXISTS (
               SELECT FROM pg_catalog.pg_constraint c
                WHERE c.conrelid = $1 AND c.contype = 'n' AND NOT c.convalidated AND c.conkey = ARRAY[a.attnum]),
           COALESCE(o.collisdeterministic, true),
           EXISTS (SELECT FROM pg_catalog.pg_index i
                    WHERE i.indrelid = $1 AND i.indisunique AND i.indisvalid AND i.indisready AND i.indimmediate
                      AND i.indpred IS NULL AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum),
           a.attgenerated <> '' OR a.attidentity = 'a',
           a.attname IN (SELECT name FROM partition_key),
           a.attgenerated <> ''
      FROM pg_catalog.pg_attribute a
      JOIN base b ON b.number = a.attnum
      JOIN pg_catalog.pg_type t ON t.oid = b.type AND t.typtype <> 'd'
      LEFT JOIN pg_catalog.pg_collation o ON o.oid = a.attcollation
     WHERE a.attrelid = $1
     ORDER BY a.attnum";

static ONE_TABLE: Kept = Kept::new(TABLE, &[OIDOID]);
static ITS_COLUMNS: Kept = Kept::new(COLUMNS, &[OIDOID]);

/// A table that a definition names.
pub struct DefinedTable {
    pub oid: Oid,
    /// Quoted and qualified.
    pub name: String,
    kind: u8,
    temporary: bool,
    system: bool,
    inherited: bool,
    /// The name of a rule that is not disabled.
    rule: Option<String>,
    columns: Vec<DefinedColumn>,
}

/// A column. For a domain, `base_type` is the domain's base type.
pub struct DefinedColumn {
    pub name: String,
    pub base_type: Oid,
    pub modifier: i32,
    /// For errors.
    pub type_name: String,
    /// The type's name under any search_path.
    pub cast_to: String,
    pub is_enum: bool,
    pub not_null: bool,
    pub deterministic: bool,
    /// Whether a unique index that is valid, not partial and not deferrable has this column as its only key column.
    pub unique: bool,
    /// Whether no UPDATE can set the column to a value: the column is generated, or GENERATED ALWAYS AS IDENTITY.
    pub generated: bool,
    pub partition_key: bool,
    /// Whether the column is generated from other columns.
    pub computed: bool,
}

fn of_name(name: &str) -> Result<std::result::Result<Option<Oid>, subxact::Failure>> {
    subxact::attempt(|| {
        let plan = Plan::prepare(BY_NAME, &[pg_sys::TEXTOID], "pg_class")?;
        let rows = plan.query(&[Some(row::text(&from_utf8(name)))])?;
        Ok(rows.first().and_then(|r| oid(r, 0)))
    })
}

impl DefinedTable {
    /// Finds, locks and reads a table by name. None: the name is empty, or (a fault) it names no table.
    pub fn named(path: &str, name: &str, faults: &Faults) -> Result<Option<DefinedTable>> {
        let oid = match name {
            "" => return Ok(None),
            name => of_name(name)?,
        };
        let table = match oid {
            Err(failure) => {
                faults.add(path, failure.message);
                return Ok(None);
            }
            Ok(oid) => oid.map_or(Ok(None), DefinedTable::read)?,
        };
        if table.is_none() {
            faults.add(path, format!("there is no table {}", quoted(name)));
        }
        Ok(table)
    }

    /// Locks a table and reads it. None: it is gone.
    pub fn read(relation: Oid) -> Result<Option<DefinedTable>> {
        // SAFETY: locks the oid of a relation that was found just before; the lock lasts to the end of the transaction.
        unsafe { pg_sys::LockRelationOid(relation, pg_sys::AccessShareLock as i32) };
        let argument = [Some(Datum::from(relation))];
        let table = spi::query(&ONE_TABLE, &argument)?;
        let Some(row) = table.first() else {
            return Ok(None);
        };
        let columns = spi::query(&ITS_COLUMNS, &argument)?;
        Ok(Some(DefinedTable {
            oid: relation,
            name: text(row, 0),
            kind: column(row, 1).map_or(0, |d| d.value() as u8),
            temporary: yes(row, 2),
            system: yes(row, 3),
            inherited: yes(row, 4),
            rule: text_of(row, 5),
            columns: columns.iter().map(DefinedColumn::read).collect(),
        }))
    }

    /// Adds one fault if this is no table, is a temporary or system table, has a rule, or has inheriting tables.
    pub fn check(&self, path: &str, faults: &Faults) {
        let name = &self.name;
        let problem = match (self.kind, &self.rule) {
            (b'r' | b'p', _) if self.temporary => format!("{name} is a temporary table"),
            (b'r' | b'p', _) if self.system => format!("{name} is a system table"),
            (b'r', _) if self.inherited => {
                format!("other tables inherit from {name}; its ids are not unique over them")
            }
            (b'r' | b'p', Some(rule)) => format!(
                "{name} has the rule {}: drop or disable it, or write a trigger instead",
                quoted(rule)
            ),
            (b'r' | b'p', None) => return,
            _ => format!("{name} is neither an ordinary nor a partitioned table"),
        };
        faults.add(path, problem);
    }

    pub fn column(&self, name: &str) -> Option<&DefinedColumn> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// Whether the caller has the rights of this relation's owner.
pub fn owned_by_caller(relation: Oid) -> bool {
    // SAFETY: looks into the system caches; the relation is locked, or was just found in the catalog.
    unsafe {
        let caller = pg_sys::GetUserId();
        #[cfg(feature = "pg15")]
        let owns = pg_sys::pg_class_ownercheck(relation, caller);
        #[cfg(not(feature = "pg15"))]
        let owns = pg_sys::object_ownercheck(pg_sys::RelationRelationId, relation, caller);
        owns
    }
}

/// Kinds of types that a key may have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Integer,
    Text,
    Uuid,
}

impl DefinedColumn {
    fn read(row: &Row) -> DefinedColumn {
        DefinedColumn {
            name: text(row, 0),
            base_type: oid(row, 1).unwrap_or(pg_sys::InvalidOid),
            modifier: column(row, 2).map_or(-1, |d| d.value() as i32),
            type_name: text(row, 3),
            cast_to: text(row, 4),
            is_enum: yes(row, 5),
            not_null: yes(row, 6),
            deterministic: yes(row, 7),
            unique: yes(row, 8),
            generated: yes(row, 9),
            partition_key: yes(row, 10),
            computed: yes(row, 11),
        }
    }

    /// None: the column cannot be a key.
    pub fn family(&self) -> Option<Family> {
        match self.base_type {
            pg_sys::INT2OID | pg_sys::INT4OID | pg_sys::INT8OID => Some(Family::Integer),
            pg_sys::TEXTOID | pg_sys::VARCHAROID => Some(Family::Text),
            pg_sys::UUIDOID => Some(Family::Uuid),
            _ => None,
        }
    }
}
