//! Every error of the extension itself: its kind (one SQLSTATE each), message and hint.
//!
//! Functions return `Result<_, Error>`. Only `raise.rs` turns an `Error` into a PostgreSQL error, after every Rust
//! value of the call was dropped. Errors of the server (such as out of disk) are no `Error`: pgrx passes them on.

/// The kind of an error, for the caller's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    LeaseLost,
    IllegalTransition,
    InvalidDefinition,
    UncoveredClaimState,
    TeardownIncomplete,
    AlreadyDone,
    WrongShard,
    BadArgument,
    NotYours,
    RetryTransaction,
    InUse,
    LockNotAvailable,
    ReadOnly,
    TransactionBlock,
    UndefinedObject,
    MissingWallet,
    Cancelled,
    Shutdown,
    NotInstalled,
    Internal,
}

impl Kind {
    /// The SQLSTATE of each kind.
    pub fn sqlstate(self) -> &'static [u8; 5] {
        match self {
            Kind::LeaseLost => b"ON001",
            Kind::IllegalTransition => b"ON002",
            Kind::InvalidDefinition => b"ON003",
            Kind::UncoveredClaimState => b"ON004",
            Kind::TeardownIncomplete => b"ON005",
            Kind::AlreadyDone => b"ON006",
            Kind::WrongShard => b"ON007",
            Kind::MissingWallet => b"23503",
            Kind::Cancelled => b"57014",
            Kind::Shutdown => b"57P01",
            Kind::BadArgument => b"22023",
            Kind::NotYours => b"42501",
            Kind::RetryTransaction => b"40001",
            Kind::InUse => b"55006",
            Kind::LockNotAvailable => b"55P03",
            Kind::ReadOnly => b"25006",
            Kind::TransactionBlock => b"2D000",
            Kind::UndefinedObject => b"42704",
            Kind::NotInstalled => b"55000",
            Kind::Internal => b"XX000",
        }
    }
}

/// An error as the caller reads it.
#[derive(Debug)]
pub struct Error {
    pub kind: Kind,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error {
            kind,
            message: message.into(),
            detail: None,
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Error {
        self.hint = Some(hint.into());
        self
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Error {
        self.detail = Some(detail.into());
        self
    }

    /// XX000: the server or a stored row is not as it should be.
    pub fn internal(message: impl std::fmt::Display) -> Error {
        Error::new(Kind::Internal, message.to_string())
    }

    /// 22023; the message begins with the argument's name.
    pub fn bad_argument(name: &str, problem: impl AsRef<str>, hint: impl Into<String>) -> Error {
        Error::new(
            Kind::BadArgument,
            format!("argument \"{name}\" {}", problem.as_ref()),
        )
        .hint(hint)
    }

    /// ON006 for a write that an earlier call has made. The argument `behind` becomes the end of the hint. It tells the
    /// caller how to go on.
    pub fn already_done(what: impl AsRef<str>, behind: &str) -> Error {
        Error::new(Kind::AlreadyDone, what.as_ref()).hint(format!(
            "Roll back to before your own writes of this transaction, then go on after this call: {behind}"
        ))
    }

    /// 40001 for a lost race, mostly above READ COMMITTED, where the snapshot does not show the other session's change.
    pub fn retry_transaction(what: impl AsRef<str>) -> Error {
        Error::new(
            Kind::RetryTransaction,
            format!(
                "could not serialize access to {} due to a concurrent change",
                what.as_ref()
            ),
        )
        .hint("Roll back and run the whole transaction again.")
    }

    /// 25006 for a call that must write, but runs in a read-only transaction or on a standby.
    pub fn read_only(what: impl AsRef<str>) -> Error {
        Error::new(
            Kind::ReadOnly,
            format!("cannot write {} in a read-only transaction", what.as_ref()),
        )
        .hint("Call the function in a READ WRITE transaction on the primary server.")
    }
}
