//! The head of a row: its bytes up to the last column that a guard looks at.
//!
//! An UPDATE that leaves the head as it was, byte for byte, touches none of these columns. That is seen without a call
//! of the server, so nothing here raises an error; where it cannot be seen, the columns are compared one by one.

use super::event::{Field, Tuple};
use pgrx::pg_sys;
use pgrx::varlena::{varatt_is_1b, varatt_is_1b_e, varsize_any};

/// How the values of a column lie in a row.
#[derive(Clone, Copy)]
struct Width {
    /// In bytes; -1: the value says so itself.
    length: i16,
    align: u8,
}

/// The columns of a table up to the last of some.
pub struct Head(Vec<Width>);

impl Head {
    /// Up to the last of these columns of an open relation.
    pub fn up_to(fields: &[Option<Field>], columns: pg_sys::TupleDesc) -> Head {
        let last = fields.iter().flatten().map(|f| f.number).max();
        let count = usize::try_from(last.unwrap_or(0)).unwrap_or(0);
        // SAFETY: the descriptor of an open relation.
        Head(unsafe { widths(columns, count) })
    }

    /// The same bytes in both rows; false also where that cannot be seen.
    pub fn is_same(&self, old: &Tuple, new: &Tuple) -> bool {
        // SAFETY: both tuples are rows of the relation whose columns these are.
        unsafe {
            match (Bytes::of(old, self.0.len()), Bytes::of(new, self.0.len())) {
                (Some(old), Some(new)) => self.length(&old, &new).is_some_and(|length| {
                    let (old, new) = (old.data.get(..length), new.data.get(..length));
                    old.is_some() && old == new
                }),
                _ => false,
            }
        }
    }

    /// Where the head of the old row ends, if the new one has its NULLs in the same columns.
    fn length(&self, old: &Bytes, new: &Bytes) -> Option<usize> {
        let mut end = 0_usize;
        for (i, column) in self.0.iter().enumerate() {
            let null = old.is_null(i);
            if null != new.is_null(i) {
                return None;
            }
            if null {
                continue;
            }
            let mask = usize::from(column.align).checked_sub(1)?;
            let aligned = end.checked_add(mask)? & !mask;
            end = match column.length {
                -1 => {
                    // A short value is not aligned, and begins with a byte that is no padding.
                    let at = if *old.data.get(end)? == 0 {
                        aligned
                    } else {
                        end
                    };
                    at.checked_add(old.size_at(at)?)?
                }
                length => aligned.checked_add(usize::try_from(length).ok()?)?,
            };
        }
        (end <= old.data.len() && end <= new.data.len()).then_some(end)
    }
}

/// A row's values, and which are NULL.
struct Bytes<'a> {
    data: &'a [u8],
    /// A bit for each column that is not NULL; empty: none is.
    present: &'a [u8],
}

impl<'a> Bytes<'a> {
    /// None for a row from before one of so many columns was added.
    unsafe fn of(tuple: &'a Tuple, columns: usize) -> Option<Bytes<'a>> {
        // SAFETY: a heap tuple has t_len bytes from its header on; its values begin at t_hoff, and behind the header's
        // fixed part, where it has NULLs, a bit for each of its columns.
        unsafe {
            let header = (*tuple.raw).t_data;
            let offset = usize::from((*header).t_hoff);
            let length = ((*tuple.raw).t_len as usize).checked_sub(offset)?;
            let natts = usize::from((*header).t_infomask2 & pg_sys::HEAP_NATTS_MASK as u16);
            if natts < columns {
                return None;
            }
            let bits = match u32::from((*header).t_infomask) & pg_sys::HEAP_HASNULL {
                0 => 0,
                _ => natts.div_ceil(8),
            };
            Some(Bytes {
                data: std::slice::from_raw_parts(header.cast::<u8>().add(offset), length),
                present: std::slice::from_raw_parts((&raw const (*header).t_bits).cast(), bits),
            })
        }
    }

    fn is_null(&self, column: usize) -> bool {
        let byte = self.present.get(column / 8);
        byte.is_some_and(|byte| byte & (1 << (column % 8)) == 0)
    }

    /// The size of a value that says it itself; None where it is a pointer to one elsewhere.
    fn size_at(&self, at: usize) -> Option<usize> {
        let value = self.data.get(at..)?;
        let header: *const pg_sys::varlena = value.as_ptr().cast();
        // SAFETY: a header of one byte is there; a longer one is read only where it is, too, and aligned.
        unsafe {
            let is_whole = value.len() >= size_of::<u32>() && header.cast::<u32>().is_aligned();
            match !value.is_empty() && (varatt_is_1b(header) || is_whole) {
                true if !varatt_is_1b_e(header) => Some(varsize_any(header)),
                _ => None,
            }
        }
    }
}

/// The first columns of a table.
#[cfg(feature = "pg18")]
unsafe fn widths(desc: pg_sys::TupleDesc, count: usize) -> Vec<Width> {
    // SAFETY: as the caller says; a descriptor has natts compact attributes.
    let columns = unsafe { (*desc).compact_attrs.as_slice((*desc).natts as usize) };
    let width = |c: &pg_sys::CompactAttribute| Width {
        length: c.attlen,
        align: c.attalignby,
    };
    columns.iter().take(count).map(width).collect()
}

/// The first columns of a table.
#[cfg(not(feature = "pg18"))]
unsafe fn widths(desc: pg_sys::TupleDesc, count: usize) -> Vec<Width> {
    // SAFETY: as the caller says; a descriptor has natts attributes.
    let columns = unsafe { (*desc).attrs.as_slice((*desc).natts as usize) };
    let width = |c: &pg_sys::FormData_pg_attribute| Width {
        length: c.attlen,
        align: match c.attalign as u8 {
            pg_sys::TYPALIGN_CHAR => 1,
            pg_sys::TYPALIGN_SHORT => 2,
            pg_sys::TYPALIGN_INT => 4,
            _ => 8,
        },
    };
    columns.iter().take(count).map(width).collect()
}
