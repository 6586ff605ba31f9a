//! Unit tests of src/shards.rs.

use super::*;

#[test]
fn a_routing_value_has_the_shard_that_the_server_gives_it() {
    // The examples of docs/reference/shard.md.
    for (routing, shard) in [("acme", 1), ("globex", 4), ("", 12), ("käse", 2)] {
        assert_eq!(number(routing, 16), shard, "{routing}");
    }
    assert_eq!(number("acme", 1), 0);
}
