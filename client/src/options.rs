//! Owns options: the methods that set them, and their wire form, one JSON object with the named options.
//!
//! Invariant: an option that was not named is not sent, so setting an option never changes another option.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use crate::{Error, Json};

/// Options by name; `null` resets an option.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Options(Map<String, Value>);

pub(crate) trait Setting {
    fn json(self) -> Value;
}

impl Options {
    pub(crate) fn with(mut self, option: &str, value: impl Setting) -> Self {
        self.0.insert(option.to_owned(), value.json());
        self
    }

    pub(crate) fn to_json(&self) -> Result<Json, Error> {
        Json::of(self)
    }
}

macro_rules! plain {
    ($($of:ty),*) => {$(
        impl Setting for $of {
            fn json(self) -> Value {
                self.into()
            }
        }
    )*};
}

plain!(bool, i32, &str, Value);

/// The text form is exact to the microsecond and the same under every `IntervalStyle`.
impl Setting for Duration {
    fn json(self) -> Value {
        format!("{} microseconds", self.as_micros()).into()
    }
}

/// Declares a type of options, with a method for each option.
macro_rules! options {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $option:ident: $of:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default)]
        #[must_use]
        pub struct $name(crate::options::Options);

        impl $name {
            /// Makes options that change nothing.
            pub fn new() -> Self {
                Self::default()
            }

            $(
                $(#[$doc])*
                pub fn $option(self, value: $of) -> Self {
                    Self(self.0.with(stringify!($option), value))
                }
            )*

            /// Resets an option to its default. A scope's `max_attempts` is an exception: its reset removes the limit.
            pub fn reset(self, option: &str) -> Self {
                Self(self.0.with(option, serde_json::Value::Null))
            }
        }
    };
}
pub(crate) use options;

/// Declares methods of a builder. Each method sets the field of the same name.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $of:ty,)*) => {$(
        $(#[$doc])*
        pub fn $field(mut self, $field: $of) -> Self {
            self.$field = Some($field.into());
            self
        }
    )*};
}
pub(crate) use setters;
