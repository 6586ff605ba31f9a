//! Result rows: one row of OUT columns, or a set.
//!
//! The row type of a function never changes within one version of the library, so each backend builds the type once and
//! keeps it blessed. A catalog lookup at each call would cost more than the replay of a stored answer.

use crate::call::Call;
use pgrx::pg_sys::{self, Datum};
use std::cell::Cell;
use std::ffi::CStr;

/// Name and type of an OUT column, as the function's SQL declares it.
pub type OutColumn = (&'static CStr, pg_sys::Oid);

/// The row type of one function, kept by the backend in a `static`.
pub struct Shape {
    columns: &'static [OutColumn],
    blessed: Cell<pg_sys::TupleDesc>,
}

// SAFETY: a backend is one thread.
unsafe impl Sync for Shape {}

impl Shape {
    pub const fn new(columns: &'static [OutColumn]) -> Shape {
        Shape {
            columns,
            blessed: Cell::new(std::ptr::null_mut()),
        }
    }

    /// A composite datum of these values.
    pub fn row(&self, values: &[Option<Datum>]) -> Datum {
        let (mut datums, mut nulls) = split(values);
        // SAFETY: the descriptor has as many columns as the function's SQL, at most 16, and each value is
        // of its column's type; the tuple is copied into the current memory context.
        unsafe {
            let desc = self.descriptor();
            let tuple = pg_sys::heap_form_tuple(desc, datums.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
        }
    }

    fn descriptor(&self) -> pg_sys::TupleDesc {
        if self.blessed.get().is_null() {
            // SAFETY: built once, in memory that lives as long as the backend.
            unsafe {
                let before = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
                let desc = pg_sys::CreateTemplateTupleDesc(self.columns.len() as i32);
                for (i, (name, type_oid)) in self.columns.iter().enumerate() {
                    pg_sys::TupleDescInitEntry(desc, i as i16 + 1, name.as_ptr(), *type_oid, -1, 0);
                }
                self.blessed.set(pg_sys::BlessTupleDesc(desc));
                pg_sys::MemoryContextSwitchTo(before);
            }
        }
        self.blessed.get()
    }
}

/// The rows of a set-returning call, in the server's tuplestore.
pub struct Rows {
    info: *mut pg_sys::ReturnSetInfo,
}

impl Rows {
    /// Begins the set; raises 0A000 if the calling query cannot take a set.
    pub fn begin(call: &Call) -> Rows {
        let fcinfo = call.fcinfo();
        // SAFETY: fcinfo is the running call's. The server raises an error if the query cannot take a set. The set gets
        // the columns that the query expects, and resultinfo is a ReturnSetInfo.
        unsafe {
            pg_sys::InitMaterializedSRF(fcinfo, pg_sys::MAT_SRF_USE_EXPECTED_DESC);
            Rows {
                info: (*fcinfo).resultinfo.cast(),
            }
        }
    }

    pub fn push(&self, values: &[Option<Datum>]) {
        let (mut datums, mut nulls) = split(values);
        // SAFETY: the function's SQL declares one column for each value, of its type. The server copies the values.
        unsafe {
            pg_sys::tuplestore_putvalues(
                (*self.info).setResult,
                (*self.info).setDesc,
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
    }
}

/// Values and NULL marks of a row, as the server takes them.
fn split(values: &[Option<Datum>]) -> ([Datum; 16], [bool; 16]) {
    let (mut datums, mut nulls) = ([Datum::from(0); 16], [true; 16]);
    assert!(values.len() <= datums.len(), "a row has at most 16 columns");
    for (i, value) in values.iter().enumerate() {
        datums[i] = value.unwrap_or(Datum::from(0));
        nulls[i] = value.is_none();
    }
    (datums, nulls)
}

/// A text datum.
pub fn text(bytes: &[u8]) -> Datum {
    // SAFETY: copies len bytes into a new text in the current memory context.
    unsafe {
        Datum::from(pg_sys::cstring_to_text_with_len(
            bytes.as_ptr().cast(),
            bytes.len() as i32,
        ))
    }
}

/// A text[] datum.
pub fn texts(values: &[&[u8]]) -> Datum {
    array(values.iter().map(|v| text(v)), pg_sys::TEXTOID)
}

/// A bigint[] datum.
pub fn i64s(values: &[i64]) -> Datum {
    array(values.iter().map(|v| Datum::from(*v)), pg_sys::INT8OID)
}

/// An array datum of elements of this type.
pub fn array(values: impl Iterator<Item = Datum>, element: pg_sys::Oid) -> Datum {
    let mut elements: Vec<Datum> = values.collect();
    let (mut length, mut by_value, mut align) = (0i16, false, 0);
    // SAFETY: copies the elements, which are of that type, into a new array in the current memory context.
    unsafe {
        pg_sys::get_typlenbyvalalign(element, &mut length, &mut by_value, &mut align);
        Datum::from(pg_sys::construct_array(
            elements.as_mut_ptr(),
            elements.len() as i32,
            element,
            length.into(),
            by_value,
            align,
        ))
    }
}

/// A uuid datum.
pub fn uuid(bytes: &[u8; 16]) -> Datum {
    // SAFETY: copies 16 bytes into new memory of that size.
    unsafe {
        let copy: *mut u8 = pg_sys::palloc(bytes.len()).cast();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len());
        Datum::from(copy)
    }
}

/// Copies a varlena; the copy outlives the stored row.
pub fn copied(value: Datum) -> Datum {
    // SAFETY: a varlena of a pinned row is copied into the current memory context.
    unsafe { Datum::from(pg_sys::pg_detoast_datum_copy(value.cast_mut_ptr())) }
}

/// Frees a value of [`copied`], for callers that copy many rows.
pub fn free(value: Datum) {
    // SAFETY: `copied` made the value, and nobody uses it once it is freed.
    unsafe { pg_sys::pfree(value.cast_mut_ptr()) }
}
