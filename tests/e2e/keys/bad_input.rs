//! Bad input: each bad value of each argument of each function gives the contract's SQLSTATE, a message
//! that names the argument, and a HINT; nothing is written.

use crate::playground::Playground;
use pg_once_tests::bad_input::{self, all_refused, functions};

/// The arguments of each function with good values; `T` is the token of key k.
const CALLS: &str = "
key_claim | scope 's' | key 'new' | request '1' | lease '1 s' | ttl '1 s' | holder 'h' | fingerprint sha256('x')
key_advance | scope 's' | key 'k' | token T | recovery_point 'p' | state '1' | lease '1 s'
key_complete | scope 's' | key 'k' | token T | response_code 200 | response_body '1' | response_headers '1'
key_abort | scope 's' | key 'k' | token T | response_code 500 | response_body '1' | response_headers '1'
key_release | scope 's' | key 'k' | token T | error 'e' | retry_after '1 s'
key_park | scope 's' | key 'k' | token T | reason 'r'
key_resolve | scope 's' | key 'parked' | attempt 1 | verdict 'complete' | response_code 200 | response_body '1' | response_headers '1'
key_extend | scope 's' | key 'k' | token T | lease '1 s'
key_step | scope 's' | key 'k' | token T | step 'pay' | on_abort null
key_step_done | scope 's' | key 'k' | token T | step 'pay' | result '1' | on_complete null | on_abort null
key_derive | scope 's' | key 'k' | step 'pay'
key_rotate | scope 's' | key 'k' | token T | step 'pay' | from_version 1
key_take_abandoned | scope 's' | max 10 | lease '1 s' | holder 'h'
scope_list | max 10 | after 's'
verify | max 10
shard_set | shard 0 | shards 16 | by 'key' | separator '/'
key_get | scope 's' | key 'k'
key_expire | scope 's' | key 'parked'
key_forget | scope 's' | key 'parked'
scope_set | scope 's' | options '{}'
scope_get | scope 's'
grant_role | role 'bad_input_role' | kind 'use'
revoke_role | role 'bad_input_role' | kind 'use'
";

/// The bad values of an argument and the code that each gives.
fn bad_values(function: &str, argument: &str, version: u32) -> Vec<(String, &'static str)> {
    let texts = |max: usize, null: bool| {
        let mut bad = vec![
            ("''".to_owned(), "22023"),
            (format!("repeat('x', {})", max + 1), "22023"),
            (format!("repeat('\u{1F600}', {})", max + 1), "22023"),
            (format!("repeat('x', {})", 20_000_000), "22023"),
        ];
        if null {
            bad.push(("null".to_owned(), "22023"));
        }
        bad
    };
    let numbers = |values: &[&str]| {
        let null = [("null".to_owned(), "22023")];
        values
            .iter()
            .map(|v| ((*v).to_owned(), "22023"))
            .chain(null)
            .collect()
    };
    match (function, argument) {
        (_, "scope" | "step") => texts(100, true),
        (_, "key") => texts(255, true),
        (_, "recovery_point") => texts(100, true),
        (_, "holder") => texts(200, false),
        (_, "reason") => ["null", "''"].map(|v| (v.to_owned(), "22023")).to_vec(),
        (_, "verdict" | "kind") => {
            let mut bad = texts(20, true);
            bad.extend(["'Retry'", "'use '", "'all'", "'r'"].map(|v| (v.to_owned(), "22023")));
            bad
        }
        (_, "lease" | "ttl" | "retry_after") => {
            let mut bad: Vec<_> = [
                "'0'",
                "'-1 microsecond'",
                "'-1 mon'",
                "'1 day -24:00:01'",
                "'1 mon -31 days'",
                "'1100 years'",
                "'178000000 years'",
                "'-178000000 years'",
            ]
            .map(|v| (v.to_owned(), "22023"))
            .to_vec();
            if version >= 17 {
                bad.extend(["'infinity'", "'-infinity'"].map(|v| (v.to_owned(), "22023")));
            }
            bad
        }
        (_, "token" | "response_code" | "attempt" | "options" | "role") => numbers(&[]),
        (_, "from_version") => numbers(&["0", "-1", "2", "3", "2147483647", "-2147483648"]),
        ("key_take_abandoned", "max") => numbers(&["0", "-1", "10001", "2147483647"]),
        (_, "max") => numbers(&["0", "-1", "1000001", "-2147483648"]),
        (_, "fingerprint") => ["16", "31", "33"]
            .map(|n| (format!("decode(repeat('ab', {n}), 'hex')"), "22023"))
            .into_iter()
            .chain([("''".to_owned(), "22023")])
            .collect(),
        (_, "on_abort" | "on_complete") => [
            "'{}'",
            "'null'",
            "'[]'",
            "'{\"topic\": \"t\"}'",
            "'{\"payload\": 1}'",
        ]
        .map(|v| (v.to_owned(), "22023"))
        .to_vec(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn every_bad_value_of_every_argument_is_refused_by_name_with_a_hint_and_writes_nothing() {
    let play = Playground::open().await;
    play.show("create role bad_input_role").await;
    let parked = play.token("parked", "").await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'x')"
    ))
    .await;
    let token = play.token("k", "").await;
    let bad_values = |function: &str, argument: &str| {
        bad_values(function, argument, crate::playground::cluster().version())
    };
    let stored = async || play.stored().await;
    let begin = ("begin", token);
    let tried = all_refused(&play, &functions(CALLS), begin, bad_values, stored).await;
    assert!(tried > 300, "{tried}");
}

#[tokio::test]
async fn every_function_of_the_schema_has_its_line_in_the_table_above_and_its_arguments_their_names()
 {
    let play = Playground::open().await;
    let declared = play
        .show(
            "select string_agg(proname || '(' || array_to_string(proargnames[1:pronargs], ',') || ')', E'\\n'
                               order by proname) from pg_proc where pronamespace = 'once'::regnamespace
               -- Without an argument none can be bad; the procedure is called in the janitor's tests.
               and pronargs > 0 and prokind = 'f'
               -- ledger.rs asks this one.
               and proname <> 'key_list'
               -- Strict: NULL answers NULL.
               and proname <> 'shard_of'
               -- Those of machines, sweeps, inbox and outbox are in the tables of their own tests.
               and proname !~ '^(machine|transition|action|cancel|cleanup|refund|sweep$|inbox)'
               and proname !~ '^(outbox|topic|subscriber)'",
        )
        .await;
    assert_eq!(declared, bad_input::declared(&functions(CALLS)));
}
