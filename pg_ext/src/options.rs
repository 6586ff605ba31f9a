//! The options of the `*_set` functions: a JSON object, read member by member.
//!
//! Every member is checked before anything is written. An unknown member is an error; an error about a member names it.
//! JSON null resets an option: every check accepts null, and a check that returns a value then returns None. The
//! meaning of an option, its default and its column are in the calling file.

use crate::call::{Call, characters, shown, varlena};
use crate::caller;
use crate::clock;
use crate::error::{Error, Result};
use crate::json;
use crate::row;
use crate::spi::{self, Kept, Row, column};
use pgrx::pg_sys::{Datum, JSONOID, TEXTOID};

// A document that is no object is read as one option with an empty name: an unknown option.
const MEMBERS: &std::ffi::CStr = c"
    SELECT o.key, pg_catalog.json_typeof(o.value), o.value::pg_catalog.jsonb #>> '{}'
      FROM pg_catalog.json_each(CASE pg_catalog.json_typeof($1) WHEN 'object' THEN $1 ELSE '{\"\": 0}' END) o";

const ELEMENTS: &std::ffi::CStr = c"
    SELECT pg_catalog.jsonb_typeof(e.value), e.value #>> '{}'
      FROM pg_catalog.jsonb_array_elements($1::jsonb) e";

static EACH_MEMBER: Kept = Kept::new(MEMBERS, &[JSONOID]);
static EACH_ELEMENT: Kept = Kept::new(ELEMENTS, &[TEXTOID]);

/// The options of one call: the object, and its members.
pub struct Given<'a> {
    pub jsonb: Datum,
    pub members: Vec<Member<'a>>,
}

impl Given<'_> {
    /// Reads argument `i`, which SQL calls `options`; `hint` lists the known options.
    pub fn of<'a>(call: &Call, i: usize, hint: &'static str) -> Result<Given<'a>> {
        let bad = |problem: &str| Error::bad_argument("options", problem, hint);
        let json = call.datum(i).ok_or_else(|| bad("must not be null"))?;
        let rows = spi::query(&EACH_MEMBER, &[Some(json)])?;
        let mut members: Vec<Member> = Vec::new();
        for row in &rows {
            let name = text(row, 0);
            if members.iter().any(|other| other.name == name) {
                return Err(bad(&format!("has option \"{}\" twice", shown(name))));
            }
            members.push(Member {
                name,
                json_type: text(row, 1),
                value: text(row, 2),
                hint,
            });
        }
        Ok(Given {
            jsonb: json::to_jsonb(varlena(json))?,
            members,
        })
    }
}

/// One option: its name, the JSON type and the value as text.
pub struct Member<'a> {
    pub name: &'a [u8],
    json_type: &'a [u8],
    value: &'a [u8],
    hint: &'static str,
}

impl<'a> Member<'a> {
    pub fn is_null(&self) -> bool {
        self.json_type == b"null"
    }

    /// Reads an interval given as text: at least `least` microseconds. If `least` is 0, the number 0 is accepted, too.
    pub fn duration(&self, least: i64) -> Result<Option<i64>> {
        if self.is_null() {
            return Ok(None);
        }
        if self.json_type == b"number" && self.value == b"0" && least == 0 {
            return Ok(Some(0));
        }
        let parsed = Some(self.value)
            .filter(|_| self.json_type == b"string")
            .and_then(clock::parse_interval);
        let parsed = parsed
            .ok_or_else(|| self.bad("must be an interval as text, such as \"30 seconds\""))?;
        match clock::interval_us(parsed) {
            Err(problem) => Err(self.bad(problem)),
            Ok(us) if us >= least => Ok(Some(us)),
            Ok(_) if least > 0 => Err(self.bad("must be positive")),
            Ok(_) => Err(self.bad("must not be negative")),
        }
    }

    /// A whole number from 1 to `most`.
    pub fn count(&self, most: i32) -> Result<Option<i32>> {
        if self.is_null() {
            return Ok(None);
        }
        let number = Some(self.value)
            .filter(|_| self.json_type == b"number")
            .and_then(|value| std::str::from_utf8(value).ok()?.parse::<i32>().ok())
            .filter(|n| (1..=most).contains(n));
        match number {
            Some(n) => Ok(Some(n)),
            None if most == i32::MAX => Err(self.bad("must be a whole number above 0, or null")),
            None => Err(self.bad(&format!("must be a whole number from 1 to {most}, or null"))),
        }
    }

    /// The role that the value names.
    pub fn role(&self) -> Result<Option<Datum>> {
        match self.json_type {
            b"null" => Ok(None),
            b"string" => match caller::role_of_name(self.value) {
                Some(role) => Ok(Some(role)),
                None => Err(self
                    .bad(&format!(
                        "names a role that does not exist: \"{}\"",
                        shown(self.value)
                    ))
                    .hint("CREATE ROLE first, or name another role; null means no owner.")),
            },
            _ => Err(self.bad("must be the name of a role")),
        }
    }

    /// One of these words.
    pub fn word(&self, words: [&str; 2]) -> Result<()> {
        let [one, other] = words;
        let known = self.json_type == b"string" && words.iter().any(|w| w.as_bytes() == self.value);
        match self.is_null() || known {
            true => Ok(()),
            false => Err(self.bad(&format!("must be \"{one}\" or \"{other}\""))),
        }
    }

    pub fn boolean(&self) -> Result<()> {
        match self.is_null() || self.json_type == b"boolean" {
            true => Ok(()),
            false => Err(self.bad("must be true or false")),
        }
    }

    /// Distinct texts of 1 to `max` characters.
    pub fn texts(&self, max: usize) -> Result<Option<Vec<&'a [u8]>>> {
        let problem = || {
            self.bad(&format!(
                "must be an array of texts of 1 to {max} characters"
            ))
        };
        match self.json_type {
            b"null" => return Ok(None),
            b"array" => {}
            _ => return Err(problem()),
        }
        let mut texts: Vec<&[u8]> = Vec::new();
        for element in spi::query(&EACH_ELEMENT, &[Some(row::text(self.value))])? {
            let (json_type, value) = (text(&element, 0), text(&element, 1));
            if json_type != b"string" || value.is_empty() || characters(value) > max {
                return Err(problem());
            }
            if texts.contains(&value) {
                return Err(self.bad(&format!("names \"{}\" twice", shown(value))));
            }
            texts.push(value);
        }
        Ok(Some(texts))
    }

    /// 22023 for an option that the calling file does not know.
    pub fn unknown(&self) -> Error {
        let problem = match self.name {
            b"" => "must be a JSON object of options".to_owned(),
            name => format!("has an unknown option \"{}\"", shown(name)),
        };
        Error::bad_argument("options", problem, self.hint)
    }

    /// 22023 for a bad value of this option.
    pub fn bad(&self, problem: &str) -> Error {
        let name = shown(self.name);
        Error::bad_argument(
            "options",
            format!("has a bad value: option \"{name}\" {problem}"),
            self.hint,
        )
    }
}

fn text<'a>(row: &Row, i: usize) -> &'a [u8] {
    column(row, i).map(varlena).unwrap_or_default()
}
