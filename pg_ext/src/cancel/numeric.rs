//! Sums of money in the server's numeric type.

use pgrx::pg_sys::{self, Datum};

type Function = unsafe fn(pg_sys::FunctionCallInfo) -> Datum;

fn call(function: Function, args: &[Datum]) -> Datum {
    let args: Vec<_> = args.iter().copied().map(Some).collect();
    // SAFETY: an arithmetic function of numeric. None of its arguments is NULL, and so its result is not NULL.
    unsafe { pgrx::direct_function_call_as_datum(function, &args) }.unwrap_or(Datum::from(0))
}

pub fn zero() -> Datum {
    call(pg_sys::int8_numeric, &[Datum::from(0i64)])
}

pub fn sum(a: Datum, b: Datum) -> Datum {
    call(pg_sys::numeric_add, &[a, b])
}

pub fn difference(a: Datum, b: Datum) -> Datum {
    call(pg_sys::numeric_sub, &[a, b])
}

pub fn equal(a: Datum, b: Datum) -> bool {
    call(pg_sys::numeric_eq, &[a, b]).value() != 0
}
