//! Bad input: each bad value of each argument of each function on machines gives the contract's SQLSTATE, a
//! message that names the argument, and a HINT; nothing is written.

use crate::playground::Playground;
use crate::world::{jobs, token, world};
use pg_once_tests::bad_input::{self, all_refused, functions};

/// The arguments of each function with good values; `T` is the token of job 2.
const CALLS: &str = r#"
machine_define | definition once.machine_get('job')
machine_get | machine 'job'
machine_check | machine 'job'
machine_assert
machine_guard | machine 'job' | enabled true
transition | machine 'job' | id '1' | to_status 'ready' | from_status '{new}' | patch '{"note": "x"}' | requester 'worker' | version 0
transition_many | machine 'job' | ids '{1}' | to_status 'ready' | from_status '{new}' | requester 'worker'
action_claim | machine 'job' | id '4' | step_key 'run' | requester 'worker' | lease '1 s' | holder 'h' | version 0
action_extend | machine 'job' | id '2' | token T | lease '1 s'
action_finish | machine 'job' | id '2' | token T | patch '{"note": "x"}'
action_release | machine 'job' | id '2' | token T | error 'e'
action_expire | machine 'job' | id '1'
action_get | machine 'job' | id '1'
action_list | machine 'job' | max 10
machine_diagram | machine 'job'
machine_history | machine 'job' | id '1' | max 10
machine_list
action_adopt | machine 'job' | max 10
cancel_request | machine 'job' | id '1'
cancel_refund | machine 'job' | id '3' | max_items 1
cancel_items | machine 'job' | id '3' | after_id '1' | max 10
cancel_confirm | machine 'job' | id '3' | pass 1
cancel_finish | machine 'job' | id '5' | patch '{"note": "x"}'
cancel_pending | machine 'job' | max 10
cancel_audit | machine 'job' | id '3'
sweep | max 10 | task 'action_release' | machine 'job'
-- Last: nothing of the machine is left for the others within its transaction.
machine_drop | machine 'idle'
"#;

const NULL: &str = "null";

/// Bad values of an argument, and the SQLSTATE of each.
fn bad_values(function: &str, argument: &str) -> Vec<(String, &'static str)> {
    let own = |values: &[&str]| {
        values
            .iter()
            .map(|value| ((*value).to_owned(), "22023"))
            .collect::<Vec<_>>()
    };
    let long = "repeat('x', 10000)";
    match argument {
        "machine" if matches!(function, "machine_check" | "sweep" | "action_list") => {
            vec![
                ("'nothing'".to_owned(), "42704"),
                ("'JOB'".to_owned(), "42704"),
            ]
        }
        "task" => own(&[NULL, "''", "'key_reap'", "'Action_Release'", long]),
        "machine" => {
            let mut values = own(&[NULL, "''", long]);
            values.extend([
                ("'nothing'".to_owned(), "42704"),
                ("'JOB'".to_owned(), "42704"),
                ("'job '".to_owned(), "42704"),
                ("'job''; --'".to_owned(), "42704"),
            ]);
            values
        }
        "id" if function == "cancel_audit" => own(&["'x'", "''", "'1.5'"]),
        "id" => own(&[NULL, "'x'", "''", "'1.5'", "'99999999999999999999'", long]),
        "after_id" => own(&["'x'", "''", "'1.5'"]),
        "ids" => own(&[
            NULL,
            "'{x}'",
            "'{1,NULL}'",
            "'{\"\"}'",
            "array_fill('1'::text, array[10001])",
        ]),
        "to_status" => own(&[NULL, "''", long]),
        "step_key" => own(&[NULL, "''", "'nothing'", "'RUN'", "'run '", long]),
        "from_status" => own(&["'{new,x}'", "'{new,NULL}'"]),
        "requester" => own(&["''", long]),
        "holder" => own(&["''", long]),
        "token" => own(&[NULL]),
        "pass" => own(&[NULL, "-1", "0", "99"]),
        "lease" => own(&["'0'", "'-1 s'", "'1 month -40 days'", "'-1 year'"]),
        "max" => own(&[NULL, "0", "-1", "1000001", "2147483647"]),
        "max_items" => own(&["0", "-1"]),
        "enabled" | "definition" => own(&[NULL]),
        "patch" => own(&[
            "'[]'",
            "'1'",
            "'null'",
            "'{\"status\": \"x\"}'",
            "'{\"nothing\": 1}'",
            "'{\"id\": 1}'",
        ]),
        // Any version is a version; an error may be any text.
        "version" | "error" => Vec::new(),
        other => panic!("no bad values for {other} of {function}"),
    }
}

/// Everything that a call could have written.
const STORED: &str = "
    select (select string_agg(x::text, ';' order by id) from job as x),
           (select string_agg(x::text, ';' order by id) from item as x),
           (select string_agg(x::text, ';' order by x.machine) from once.machine as x),
           (select string_agg(x::text, ';' order by x.id) from once.action_lease as x),
           (select string_agg(x::text, ';' order by x.row_id) from once.cancel as x),
           (select string_agg(x::text, ';' order by x.row_id) from once.refund as x),
           (select string_agg(x::text, ';' order by x.task) from once.janitor as x)";

/// Jobs 1 new, 2 held, 3 refunded once with an item left, 4 ready, 5 to be finished; another machine.
async fn prepare(play: &Playground) -> i64 {
    jobs(play, 1, 1, "new").await;
    jobs(play, 2, 5, "ready").await;
    play.show(
        "insert into item (id, job_id, state, points) values (1, 3, 'succeeded', 5), (2, 3, 'failed', 7);
         select once.cancel_request('job', id::text) from job where id in (3, 5);
         select once.cancel_refund('job', '3', 1); select once.cancel_refund('job', '5'); select once.cancel_confirm('job', '5', 1);
         create table idle (id int primary key, status text not null);
         select once.machine_define('{\"machine\": \"idle\", \"table\": \"idle\", \"id\": \"id\", \"status\": \"status\",
            \"status_types\": [\"a\", \"b\"], \"transitions\": [{\"from\": [\"a\"], \"to\": \"b\"}]}');
         select once.sweep()",
    )
    .await;
    token(play, 2, "run", ", lease => '1 h'").await
}

#[tokio::test]
async fn every_bad_value_of_every_argument_is_refused_by_name_with_a_hint_and_writes_nothing() {
    let play = world().await;
    let token = prepare(&play).await;
    let stored = async || play.show(STORED).await;
    let begin = ("begin", token);
    let tried = all_refused(&play, &functions(CALLS), begin, bad_values, stored).await;
    assert!(tried > 150, "{tried}");
}

#[tokio::test]
async fn every_function_on_machines_has_its_line_in_the_table_above_and_its_arguments_their_names()
{
    let play = Playground::open().await;
    let declared = play
        .show(
            "select string_agg(line, E'\\n' order by line collate \"C\")
               from (select distinct proname || '(' || coalesce(array_to_string(proargnames[1:pronargs], ','), '') || ')'
                       from pg_proc where pronamespace = 'once'::regnamespace
                        and proname ~ '^(machine|transition|action|cancel|cleanup|refund|sweep$)'
                        and prorettype <> 'trigger'::regtype) as t(line)",
        )
        .await;
    assert_eq!(declared, bad_input::declared(&functions(CALLS)));
}

#[tokio::test]
async fn an_error_text_of_any_length_is_kept_or_cut_and_never_refuses_the_release() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    for (id, length) in [(1, 0), (2, 5_000_000)] {
        let token = token(&play, id, "run", "").await;
        let shown = play
            .show(&format!(
                "select status from once.action_release('job', '{id}', {token}, repeat('x', {length}))"
            ))
            .await;
        assert_eq!(shown, "ready", "{length}");
    }
}
