//! Owns JSON as text that is neither parsed nor rebuilt.
//!
//! Invariant: [`Json::as_str`] returns the text as it was received, or as [`Json::of`] wrote it, byte for byte. Only
//! [`Json::parse`] parses the text.

use std::error::Error as StdError;
use std::fmt;

use serde::Serialize;
use serde::de::Deserialize;
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::Error;

/// The first byte of a `jsonb` on the wire: the version of its text form.
const JSONB_VERSION: u8 = 1;

/// A JSON document as text.
///
/// ```
/// # fn main() -> Result<(), pg_once::Error> {
/// use pg_once::Json;
///
/// let json = Json::of(&vec![1, 2])?;
/// assert_eq!(json.as_str(), "[1,2]");
/// assert_eq!(json.parse::<Vec<i32>>()?, [1, 2]);
///
/// // Text from elsewhere is passed on as it is; the server raises 22P02 if it is not JSON.
/// assert_eq!(Json::from_text(r#"{"a":  1.0}"#).as_str(), r#"{"a":  1.0}"#);
/// # Ok(()) }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Json(Box<str>);

impl Json {
    /// Writes a value as JSON.
    ///
    /// # Errors
    /// [`Error::Json`] if the value's `Serialize` fails.
    pub fn of<T: Serialize + ?Sized>(value: &T) -> Result<Self, Error> {
        Ok(Self(serde_json::to_string(value)?.into_boxed_str()))
    }

    /// Takes text that is JSON already, without checking it.
    pub fn from_text(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the text as a `String`, without a copy.
    #[must_use]
    pub fn into_string(self) -> String {
        self.0.into_string()
    }

    /// Reads the text as a `T`.
    ///
    /// # Errors
    /// [`Error::Json`] if the text is no `T`.
    pub fn parse<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Error> {
        Ok(serde_json::from_str(&self.0)?)
    }
}

impl fmt::Debug for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<serde_json::Value> for Json {
    fn from(value: serde_json::Value) -> Self {
        Self(value.to_string().into_boxed_str())
    }
}

impl ToSql for Json {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        if *ty == Type::JSONB {
            out.extend_from_slice(&[JSONB_VERSION]);
        }
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSON, JSONB);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Json {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn StdError + Sync + Send>> {
        let text = match raw {
            [JSONB_VERSION, text @ ..] if *ty == Type::JSONB => text,
            _ if *ty == Type::JSONB => return Err("a version of jsonb that is not known".into()),
            text => text,
        };
        Ok(Self(std::str::from_utf8(text)?.into()))
    }

    accepts!(JSON, JSONB);
}
