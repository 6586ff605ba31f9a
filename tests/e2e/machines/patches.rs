//! The patch of a move: other columns of the row, by the catalog's names and with their own types.

use crate::direct_moves::{BY_STATEMENT, WRITTEN_INDEXES};
use crate::plain_tables::altered;
use crate::world::{finish, job, jobs, moves, token, transition, world};

fn patch(json: &str) -> String {
    format!(", patch => $p${json}$p$")
}

#[tokio::test]
async fn a_patch_sets_columns_of_every_type_exactly() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    let json = r#"{"note": "it's \"so\" \\ 🦀\n", "n": 7, "doc": {"b": 1.00, "a": [9007199254740993]},
        "at": "2030-01-01T00:00:00Z", "amount": 123456789012345678901234567890.000000000000000000001,
        "short": "abcde", "list": [1, null, 3]}"#;
    assert_eq!(
        moves(&play, "1", "ready", &patch(json)).await,
        "t|ready|1|~"
    );
    play.ask("select note, n, doc, at = '2030-01-01 00:00+00', amount, short, list from job")
        .is(
            "it's \"so\" \\ 🦀\n|7|{\"a\": [9007199254740993], \"b\": 1.00}|t|\
         123456789012345678901234567890.000000000000000000001|abcde|{1,NULL,3}",
        )
        .await;
}

#[tokio::test]
async fn json_null_sets_null_and_a_column_that_is_not_named_stays() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("update job set note = 'x', doc = '1', short = 'y'")
        .await;
    moves(
        &play,
        "1",
        "ready",
        &patch(r#"{"note": null, "doc": null}"#),
    )
    .await;
    assert_eq!(play.show("select note, doc, short from job").await, "~|~|y");
    moves(&play, "1", "new", &patch("{}")).await;
    play.ask("select short, n, status from job")
        .is("y|0|new")
        .await;
    // SQL NULL is no patch.
    moves(&play, "1", "ready", ", patch => null").await;
    assert_eq!(play.show("select short, status from job").await, "y|ready");
}

#[tokio::test]
async fn a_column_that_a_patch_must_not_name_is_a_bad_argument() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("alter table job add gone int; alter table job drop gone")
        .await;
    for name in [
        "id",
        "status",
        "version",
        "cancel_requested",
        "nothing",
        "NOTE",
        "gone",
        "ctid",
        "xmin",
        "tableoid",
        "",
        "note\\u0020",
        "job.note",
        "\\\"note\\\"",
        "........pg.dropped.13........",
        "note = 'x' --",
    ] {
        let json = format!(r#"{{"n": 5, "{name}": 1}}"#);
        let refusal = play.refused(&transition("1", "ready", &patch(&json))).await;
        assert_eq!(refusal.code, "22023", "{name}: {refusal:?}");
        assert!(refusal.message.contains("patch"), "{name}: {refusal:?}");
    }
    assert_eq!(job(&play, 1).await, "new|0");
}

#[tokio::test]
async fn values_that_a_column_refuses_are_the_columns_own_errors_and_nothing_moves() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("alter table job add constraint low check (n < 100)")
        .await;
    for (json, code) in [
        (r#"{"n": "seven"}"#, "22P02"),
        (r#"{"n": 1e30}"#, "22003"),
        (r#"{"short": "abcdef"}"#, "22001"),
        (r#"{"n": null}"#, "23502"),
        (r#"{"n": 100}"#, "23514"),
        (r#"{"at": "no time"}"#, "22007"),
    ] {
        let refusal = play.refused(&transition("1", "ready", &patch(json))).await;
        // A number too big for int is refused by its text in some servers.
        let also = if code == "22003" { "22P02" } else { code };
        assert!(
            refusal.code == code || refusal.code == also,
            "{json}: {refusal:?}"
        );
    }
    assert_eq!(job(&play, 1).await, "new|0");
}

#[tokio::test]
async fn a_generated_column_cannot_be_patched() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    play.show("alter table job add twice int generated always as (n * 2) stored")
        .await;
    let code = play
        .code(&transition("1", "ready", &patch(r#"{"twice": 1}"#)))
        .await;
    assert!(matches!(code.as_str(), "22023" | "428C9"), "{code}");
    moves(&play, "1", "ready", &patch(r#"{"n": 4}"#)).await;
    assert_eq!(play.show("select twice from job").await, "8");
}

#[tokio::test]
async fn domains_elsewhere_in_the_table_do_not_disturb_a_patch() {
    let play = world().await;
    play.show(
        "create domain must as text not null; create domain even as int check (value % 2 = 0);
         alter table job add must must default 'm', add even even not null default 2",
    )
    .await;
    jobs(&play, 1, 1, "new").await;
    assert_eq!(
        moves(&play, "1", "ready", &patch(r#"{"note": "x"}"#)).await,
        "t|ready|1|~"
    );
    assert_eq!(
        moves(&play, "1", "new", &patch(r#"{"even": 4}"#)).await,
        "t|new|2|~"
    );
    let odd = transition("1", "ready", &patch(r#"{"even": 3}"#));
    assert_eq!(play.code(&odd).await, "23514");
    let null = transition("1", "ready", &patch(r#"{"must": null}"#));
    assert_eq!(play.code(&null).await, "23502");
    play.ask("select must, even, note, status from job")
        .is("m|4|x|new")
        .await;
}

#[tokio::test]
async fn names_that_need_quotes_are_patched_as_they_are() {
    let play = world().await;
    play.show(
        r#"alter table job add "Mixed Case" int, add "quo""te" int, add "it's; drop table job; --" int,
           add "select" int, add "ünï 🦀" int, add "back\slash" int, add "$1" int, add t int, add p int, add i int,
           add j int, add r int, add x int, add locked int, add job int"#,
    )
    .await;
    jobs(&play, 1, 1, "new").await;
    let json = r#"{"Mixed Case": 1, "quo\"te": 2, "it's; drop table job; --": 3, "select": 4,
        "ünï 🦀": 5, "back\\slash": 6, "$1": 7, "t": 8, "p": 9, "i": 10, "j": 11, "r": 12, "x": 13, "locked": 14,
        "job": 15}"#;
    assert_eq!(
        moves(&play, "1", "ready", &patch(json)).await,
        "t|ready|1|~"
    );
    play.ask(r#"select "Mixed Case", "quo""te", "it's; drop table job; --", "select", "ünï 🦀", "back\slash", "$1",
                      t, p, i, j, r, x, locked, job from job"#)
                          .is("1|2|3|4|5|6|7|8|9|10|11|12|13|14|15")
                          .await;
}

#[tokio::test]
async fn different_patches_one_after_another_set_each_their_own_columns() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    // More shapes than anybody would keep plans for.
    let columns = ["note", "n", "short", "at", "amount", "doc"];
    let values = ["\"t\"", "3", "\"s\"", "\"2030-01-01\"", "1.5", "{}"];
    for mask in 0_u32..64 {
        let members: Vec<_> = (0..6)
            .filter(|i| mask & (1 << i) != 0)
            .map(|i| format!(r#""{}": {}"#, columns[i], values[i]))
            .collect();
        play.show(
            "update job set note = null, n = 0, short = null, at = null, amount = null, doc = null",
        )
        .await;
        let to = if mask % 2 == 0 { "ready" } else { "new" };
        let shown = moves(
            &play,
            "1",
            to,
            &patch(&format!("{{{}}}", members.join(", "))),
        )
        .await;
        assert!(shown.starts_with("t|"), "{mask}: {shown}");
        let set = play
            .show("select num_nonnulls(note, nullif(n, 0), short, at, amount, doc) from job")
            .await;
        assert_eq!(set, mask.count_ones().to_string(), "{members:?}");
    }
}

#[tokio::test]
async fn a_finish_takes_a_patch_under_the_same_rules() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let token = token(&play, 1, "run", "").await;
    for json in [r#"{"status": "done"}"#, r#"{"nothing": 1}"#, "[]"] {
        assert_eq!(play.code(&finish(1, token, &patch(json))).await, "22023");
    }
    play.ask(&finish(
        1,
        token,
        &patch(r#"{"note": "result", "doc": [1.50]}"#),
    ))
    .is("finished|done|2")
    .await;
    play.ask("select note, doc, status from job")
        .is("result|[1.50]|done")
        .await;
}

/// As in direct_moves: the planner locks the table's indexes for writing.
#[tokio::test]
async fn a_patch_of_scalars_goes_without_a_statement_and_sets_the_same() {
    let identity = "alter table job add born bigint generated always as identity";
    let plain = altered(identity).await;
    let other = altered(&format!("{identity}; {BY_STATEMENT}")).await;
    for (json, is_direct) in [
        (
            r#"{"note": "x", "n": 7, "short": "abc", "amount": 1.50e2, "at": "2030-01-01T00:00:00Z"}"#,
            true,
        ),
        (
            r#"{"note": {"b": 1.00, "a": [true, "\u00e9"]}, "n": "8"}"#,
            true,
        ),
        (r#"{"note": false}"#, true),
        (r#"{"note": -0, "n": -7, "amount": -0.50}"#, true),
        (r#"{"note": null, "short": null}"#, true),
        (r#"{"note": "first", "note": "last"}"#, true),
        (r#"{"short": "abcdef"}"#, false),
        (r#"{"n": null}"#, false),
        (r#"{"born": 1}"#, false),
        (r#"{"note": "x", "doc": {"a": 1}}"#, false),
        (r#"{"list": [1, null]}"#, false),
    ] {
        let mut seen = Vec::new();
        for play in [&plain, &other] {
            let mut locked = String::new();
            let mut row = Err(String::new());
            // Another test may have the server forget all tables meanwhile.
            for _ in 0..3 {
                play.show("discard plans").await;
                play.show("begin").await;
                row = match play.attempt(&transition("5", "new", &patch(json))).await {
                    Ok(_) => Ok(play.show("select * from job where id = 5").await),
                    Err(refusal) => Err(refusal.code),
                };
                if row.is_ok() {
                    locked = play.show(WRITTEN_INDEXES).await;
                }
                play.show("rollback").await;
                if locked == "0" {
                    break;
                }
            }
            seen.push((row, locked == "0"));
        }
        assert_eq!(seen[0].0, seen[1].0, "{json}");
        assert_eq!((seen[0].1, seen[1].1), (is_direct, false), "{json}");
    }
}
