//! Bad input: each bad value of each argument gives the contract's SQLSTATE, a message that names the argument,
//! and a HINT; nothing is written.

use crate::playground::{Playground, cluster};
use crate::stored;
use pg_once_tests::bad_input::{all_refused, functions};

const CALLS: &str = "
inbox_accept | scope 's' | message_id 'm' | ttl '1 s'
inbox_record | scope 's' | message_id 'known' | verdict '1'
inbox_barrier | scope 's' | saga 'g' | step 'pay' | operation 'action' | ttl '1 s'
";

fn bad_values(argument: &str) -> Vec<String> {
    let texts = |max: usize| {
        vec![
            "null".to_owned(),
            "''".to_owned(),
            format!("repeat('x', {})", max + 1),
            format!("repeat('\u{1F600}', {})", max + 1),
        ]
    };
    let owned = |values: &[&str]| values.iter().map(|v| (*v).to_owned()).collect();
    match argument {
        "scope" | "step" => texts(100),
        "message_id" | "saga" => texts(255),
        "operation" => owned(&[
            "null",
            "''",
            "'Action'",
            "'act'",
            "'compensate'",
            "'action '",
        ]),
        "verdict" => owned(&["null"]),
        "ttl" => {
            let mut bad: Vec<String> = owned(&[
                "'0'",
                "'-1 microsecond'",
                "'1 mon -31 days'",
                "'1100 years'",
            ]);
            if cluster().version() >= 17 {
                bad.extend(owned(&["'infinity'", "'-infinity'"]) as Vec<String>);
            }
            bad
        }
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn every_bad_value_of_every_argument_is_refused_by_name_with_a_hint_and_writes_nothing() {
    let play = Playground::open().await;
    let bad_values = |_: &str, argument: &str| {
        let values = bad_values(argument).into_iter();
        values.map(|value| (value, "22023")).collect()
    };
    let known = ("begin; select once.inbox_accept('s', 'known')", 0);
    let stored = async || stored(&play).await;
    let tried = all_refused(&play, &functions(CALLS), known, bad_values, stored).await;
    assert!(tried > 40, "{tried}");
}

#[tokio::test]
async fn the_longest_names_in_any_alphabet_and_the_oddest_verdicts_are_kept() {
    let play = Playground::open().await;
    for c in ["x", "\u{1F600}", " ", "''"] {
        let names = format!("repeat('{c}', 100), repeat('{c}', 255)");
        let accept = format!("select accepted, verdict from once.inbox_accept({names})");
        play.show("begin").await;
        assert_eq!(play.show(&accept).await, "t|~");
        let verdict = "E'[1.0, \\n {\"a\": null, \"a\": \"\u{1F600}\"}]'";
        play.show(&format!(
            "select once.inbox_record({names}, {verdict}); commit"
        ))
        .await;
        let stored = play.show(&accept).await;
        assert!(
            stored.starts_with("f|[1.0, \n {\"a\": null, \"a\""),
            "{stored}"
        );
    }
    let big = "repeat('x', 2000000)";
    play.show(&format!(
        "begin; select once.inbox_accept('s', 'big');
         select once.inbox_record('s', 'big', to_json({big})); commit"
    ))
    .await;
    let same =
        format!("select (once.inbox_accept('s', 'big')).verdict::text = to_json({big})::text");
    assert_eq!(play.show(&same).await, "t");
    play.show(
        "begin; select once.inbox_accept('s', 'null');
         select once.inbox_record('s', 'null', 'null'); commit",
    )
    .await;
    play.ask("select verdict is null, verdict from once.inbox_accept('s', 'null')")
        .is("f|null")
        .await;
}
