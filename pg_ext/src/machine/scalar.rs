//! Converts a scalar member of a JSON object to a column's value, as jsonb_populate_record does.

use crate::row;
use crate::table::Table;
use pgrx::pg_sys::{self, Datum, Oid};

/// How a column's type reads a text.
pub struct ScalarInput {
    function: Oid,
    of: Oid,
    modifier: i32,
    not_null: bool,
}

impl ScalarInput {
    /// None: the column is GENERATED ALWAYS AS IDENTITY, or its type is no plain scalar: a domain, an array, a row, a
    /// range or JSON.
    pub fn of_column(table: &Table, number: i16, type_oid: Oid) -> Option<ScalarInput> {
        let column = table.column_rules(number)?;
        // SAFETY: looks into the system caches.
        unsafe {
            let kind = pg_sys::get_typtype(type_oid) as u8;
            let is_scalar = (kind == pg_sys::TYPTYPE_BASE || kind == pg_sys::TYPTYPE_ENUM)
                && pg_sys::get_element_type(type_oid) == pg_sys::InvalidOid
                && type_oid != pg_sys::JSONOID
                && type_oid != pg_sys::JSONBOID;
            if !is_scalar || column.is_identity_always {
                return None;
            }
            let (mut function, mut of) = (pg_sys::InvalidOid, pg_sys::InvalidOid);
            pg_sys::getTypeInputInfo(type_oid, &mut function, &mut of);
            Some(ScalarInput {
                function,
                of,
                modifier: column.modifier,
                not_null: column.not_null,
            })
        }
    }

    /// The column's value for a text in the database's encoding. A NULL text gives Some(None), or None if the column is
    /// NOT NULL. Raises the errors of the type's input function.
    pub fn read(&self, text: Option<&[u8]>) -> Option<Option<Datum>> {
        let value = text.map(|text| match (self.function.to_u32(), self.modifier) {
            (pg_sys::F_TEXTIN, -1) => row::text(text),
            // SAFETY: the input function is the column's own; the string is a copy with a NUL at its end.
            _ => unsafe {
                let chars = pg_sys::pnstrdup(text.as_ptr().cast(), text.len());
                pg_sys::OidInputFunctionCall(self.function, chars, self.of, self.modifier)
            },
        });
        (value.is_some() || !self.not_null).then_some(value)
    }
}
