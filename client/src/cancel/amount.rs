//! Owns amounts: the text of a decimal as the server prints it, never converted to a float.

use std::fmt;
use std::str::FromStr;

use tokio_postgres::types::{FromSql, Type, accepts};

use crate::BoxError;

/// An amount of money or points, exact to the last digit: the text of a `numeric`.
///
/// ```
/// # fn total(amount: &pg_once::Amount) -> Result<i64, std::num::ParseIntError> {
/// amount.parse::<i64>() // or a decimal type of your choice
/// # }
/// ```
#[derive(Clone)]
pub struct Amount(Box<str>);

impl Amount {
    /// The amount as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Reads the amount as a number of the caller's choice.
    ///
    /// # Errors
    /// The error of `T`, if `T` cannot hold the amount.
    pub fn parse<T: FromStr>(&self) -> Result<T, T::Err> {
        self.0.parse()
    }
}

impl<'a> FromSql<'a> for Amount {
    fn from_sql(of: &Type, raw: &'a [u8]) -> Result<Self, BoxError> {
        <&str>::from_sql(of, raw).map(|digits| Self(digits.into()))
    }

    accepts!(TEXT);
}

impl fmt::Debug for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
