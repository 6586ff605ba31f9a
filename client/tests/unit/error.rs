//! Unit tests of src/error.rs.

use super::*;

#[test]
fn each_sqlstate_has_one_meaning() {
    for (code, kind) in [
        ("ON001", Kind::LeaseLost),
        ("ON002", Kind::IllegalTransition),
        ("ON003", Kind::InvalidDefinition),
        ("ON004", Kind::UncoveredClaimState),
        ("ON005", Kind::TeardownIncomplete),
        ("ON006", Kind::AlreadyDone),
        ("ON007", Kind::WrongShard),
        ("42704", Kind::Undeclared),
        ("40001", Kind::Conflict),
        ("40P01", Kind::Conflict),
        ("55P03", Kind::Conflict),
        ("57P01", Kind::Unavailable),
        ("57P02", Kind::Unavailable),
        ("57P03", Kind::Unavailable),
        ("08006", Kind::Unavailable),
        ("08P01", Kind::Unavailable),
        ("53300", Kind::Unavailable),
        ("40003", Kind::Unavailable),
        ("3D000", Kind::Unavailable),
        ("53100", Kind::Overloaded),
        ("53200", Kind::Overloaded),
        ("57014", Kind::Overloaded),
        ("25P04", Kind::Overloaded),
        ("25006", Kind::ReadOnly),
        ("55006", Kind::InUse),
        ("22023", Kind::InvalidArgument),
        ("22P02", Kind::InvalidArgument),
        ("42501", Kind::Forbidden),
        ("42883", Kind::Other),
    ] {
        assert_eq!(kind_of_sqlstate(code), kind, "{code}");
    }
}

#[test]
fn a_call_that_was_not_answered_may_be_repeated_and_a_closed_pool_may_not() {
    assert!(Error::TimedOut.is_retryable());
    assert!(!Error::from(PoolError::Closed).is_retryable());
    assert!(!Error::Answer("?".into()).is_retryable());
    assert!(!Error::other("the store is away").is_retryable());
}
