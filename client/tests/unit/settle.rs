//! Unit tests of src/run/outbox/settle.rs.

use super::*;

#[test]
fn a_kind_that_the_server_would_not_take_becomes_one_that_it_takes() {
    assert_eq!(kind_of("timeout"), "timeout");
    for kind in ["", "\0", "released", "never", "expired"] {
        assert_eq!(kind_of(kind), "error", "{kind:?}");
    }
    assert_eq!(kind_of(&"ü".repeat(300)).chars().count(), 100);
}
