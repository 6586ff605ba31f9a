//! One of the user's tables in the present catalog: its name, and the columns that a definition names.

use super::sql::ident;
use crate::call::{from_utf8, utf8};
use pgrx::pg_sys;
use std::ffi::{CStr, CString, c_char};

/// A table by oid, with its name at the time of the look-up.
#[derive(Clone, Debug, PartialEq)]
pub struct Relation {
    pub oid: pg_sys::Oid,
    /// Quoted and qualified.
    pub name: String,
}

/// A column that a definition names.
#[derive(Clone, Debug, PartialEq)]
pub struct UserColumn {
    /// Quoted.
    pub name: String,
    /// Not quoted.
    pub plain: String,
    pub number: i16,
    pub type_oid: pg_sys::Oid,
    /// `type_oid`; for a domain, its base type.
    pub base_type: pg_sys::Oid,
    /// Length, or precision and scale; -1: none.
    pub modifier: i32,
}

impl Relation {
    /// None: the table is gone.
    pub fn of(oid: pg_sys::Oid) -> Option<Relation> {
        // SAFETY: all three look into the system caches and return new strings or null.
        let (schema, name) = unsafe {
            let name = server_text(pg_sys::get_rel_name(oid))?;
            let schema = pg_sys::get_namespace_name(pg_sys::get_rel_namespace(oid));
            (server_text(schema)?, name)
        };
        Some(Relation {
            oid,
            name: format!("{}.{}", ident(&schema), ident(&name)),
        })
    }

    /// Whether the table exists and still has this name.
    pub fn is_still_named(&self) -> bool {
        Relation::of(self.oid).as_ref() == Some(self)
    }

    /// None: there is no column of this name (any more).
    pub fn column(&self, name: &str) -> Option<UserColumn> {
        column_of(self.oid, name)
    }

    /// Whether row-level security policies of the table apply to the current user.
    pub fn has_policies(&self) -> bool {
        // SAFETY: looks into the system caches; the last argument makes it raise no error.
        let found = unsafe { pg_sys::check_enable_rls(self.oid, pg_sys::InvalidOid, true) };
        found == pg_sys::CheckEnableRlsResult::RLS_ENABLED as i32
    }

    /// Locks the table to the end of the (sub)transaction, and processes invalidation messages about earlier changes.
    pub fn lock(&self, mode: u32) {
        // SAFETY: locks the oid of a relation that was found before.
        unsafe { pg_sys::LockRelationOid(self.oid, mode as i32) };
    }

    /// Locks the table with its partitions, or with the tables that inherit from it.
    pub fn lock_with_all_below(&self, mode: u32) {
        self.lock(mode);
        self.all_below(mode);
    }

    /// A partitioned table and all levels of its partitions, without a lock. Empty if the table never had partitions.
    pub fn partitions(&self) -> Vec<pg_sys::Oid> {
        // SAFETY: looks into the system cache.
        let kind = unsafe { pg_sys::get_rel_relkind(self.oid) };
        match kind as u8 == pg_sys::RELKIND_PARTITIONED_TABLE {
            true => self.all_below(pg_sys::NoLock),
            false => Vec::new(),
        }
    }

    /// Locks the tables below this table (partitions, or tables that inherit from it), unless `mode` is NoLock. Returns
    /// this table and the tables below it. Empty if this table is gone, or never had a table below it.
    fn all_below(&self, mode: u32) -> Vec<pg_sys::Oid> {
        // SAFETY: get_rel_relkind returns 0 for a table that is gone. find_all_inheritors returns a list of oids, and
        // `oid` reads only the first `length` elements of this list.
        unsafe {
            if pg_sys::get_rel_relkind(self.oid) == 0 || !pg_sys::has_subclass(self.oid) {
                return Vec::new();
            }
            let null = std::ptr::null_mut();
            let list = pg_sys::find_all_inheritors(self.oid, mode as i32, null);
            let oid = |i| (*(*list).elements.add(i as usize)).oid_value;
            let below = (0..(*list).length).map(oid).collect();
            pg_sys::list_free(list);
            below
        }
    }

    /// Locks the table to the end of the transaction, and returns the role that owns it; None: the table is gone.
    pub fn owner(&self) -> Option<pg_sys::Oid> {
        // SAFETY: null for a table that is gone. An open relation has its pg_class row; the relation is closed again.
        unsafe {
            let relation = pg_sys::try_relation_open(self.oid, pg_sys::AccessShareLock as i32);
            if relation.is_null() {
                return None;
            }
            let owner = (*(*relation).rd_rel).relowner;
            pg_sys::relation_close(relation, pg_sys::NoLock as i32);
            Some(owner)
        }
    }

    /// Like [`Relation::owner`], after locking the table and the tables below it.
    pub fn locked_owner(&self, mode: u32) -> Option<pg_sys::Oid> {
        self.lock_with_all_below(mode);
        self.owner()
    }
}

impl UserColumn {
    pub fn is_domain(&self) -> bool {
        self.type_oid != self.base_type
    }

    /// The name of `base_type`, qualified and quoted.
    pub fn base_type_name(&self) -> String {
        // SAFETY: looks into the system cache and makes a new string.
        server_text(unsafe { pg_sys::format_type_be_qualified(self.base_type) }).unwrap_or_default()
    }

    /// Whether the text has no more bytes than the column's declared length.
    pub fn has_room_for(&self, text: &str) -> bool {
        // The modifier counts the header, too.
        let most = self.modifier - pg_sys::VARHDRSZ as i32;
        self.modifier == -1 || text.len() as i64 <= i64::from(most)
    }
}

/// A column of a table, or of one of its partitions, by name.
pub fn column_of(relation: pg_sys::Oid, name: &str) -> Option<UserColumn> {
    let plain = CString::new(from_utf8(name).into_owned()).ok()?;
    // SAFETY: looks into the system caches.
    unsafe {
        let number = pg_sys::get_attnum(relation, plain.as_ptr());
        if number <= 0 {
            return None;
        }
        let (mut type_oid, mut modifier) = (pg_sys::InvalidOid, -1);
        let mut collation = pg_sys::InvalidOid;
        pg_sys::get_atttypetypmodcoll(
            relation,
            number,
            &mut type_oid,
            &mut modifier,
            &mut collation,
        );
        let base_type = pg_sys::getBaseTypeAndTypmod(type_oid, &mut modifier);
        Some(UserColumn {
            name: ident(name),
            plain: name.to_owned(),
            number,
            type_oid,
            base_type,
            modifier,
        })
    }
}

/// A C string of the server in UTF-8; None for null.
fn server_text(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not null, so a string that ends with NUL.
    let bytes = unsafe { CStr::from_ptr(text) }.to_bytes();
    Some(String::from_utf8_lossy(&utf8(bytes)).into_owned())
}
