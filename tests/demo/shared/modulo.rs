//! Where a customer lives, as people route by hand: a hash, modulo the number of servers.

use std::hash::{DefaultHasher, Hash, Hasher};

/// The number of the customer's server, from 0.
pub fn server_of(customer: &str, servers: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    customer.hash(&mut hasher);
    (hasher.finish() % servers.max(1) as u64) as usize
}
