//! Why is a row stuck? action_get, action_list, machine_list and machine_diagram, for a role that may only observe.

use crate::playground::Playground;
use crate::world::{JOB, TABLES, define, jobs, role, token, world};

const NEXT: &str = "select next from once.action_get('job', '1')";

/// A session of a role that may observe, and nothing on the tables.
async fn observer(play: &Playground) -> Playground {
    role(play, "standing_observer", "observe").await;
    play.another_as("standing_observer").await
}

#[tokio::test]
async fn one_call_says_who_has_a_row_what_failed_and_what_happens_next() {
    let play = world().await;
    let observer = observer(&play).await;
    let get = "select status, step_key, requester, holder, claimed_at is not null, lease_left, attempts, last_error,
                      cancelling from once.action_get('job', 1)";
    assert_eq!(observer.show(get).await, "", "there is no such row");
    jobs(&play, 1, 1, "ready").await;
    assert_eq!(observer.show(get).await, "ready|~|~|~|f|~|~|~|f");
    assert_eq!(
        observer.show(NEXT).await,
        "No action has the row: it waits for the next claim or transition."
    );
    let claim = "select token from once.action_claim('job', '1', 'run', 'worker', holder => 'w-7')";
    let first = play.show(claim).await;
    let told = observer.show(get).await;
    assert!(
        told.starts_with("running|run|worker|w-7|t|00:00:"),
        "{told}"
    );
    assert!(told.ends_with("|1|~|f"), "{told}");
    let next = observer.show(NEXT).await;
    assert!(
        next.contains("finishes or releases the row within"),
        "{next}"
    );
    assert!(
        next.contains("else a sweep puts the row back to \"ready\""),
        "{next}"
    );
    play.show(&format!(
        "select * from once.action_release('job', '1', {first}, 'the bank is closed')"
    ))
    .await;
    assert_eq!(
        observer.show(get).await,
        "ready|run|worker|~|f|~|1|the bank is closed|f"
    );
    let second = play.show(claim).await;
    assert!(observer.show(get).await.ends_with("|2|~|f"));
    // Its lease is over, and nobody sweeps.
    play.show("select once.action_expire('job', '1')").await;
    let next = observer.show(NEXT).await;
    assert!(
        next.contains("no such sweep has succeeded lately"),
        "{next}"
    );
    // A sweep that cannot.
    play.show(
        "create function refuse() returns trigger language plpgsql as $$ begin raise 'not today'; end $$;
         create trigger refuse before update on job for each row execute function refuse();
         select count(*) from once.sweep(task => 'action_release')",
    )
    .await;
    let next = observer.show(NEXT).await;
    assert!(
        next.contains("Sweeps that failed to put the row back to \"ready\": 1;"),
        "{next}"
    );
    assert!(observer.show(get).await.contains("|2|not today|"));
    play.show(&format!(
        "drop trigger refuse on job; select * from once.action_finish('job', '1', {second})"
    ))
    .await;
    assert_eq!(observer.show(get).await, "done|~|~|~|f|~|~|~|f");
}

#[tokio::test]
async fn a_cancelled_row_an_orphan_and_a_terminal_one_say_so() {
    let play = world().await;
    for (id, status) in [(1, "ready"), (2, "running"), (3, "archived")] {
        jobs(&play, id, id, status).await;
    }
    let next = |id: i64| format!("select next from once.action_get('job', {id})");
    assert!(
        play.show(&next(2))
            .await
            .contains("once.action_adopt('job')")
    );
    play.ask(&next(3))
        .is("Nothing: the status is terminal.")
        .await;
    let token = token(&play, 1, "run", ", 'worker'").await;
    play.show("select * from once.cancel_request('job', '1')")
        .await;
    assert!(
        play.show(&next(1))
            .await
            .contains("learns of the cancellation")
    );
    play.show(&format!(
        "select * from once.action_release('job', '1', {token})"
    ))
    .await;
    assert!(play.show(&next(1)).await.contains("once.cancel_pending"));
    let shown = "select cancelling from once.action_get('job', 1)";
    assert_eq!(play.show(shown).await, "t");
}

#[tokio::test]
async fn the_list_has_what_is_held_of_all_machines_and_no_token() {
    let play = world().await;
    let observer = observer(&play).await;
    jobs(&play, 1, 3, "ready").await;
    token(&play, 2, "run", ", 'worker'").await;
    let token = token(&play, 1, "run", ", 'worker'").await.to_string();
    let list = "select machine, id, status, attempts from once.action_list()";
    assert_eq!(
        observer.show(list).await,
        "job|2|running|1\njob|1|running|1"
    );
    observer
        .ask("select id from once.action_list('job', 1)")
        .is("2")
        .await;
    let everything = observer.show("select * from once.action_list()").await;
    assert!(!everything.contains(&token), "{everything}");
    let code = observer
        .code("select * from once.action_list('nothing')")
        .await;
    assert_eq!(code, "42704");
    // Its table is gone: its rows are listed, and the others.
    play.show("alter table job rename column status to state")
        .await;
    let next = observer
        .show("select distinct status, next from once.action_list()")
        .await;
    assert!(next.starts_with("~|Not known: "), "{next}");
}

#[tokio::test]
async fn machines_are_listed_with_their_modules() {
    let play = Playground::open().await;
    play.show(TABLES).await;
    define(
        &play,
        &JOB.replacen(
            "\"machine\": \"job\"",
            "\"machine\": \"job\", \"module\": \"billing\"",
            1,
        ),
    )
    .await;
    play.show("select once.machine_guard('job', true)").await;
    let list =
        "select machine, \"table\", guarded, module, owner, states[1:2] from once.machine_list()";
    assert_eq!(
        observer(&play).await.show(list).await,
        "job|public.job|t|billing|~|{new,ready}"
    );
    let problem =
        "select problem from once.machine_check('job') where problem like 'claim states%'";
    assert!(play.show(problem).await.contains("(module billing)"));
    let told = play.refused("select once.machine_assert()").await;
    assert_eq!(told.code, "ON004");
    assert!(told.message.contains("machine \"job\" (module billing)"));
}

#[tokio::test]
async fn a_machine_is_drawn_for_mermaid() {
    let play = world().await;
    let drawn = observer(&play)
        .await
        .show("select once.machine_diagram('job')")
        .await;
    for line in [
        "stateDiagram-v2",
        "    new --> ready : when (n #62;= 0)",
        "    ready --> running : claim run, claim run by worker",
        "    running --> done : finish run, finish run by worker",
        "    running --> ready : release",
        "    failed --> archived : retry by boss",
        "    ready --> cancelled : cancel",
        "    archived --> [*]",
        "    classDef claim stroke-dasharray: 6 4",
        "    classDef terminal stroke-width: 4px",
        "    class running claim",
        "    class cancelled terminal",
    ] {
        assert!(drawn.lines().any(|l| l == line), "{line}\n{drawn}");
    }
    play.show("create table odd (id int primary key, s text not null)")
        .await;
    define(
        &play,
        r#"{"machine": "odd", "table": "odd", "id": "id", "status": "s", "status_types": ["end", "at work", "two words", "é:\"x\""],
            "transitions": [{"from": ["end"], "to": "two words"}, {"from": ["two words"], "to": "é:\"x\""}],
            "steps": [{"step_key": "go", "status": "end", "successful_state": "two words",
                       "claim_state": {"w": ["at work", "end"]}}]}"#,
    )
    .await;
    let drawn = play.show("select once.machine_diagram('odd')").await;
    assert!(drawn.contains("    state \"end\" as s0\n"), "{drawn}");
    assert!(
        drawn.contains("    state \"é#58;#34;x#34;\" as s3\n"),
        "{drawn}"
    );
    assert!(
        drawn.contains("    s0 --> s2 : go\n    s2 --> s3\n"),
        "{drawn}"
    );
    // Success is for all requesters, the claim for one.
    assert!(
        drawn.contains("    s0 --> s1 : claim go by w\n    s1 --> s2 : finish go by w\n"),
        "{drawn}"
    );
}

#[tokio::test]
async fn the_picture_in_the_book_is_the_one_that_is_drawn() {
    let play = Playground::open().await;
    play.show(include_str!("../../../sql/examples/batch_job.sql"))
        .await;
    let machine = include_str!("../../../sql/examples/batch_job.json");
    define(&play, machine).await;
    let drawn = play.show("select once.machine_diagram('batch_job')").await;
    let page = include_str!("../../../docs/reference/machine.md");
    assert!(
        page.contains(&format!("```mermaid\n{}\n```", drawn.trim_end())),
        "{drawn}"
    );
}
