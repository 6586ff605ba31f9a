//! A member of a jsonb object as the value of a column: as jsonb_populate_record would make it, for scalars.

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

    /// The member of this name, which is in the database's encoding; an inner None is NULL. None: NULL for a column that
    /// is NOT NULL. Raises what the type's input function raises.
    pub fn member(&self, object: Datum, name: &[u8]) -> Option<Option<Datum>> {
        let args = [Some(object), Some(row::text(name))];
        // SAFETY: a jsonb and a text. The result is a text or NULL, and the input function is the column's own.
        let value = unsafe {
            let text = pgrx::direct_function_call_as_datum(pg_sys::jsonb_object_field_text, &args);
            text.map(|text| {
                let chars = pg_sys::text_to_cstring(text.cast_mut_ptr());
                pg_sys::OidInputFunctionCall(self.function, chars, self.of, self.modifier)
            })
        };
        (value.is_some() || !self.not_null).then_some(value)
    }
}
