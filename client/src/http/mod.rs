//! Owns the HTTP answer for each outcome, without depending on any HTTP library.
//!
//! Follows the IETF draft "The Idempotency-Key HTTP Header Field": 400 without a key, 409 while a request with the key
//! is in progress, 422 for another request under the same key. Invariants: a key from a header belongs to one user; a
//! replay is always marked as a replay; `Retry-After` is sent only where a retry can help without any other action.

mod prefer;
mod retry_after;

use std::time::Duration;

pub use prefer::{PREFER, wait_of_header};
pub use retry_after::retry_after;

use crate::{Claim, Error, Failure, Json, Kind, Outcome, Response};

/// The request header that carries the key.
pub const IDEMPOTENCY_KEY: &str = "Idempotency-Key";
/// The response header that marks a replay.
pub const IDEMPOTENT_REPLAYED: &str = "Idempotent-Replayed";
/// The response header with the time to wait before a retry, in seconds.
pub const RETRY_AFTER: &str = "Retry-After";

/// Upper limit of the length of a key, in any scope.
const MAX_KEY_CHARS: usize = 255;
const SOON: Duration = Duration::from_secs(1);

/// An answer for an HTTP client.
///
/// ```
/// use pg_once::{Outcome, Response, http::Answer};
/// use std::time::Duration;
///
/// let busy = Answer::of(&Outcome::InProgress { retry_after: Duration::from_millis(250) });
/// assert_eq!((busy.status, busy.header("Retry-After")), (409, Some("1")));
///
/// let replay = Answer::of(&Outcome::Replayed(Response::new(201)));
/// assert_eq!((replay.status, replay.header("Idempotent-Replayed")), (201, Some("true")));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// Headers that this module adds to the stored headers.
    pub headers: Vec<(&'static str, String)>,
    /// The title of a problem document; `None` if the work gave the answer.
    pub problem: Option<&'static str>,
    /// The body that the work gave.
    pub body: Option<Json>,
    /// The headers that the work stored with the body. Each work chooses the form of this JSON.
    pub stored_headers: Option<Json>,
}

impl Answer {
    /// The answer for the outcome of a request.
    #[must_use]
    pub fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Ran(answer)
            | Outcome::Aborted(answer)
            | Outcome::Unkeyed(Ok(answer) | Err(Failure::Abort(answer))) => Self::given(answer),
            Outcome::Replayed(answer) => Self {
                headers: vec![(IDEMPOTENT_REPLAYED, "true".to_owned())],
                ..Self::given(answer)
            },
            Outcome::InProgress { retry_after } => Self::in_progress(*retry_after),
            Outcome::Released { retry_after, .. }
            | Outcome::Unkeyed(Err(Failure::Retry { retry_after, .. })) => {
                Self::problem(503, "the request could not be finished")
                    .after(retry_after.unwrap_or(SOON))
            }
            Outcome::LeaseLost => Self::in_progress(SOON),
            Outcome::Parked { .. } => Self::problem(
                409,
                "the outcome of a request with this key is not known yet",
            ),
            Outcome::Mismatched => Self::problem(422, "this key was used for a different request"),
            Outcome::Gone => Self::problem(410, "a request with this key was finished long ago"),
            Outcome::Unkeyed(Err(Failure::Unknown { .. })) => {
                Self::problem(500, "it is not known whether the request was carried out")
            }
            Outcome::Unkeyed(Err(Failure::Error(error))) => Self::of_error(error),
        }
    }

    /// The answer for a claim; `None` if the request is to be run.
    #[must_use]
    pub fn of_claim(claim: &Claim) -> Option<Self> {
        let outcome = claim.clone().into_lease().err()?;
        Some(Self::of(&outcome))
    }

    /// The answer for an error. It does not contain the error's text, which belongs in the log.
    #[must_use]
    pub fn of_error(error: &Error) -> Self {
        match error.kind() {
            Kind::Conflict | Kind::LeaseLost => Self::in_progress(SOON),
            // A call that reached the wrong shard did nothing, and a retry may reach the right one.
            Kind::Unavailable | Kind::ReadOnly | Kind::WrongShard => {
                Self::problem(503, "the database is away").after(SOON)
            }
            Kind::Overloaded => Self::problem(503, "the database is overloaded").after(SOON),
            _ => Self::problem(500, "internal error"),
        }
    }

    /// Returns a value of `headers` (not of the stored headers) by name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    fn given(answer: &Response) -> Self {
        // A stored code need not be an HTTP status.
        let status = u16::try_from(answer.code)
            .ok()
            .filter(|code| (200..600).contains(code));
        Self {
            status: status.unwrap_or(500),
            headers: Vec::new(),
            problem: None,
            body: answer.body.clone(),
            stored_headers: answer.headers.clone(),
        }
    }

    fn in_progress(retry_after: Duration) -> Self {
        Self::problem(409, "a request with this key is in progress").after(retry_after)
    }

    pub(crate) const fn problem(status: u16, problem: &'static str) -> Self {
        Self {
            status,
            headers: Vec::new(),
            problem: Some(problem),
            body: None,
            stored_headers: None,
        }
    }

    /// Adds `Retry-After`: whole seconds, rounded up, at least 1.
    fn after(mut self, time: Duration) -> Self {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        self.headers.push((RETRY_AFTER, seconds.max(1).to_string()));
        self
    }
}

/// Makes the answer with [`Answer::of_error`], and logs the error's text.
impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        tracing::error!(%error, "a request failed");
        Self::of_error(&error)
    }
}

/// Whether an answer with this status is a final refusal: 4xx, but not 401, 403, 408, 409, 425 and 429. A 404 or 405
/// may come from a gateway that did not reach the service. Then an earlier call without an answer may have succeeded.
#[must_use]
pub const fn is_final(status: u16) -> bool {
    matches!(status, 400..=499) && !matches!(status, 401 | 403 | 408 | 409 | 425 | 429)
}

/// The user of a request, as the service has authenticated them. Each key of [`key_of_header`] belongs to one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User(String);

impl User {
    /// Returns the user of this name. Take the name from a session, a token or an authenticating proxy
    /// (`X-Forwarded-User`), never from the request's body, where a client may name anybody.
    ///
    /// # Errors
    /// The 401 to send, if the name is missing, empty or has a control character in it.
    pub fn authenticated(name: Option<&str>) -> Result<Self, Answer> {
        let name = name.unwrap_or_default().trim_matches([' ', '\t']);
        if name.is_empty() || name.contains(char::is_control) {
            return Err(Answer::problem(401, "the request is not authenticated"));
        }
        // The first `/` of a key ends the user's name, so a `/` within the name is escaped.
        Ok(Self(name.replace('%', "%25").replace('/', "%2F")))
    }
}

/// Makes a request's key from the user and the value of the `Idempotency-Key` header: `<user>/<value>`, so that no user
/// gets the answer of another user.
///
/// In the draft the key is a quoted string (a Structured Header string); most clients send the key without quotes. Both
/// forms name the same key. In the user's name, `/` is written `%2F` and `%` is written `%25`.
///
/// ```
/// use pg_once::http::{User, key_of_header};
///
/// assert_eq!(User::authenticated(None).map_err(|answer| answer.status), Err(401));
/// let ada = User::authenticated(Some("ada"))?;
/// assert_eq!(key_of_header(&ada, Some("\"8e03978e\"")), Ok("ada/8e03978e".to_owned()));
/// assert_eq!(key_of_header(&ada, Some("8e03978e")), Ok("ada/8e03978e".to_owned()));
/// assert_eq!(key_of_header(&ada, None).map_err(|answer| answer.status), Err(400));
/// # Ok::<_, pg_once::http::Answer>(())
/// ```
///
/// # Errors
/// The 400 to send, if the header is missing, empty, malformed or too long (over 255 characters with the user's name).
pub fn key_of_header(user: &User, value: Option<&str>) -> Result<String, Answer> {
    let bad = |why| Answer::problem(400, why);
    let missing = || bad("the Idempotency-Key header is missing");
    let value = value.ok_or_else(missing)?.trim();
    let sent = match value.strip_prefix('"') {
        Some(rest) => unquoted(rest),
        None => Some(value.to_owned()).filter(|sent| !sent.contains('"')),
    };
    let sent = sent
        .filter(|sent| !sent.is_empty() && !sent.contains(char::is_control))
        .ok_or_else(|| bad("the Idempotency-Key header is not well formed"))?;
    let key = format!("{}/{sent}", user.0);
    if key.chars().count() > MAX_KEY_CHARS {
        return Err(bad("the Idempotency-Key header is too long"));
    }
    Ok(key)
}

/// Reads a Structured Header string after its opening quote. A backslash may escape only a quote or a backslash, and
/// nothing may follow the closing quote.
fn unquoted(rest: &str) -> Option<String> {
    let mut key = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return chars.as_str().is_empty().then_some(key),
            '\\' => key.push(chars.next().filter(|c| matches!(c, '"' | '\\'))?),
            plain @ ' '..='~' => key.push(plain),
            _ => return None,
        }
    }
}
