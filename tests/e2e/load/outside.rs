//! The world outside of the database, which outlives every server: a bank that dedupes by derived key, a
//! receiver that dedupes by delivery key, and a store of artifacts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

/// A bank: one charge for each derived key, whoever asks how often; or the refusal that it has cached under it.
#[derive(Default)]
pub struct Bank {
    /// By request: the derived key under which it is refused.
    refused: Mutex<HashMap<String, String>>,
    charges: Mutex<HashMap<String, (String, u64)>>,
}

impl Bank {
    /// The number of the charge that stands for `derived_key`.
    pub fn charge(&self, derived_key: &str, request: &str) -> u64 {
        let mut charges = self.charges.lock().unwrap();
        let next = charges.len() as u64 + 1;
        let charge = charges
            .entry(derived_key.to_owned())
            .or_insert_with(|| (request.to_owned(), next));
        assert_eq!(charge.0, request, "{derived_key} stands for two requests");
        charge.1
    }

    /// Whether a request that needs a second try is refused: under the first derived key that it came with, for ever.
    pub fn refuses(&self, derived_key: &str, request: &str) -> bool {
        let mut refused = self.refused.lock().unwrap();
        let first = refused
            .entry(request.to_owned())
            .or_insert_with(|| derived_key.to_owned());
        first == derived_key
    }

    /// Charges by request: more than one is money taken twice.
    pub fn by_request(&self) -> BTreeMap<String, Vec<u64>> {
        let mut requests: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for (request, charge) in self.charges.lock().unwrap().values() {
            requests.entry(request.clone()).or_default().push(*charge);
        }
        requests
    }
}

/// A receiver of events.
#[derive(Default)]
pub struct Receiver {
    /// By delivery key: the event it stood for first.
    known: Mutex<HashMap<String, String>>,
    /// What a token covers, the token, its holder.
    tokens: Mutex<BTreeMap<String, BTreeMap<i64, String>>>,
}

impl Receiver {
    /// Delivers one event; the same delivery key never stands for another one.
    pub fn deliver(&self, delivery_key: &str, event: &str) {
        let mut known = self.known.lock().unwrap();
        let first = known
            .entry(delivery_key.to_owned())
            .or_insert_with(|| event.to_owned());
        assert_eq!(first, event, "{delivery_key} stands for two events");
    }

    /// How often each event was accepted: once for each delivery key under which it came.
    pub fn accepted(&self) -> BTreeMap<String, usize> {
        let mut events = BTreeMap::new();
        for event in self.known.lock().unwrap().values() {
            *events.entry(event.clone()).or_default() += 1;
        }
        events
    }

    /// A token that covers `what`; no two holders ever get the same.
    pub fn saw_token(&self, what: &str, token: i64, holder: &str) {
        let mut tokens = self.tokens.lock().unwrap();
        let of_it = tokens.entry(what.to_owned()).or_default();
        let first = of_it.entry(token).or_insert_with(|| holder.to_owned());
        assert_eq!(first, holder, "token {token} of {what} has two holders");
    }

    /// The largest token seen for each key.
    pub fn tokens_of_keys(&self) -> BTreeMap<String, i64> {
        let tokens = self.tokens.lock().unwrap();
        let largest = tokens.iter().filter_map(|(what, seen)| {
            let key = what.strip_prefix("key ")?;
            Some((key.to_owned(), *seen.last_key_value()?.0))
        });
        largest.collect()
    }
}

/// Artifacts that exist, each with the token of the attempt that made it.
#[derive(Default)]
pub struct Store {
    artifacts: Mutex<BTreeSet<(String, i64)>>,
}

impl Store {
    pub fn make(&self, artifact: &str, token: i64) {
        let mut artifacts = self.artifacts.lock().unwrap();
        artifacts.insert((artifact.to_owned(), token));
    }

    /// What one attempt made; deleting what is not there is success.
    pub fn delete_own(&self, artifact: &str, token: i64) {
        let mut artifacts = self.artifacts.lock().unwrap();
        artifacts.remove(&(artifact.to_owned(), token));
    }

    /// What all attempts made under this name.
    pub fn delete(&self, artifact: &str) {
        let mut artifacts = self.artifacts.lock().unwrap();
        artifacts.retain(|(name, _)| name != artifact);
    }

    /// The names that exist.
    pub fn names(&self) -> BTreeSet<String> {
        let artifacts = self.artifacts.lock().unwrap();
        artifacts.iter().map(|(name, _)| name.clone()).collect()
    }
}
