//! Two requests have the same fingerprint exactly when PostgreSQL's jsonb says that they are equal.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::playground::Playground;
use pg_once_tests::random_json::{NUMBERS, value, variant};

/// A text as jsonb, and as json as it is written; what a variant has spoilt (not JSON any more, or too large a number) is one value.
const AS_JSONB: &str = r#"
    create function as_jsonb(source text) returns jsonb language plpgsql immutable as $$
        begin return source::jsonb;
        exception when others then return '"spoilt"';
        end $$;
    create function as_json(source text) returns json language plpgsql immutable as $$
        begin perform source::jsonb; return source::json;
        exception when others then return '"spoilt"';
        end $$"#;

/// Stores the fingerprint of each text under its number.
const STORE: &str = "
    select count(*) from jsonb_array_elements_text($1::text::jsonb) with ordinality as t(json, n),
           once.key_claim('s', n::text, as_json(t.json)) as c where c.outcome = 'claimed'";

/// Pairs of neighbours 2k-1, 2k: equal as jsonb, equal by fingerprint.
const COMPARE: &str = "
    select count(*), count(*) filter (where equal), count(*) filter (where equal <> same),
           max(json) filter (where equal <> same)
      from (select as_jsonb(a.json) = as_jsonb(b.json) as equal, ka.fingerprint = kb.fingerprint as same,
                   a.json || ' / ' || b.json as json
              from jsonb_array_elements_text($1::text::jsonb) with ordinality as a(json, n)
              join jsonb_array_elements_text($1::text::jsonb) with ordinality as b(json, n) on b.n = a.n + 1
              join once.key ka on ka.key = a.n::text
              join once.key kb on kb.key = b.n::text
             where a.n % 2 = 1) pairs";

async fn open() -> Playground {
    let play = Playground::open().await;
    play.show(AS_JSONB).await;
    play
}

async fn check(play: &Playground, texts: &[String]) -> (i64, i64) {
    let array = serde_json::to_string(texts).unwrap();
    play.show("delete from once.key").await;
    let stored: i64 = play
        .client
        .query_one(STORE, &[&array])
        .await
        .unwrap()
        .get(0);
    assert_eq!(usize::try_from(stored).unwrap(), texts.len());
    let row = play.client.query_one(COMPARE, &[&array]).await.unwrap();
    let wrong: i64 = row.get(2);
    assert_eq!(
        wrong,
        0,
        "{:.1000}",
        row.get::<_, Option<String>>(3).unwrap_or_default()
    );
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn of_ten_thousand_random_pairs_those_have_the_same_fingerprint_that_jsonb_calls_equal() {
    let play = open().await;
    let seed = std::env::var("PG_ONCE_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or_else(rand::random);
    println!("PG_ONCE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (mut pairs, mut equal) = (0, 0);
    for _ in 0..5 {
        let texts: Vec<String> = (0..2000)
            .flat_map(|_| {
                let first = value(&mut random, 3);
                let second = if random.random_bool(0.8) {
                    variant(&mut random, &first)
                } else {
                    value(&mut random, 1)
                };
                [first, second]
            })
            .collect();
        let (n, e) = check(&play, &texts).await;
        pairs += n;
        equal += e;
    }
    assert_eq!(pairs, 10_000);
    assert!(
        equal > 1000 && equal < 9500,
        "both kinds are there: {equal} of {pairs} are equal"
    );
}

/// A request above a megabyte is hashed from its jsonb, a shorter one from its text. Left out are documents that a shorter
/// one hands to jsonb, too.
const BOTH_WAYS: &str = r"
    with documents as (select '[' || string_agg(as_json(json)::text, ',') as text
                         from jsonb_array_elements_text($1::text::jsonb) as t(json)
                        where json !~ '[eE][+-]?\d{4}' and length(json) < 1000),
         claims as (select once.key_claim('s', $2 || 'text', (text || ']')::json),
                           once.key_claim('s', $2 || 'jsonb', (text || repeat(' ', 1 << 20) || ']')::json)
                      from documents)
    select count(*) from claims";

#[tokio::test]
async fn five_thousand_documents_have_the_fingerprint_of_their_jsonb() {
    let play = open().await;
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for round in 0..10 {
        let texts: Vec<String> = (0..500).map(|_| value(&mut random, 3)).collect();
        let array = serde_json::to_string(&texts).unwrap();
        let name = round.to_string();
        play.client
            .query_one(BOTH_WAYS, &[&array, &name])
            .await
            .unwrap();
        let kinds = format!(
            "select count(*), count(distinct fingerprint) from once.key where key in ('{name}text', '{name}jsonb')"
        );
        assert_eq!(play.show(&kinds).await, "2|1", "round {round}");
    }
}

#[tokio::test]
async fn every_pair_of_numbers_agrees_with_numeric_equality_at_every_depth() {
    let play = open().await;
    let mut spellings: HashMap<String, Vec<String>> = HashMap::new();
    for (wrap, unwrap) in [("", ""), ("[", "]"), ("{\"a\":", "}")] {
        let texts: Vec<String> = NUMBERS
            .iter()
            .map(|n| format!("{wrap}{n}{unwrap}"))
            .collect();
        let array = serde_json::to_string(&texts[..]).unwrap();
        play.show("delete from once.key").await;
        play.client.query_one(STORE, &[&array]).await.unwrap();
        let rows = play
            .client
            .query(
                "select key::int, encode(fingerprint, 'hex') from once.key order by key::int",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(rows.len(), NUMBERS.len());
        for row in rows {
            let n = usize::try_from(row.get::<_, i32>(0) - 1).unwrap();
            spellings
                .entry(row.get(1))
                .or_default()
                .push(format!("{wrap}{}{unwrap}", NUMBERS[n]));
        }
        let all = "select count(distinct fingerprint), (select count(distinct x::numeric)
                     from unnest($1::text[]) x) from once.key";
        let row = play.client.query_one(all, &[&NUMBERS]).await.unwrap();
        assert_eq!(
            row.get::<_, i64>(0),
            row.get::<_, i64>(1),
            "as many fingerprints as numbers"
        );
    }
    let ones = spellings
        .values()
        .find(|s| s.iter().any(|s| s == "1"))
        .unwrap();
    assert_eq!(
        ones,
        &["1", "1.0", "1.00000", "10e-1", "0.1e1", "1e0"],
        "a bare scalar is not an array of one"
    );
}

#[tokio::test]
async fn near_equal_structures_are_told_apart() {
    let play = open().await;
    let texts = r#"
        1 ~ [1] ~ [[1]] ~ {"1": 1} ~ {"a": [1]} ~ {"a": {"1": 1}} ~ [1, 2] ~ [2, 1] ~ [12] ~ [[1], 2] ~
        [1, [2]] ~ [[1, 2]] ~ "1" ~ ["1"] ~ ["1", 2] ~ ["1,2"] ~ ["a", "b"] ~ ["ab"] ~ ["", "ab"] ~
        {"a": 1, "b": 2} ~ {"a": 2, "b": 1} ~ {"ab": 1} ~ {"a": "b"} ~ ["a", "b", null] ~ null ~ [null] ~
        {"a": null} ~ {} ~ [] ~ [{}] ~ [[]] ~ {"a": {}} ~ {"a": []} ~ true ~ false ~ "true" ~ "null" ~
        "" ~ [""] ~ 0 ~ [0] ~ -1 ~ {"a":{"b":1},"c":2} ~ {"a":{"b":1,"c":2}} ~ [[],[]] ~ [[[]]] ~
        [[],[],[]] ~ "\u0001" ~ "a" ~ "A" ~ "e\u0301" ~ "é""#;
    let texts: Vec<&str> = texts.split('~').map(str::trim).collect();
    let array = serde_json::to_string(&texts).unwrap();
    play.client.query_one(STORE, &[&array]).await.unwrap();
    let distinct: i64 = play
        .client
        .query_one("select count(distinct fingerprint) from once.key", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(usize::try_from(distinct).unwrap(), texts.len());
}

#[tokio::test]
async fn of_members_with_one_name_the_last_one_counts() {
    let play = open().await;
    let texts = [
        r#"{"a": 1, "b": 2, "a": 3}"#,
        r#"{"b": 2, "a": 3}"#,
        r#"[{"a": {"b": 1, "\u0062": 2}}]"#,
        r#"[{"a": {"b": 2}}]"#,
        r#"{"a": 1, "a": 2}"#,
        r#"{"a": 1}"#,
    ];
    let (pairs, equal) = check(&play, &texts.map(str::to_owned)).await;
    assert_eq!((pairs, equal), (3, 2));
}

#[tokio::test]
async fn large_arrays_and_objects_with_offsets_between_their_entries_agree() {
    let play = open().await;
    let mut texts = Vec::new();
    for count in [1, 31, 32, 33, 63, 64, 65, 1000, 5000] {
        let mut random = StdRng::seed_from_u64(count);
        let items: Vec<String> = (0..count).map(|_| value(&mut random, 1)).collect();
        let members: Vec<String> = items
            .iter()
            .enumerate()
            .map(|(n, v)| format!("\"k{n}\": {v}"))
            .collect();
        let mut backwards = members.clone();
        backwards.reverse();
        let mut one_else = items.clone();
        one_else[count as usize / 2] = "\"something else\"".to_owned();
        texts.extend([
            format!("[{}]", items.join(",")),
            format!("[ {} ]", items.join(" , ")),
        ]);
        texts.extend([
            format!("{{{}}}", members.join(",")),
            format!("{{{}}}", backwards.join(", ")),
        ]);
        texts.extend([
            format!("[{}]", items.join(",")),
            format!("[{}]", one_else.join(",")),
        ]);
    }
    let (pairs, equal) = check(&play, &texts).await;
    assert_eq!((pairs, equal), (27, 18));
}

#[tokio::test]
async fn nine_kilobytes_of_huge_numbers_claim_in_milliseconds() {
    let play = open().await;
    let numbers = vec!["1e131071"; 1000].join(",");
    let request = format!("[{numbers}]");
    play.token("warm", ", '1'").await;
    let begin = Instant::now();
    assert_eq!(play.claim("k", &format!(", '{request}'")).await, "claimed");
    assert_eq!(
        play.claim("k", &format!(", '{request}'")).await,
        "in_progress"
    );
    let other = request.replacen("1e131071", "10e131070", 1);
    assert_eq!(
        play.claim("k", &format!(", '{other}'")).await,
        "in_progress"
    );
    let other = request.replacen("1e131071", "1e131070", 1);
    assert_eq!(play.claim("k", &format!(", '{other}'")).await, "mismatched");
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
}

/// A defect once: the server died of a request that was nested thousands of levels deep.
#[tokio::test]
async fn whatever_depth_of_nesting_the_server_can_hold_can_be_claimed() {
    let play = open().await;
    for depth in [100, 1000, 5000, 8000, 20_000, 100_000, 1_000_000] {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let inner = if open == "[" { "" } else { "1" };
            let request = format!(
                "(repeat('{open}', {depth}) || '{inner}' || repeat('{close}', {depth}))::json"
            );
            let held = play
                .attempt(&format!("select length(({request}::jsonb)::text) > 0"))
                .await;
            let claim =
                format!("select outcome from once.key_claim('s', '{depth}{open}', {request})");
            match held {
                Ok(_) => {
                    assert_eq!(play.show(&claim).await, "claimed", "{depth}");
                    assert_eq!(play.show(&claim).await, "in_progress", "{depth}");
                }
                Err(refusal) => assert_eq!(play.code(&claim).await, refusal.code, "{depth}"),
            }
        }
    }
}
