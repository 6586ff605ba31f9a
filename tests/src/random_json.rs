//! Random JSON texts, made of spellings of equal and nearly equal numbers, names and texts.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// Spellings of equal and of nearly equal numbers.
pub const NUMBERS: &[&str] = &[
    "0",
    "0.0",
    "-0",
    "0e10",
    "0e-5",
    "1",
    "1.0",
    "1.00000",
    "10e-1",
    "0.1e1",
    "1e0",
    "-1",
    "-1.0",
    "10",
    "1e1",
    "100",
    "1e2",
    "1.0e2",
    "1000",
    "9999",
    "10000",
    "1e4",
    "1.0e4",
    "10001",
    "99999",
    "100000",
    "1e5",
    "1e8",
    "100000000",
    "100000001",
    "0.1",
    "0.10",
    "1e-1",
    "0.01",
    "1e-2",
    "0.001",
    "0.0001",
    "1e-4",
    "0.00010",
    "0.00001",
    "1e-5",
    "0.00009999",
    "0.1000",
    "0.10001",
    "0.9999",
    "0.99999",
    "1.0001",
    "1.00001",
    "12345.6789",
    "12345.67890",
    "1234567890e-5",
    "12345.678901",
    "0.3",
    "0.30000000000000004",
    "9007199254740992",
    "9007199254740993",
    "9007199254740993.0",
    "1e15",
    "1e16",
    "1e100",
    "10e99",
    "1e-100",
    "10e-101",
    "1.7976931348623157e308",
    "1e309",
    "1e400",
    "10e399",
    "1e-400",
    "123e1000",
    "1230e999",
    "1e131071",
    "10e131070",
    "1e131070",
    "-1e131071",
    "1e-16383",
    "10e-16383",
    "1e-16382",
    "1e64",
    "1e252",
    "1e256",
    "1e260",
    "1e-252",
    "1e-256",
    "1e-260",
    "0.5e-260",
];

const TEXTS: &[&str] = &[
    "", "a", "A", "b", "aa", "é", "e\u{301}", "日本", "😀", "\\u0041", "\\u00e9", "\\n", "\\\"",
    "\\\\", "0", "1", "null", "true", "a b", "a  b", " a", "k", "kk", "{}", "[]",
];

fn pick<'a>(random: &mut StdRng, from: &[&'a str]) -> &'a str {
    from.choose(random).copied().unwrap_or_default()
}

fn space(random: &mut StdRng) -> &'static str {
    pick(random, &["", "", "", " ", "\n\t"])
}

/// A random JSON text of at most this depth.
pub fn value(random: &mut StdRng, depth: u32) -> String {
    let kinds = if depth == 0 { 5 } else { 8 };
    match random.random_range(0..kinds) {
        0 | 1 => pick(random, NUMBERS).to_owned(),
        2 => format!("\"{}\"", pick(random, TEXTS)),
        3 => pick(random, &["true", "false", "null"]).to_owned(),
        4 => pick(random, &["{}", "[]", "[[]]", "[{}]", "\"\"", "0"]).to_owned(),
        5 => {
            let items: Vec<_> = (0..random.random_range(0..5))
                .map(|_| value(random, depth - 1))
                .collect();
            let space = space(random);
            format!("[{space}{}{space}]", items.join(","))
        }
        _ => {
            let members: Vec<_> = (0..random.random_range(0..5))
                .map(|_| {
                    let name = pick(random, TEXTS);
                    format!("\"{name}\"{}:{}", space(random), value(random, depth - 1))
                })
                .collect();
            format!("{{{}{}}}", space(random), members.join(","))
        }
    }
}

/// The same value written otherwise, or a value that differs in one small place, at random.
pub fn variant(random: &mut StdRng, json: &str) -> String {
    match random.random_range(0..6) {
        0 => format!(" {json}\n"),
        1 => json.replace("1.0", "1.00"),
        2 => json.replacen("true", "false", 1),
        3 => json.replace("\"a\"", "\"\\u0061\""),
        4 => json.replacen("10000", "1e4", 1),
        _ => {
            let (from, to) = (pick(random, NUMBERS), pick(random, NUMBERS));
            json.replacen(from, to, 1)
        }
    }
}
