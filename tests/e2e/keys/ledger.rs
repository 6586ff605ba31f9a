//! key_list: what the requests of a scope did outside, whole or not at all, for whoever compares it with
//! the other side's ledger.

use crate::playground::Playground;

const ALL: &str =
    "select key, status, attempt, step, version, done, result, begun, response_code, last_error
                     from once.key_list('s') order by key collate \"C\", step";

/// Keys in every status, the times of their creation a minute apart.
async fn a_day(play: &Playground) {
    play.show(r#"select once.scope_set('s', '{"ttl": "1 h", "lease": "10 min"}')"#)
        .await;
    play.clock("0").await;
    let done = play.token("done", "").await;
    let begin = |key: &str, token: i64, step: &str| {
        format!("select derived_key from once.key_step('s', '{key}', {token}, '{step}')")
    };
    play.show(&begin("done", done, "charge")).await;
    play.show(&format!(
        "select once.key_step_done('s', 'done', {done}, 'charge', '{{\"id\": 7}}')"
    ))
    .await;
    play.show(&begin("done", done, "notify")).await;
    play.show(&format!(
        "select once.key_complete('s', 'done', {done}, 201)"
    ))
    .await;
    play.clock("1 min").await;
    let parked = play.token("parked", "").await;
    play.show(&begin("parked", parked, "charge")).await;
    play.show(&format!(
        "select once.key_park('s', 'parked', {parked}, 'silent')"
    ))
    .await;
    play.clock("2 min").await;
    play.token("running", "").await;
    play.clock("3 min").await;
    let released = play.token("released", "").await;
    play.show(&format!(
        "select once.key_release('s', 'released', {released}, '503')"
    ))
    .await;
}

#[tokio::test]
async fn every_step_of_a_scope_is_listed_and_a_key_without_one_too() {
    let play = Playground::open().await;
    a_day(&play).await;
    play.show("select once.key_claim('another scope', 'k')")
        .await;
    play.ask(ALL)
        .is("done|finished|1|charge|1|t|{\"id\": 7}|1|201|~\n\
         done|finished|1|notify|1|f|~|1|201|~\n\
         parked|parked|1|charge|1|f|~|1|~|silent\n\
         released|released|1|~|~|~|~|~|~|503\n\
         running|running|1|~|~|~|~|~|~|~")
        .await;
    let derived = "select bool_and(derived_key = once.key_derive('s', key, step)) from once.key_list('s') where step is not null";
    assert_eq!(play.show(derived).await, "t");
    let columns =
        "select array_to_string(proargnames, ' ') from pg_proc where proname = 'key_list'";
    assert!(!play.show(columns).await.contains("token"));
}

#[tokio::test]
async fn a_window_holds_the_keys_that_were_created_in_it_whatever_became_of_them() {
    let play = Playground::open().await;
    a_day(&play).await;
    let keys = |window: &str| {
        format!(
            "select string_agg(distinct key, ' ' order by key) from once.key_list('s', {window})"
        )
    };
    let at = |minutes: u32| format!("timestamptz '2030-01-01 00:0{minutes}:00+00'");
    let window = format!("{}, {}", at(1), at(3));
    assert_eq!(play.show(&keys(&window)).await, "parked running");
    // A take moves what is abandoned; what it parks or hands out stays in its window.
    play.clock("30 min").await;
    play.show("select once.sweep(task => 'key_abandon'); select key from once.key_take_abandoned('s', 100)")
        .await;
    assert_eq!(play.show(&keys(&window)).await, "parked running");
    play.ask(&keys("in_status => 'parked'")).is("parked").await;
    let resumed = "select status, attempt from once.key_list('s') where key = 'running'";
    assert_eq!(play.show(resumed).await, "running|2");
}

#[tokio::test]
async fn a_list_that_would_not_be_whole_is_refused() {
    let play = Playground::open().await;
    a_day(&play).await;
    play.ask("select * from once.key_list('s', max => 4)")
        .fails("22023")
        .await;
    let whole = play.show("select count(*) from once.key_list('s', max => 5)");
    assert_eq!(whole.await, "5");
    for bad in ["in_status => 'lost'", "max => 0", "max => 100001"] {
        let call = format!("select * from once.key_list('s', {bad})");
        assert_eq!(play.code(&call).await, "22023", "{bad}");
    }
}

#[tokio::test]
async fn what_the_options_park_is_parked_and_what_is_gone_has_no_steps_swept_or_not() {
    let play = Playground::open().await;
    a_day(&play).await;
    play.show(r#"select once.scope_set('s', '{"on_expiry": "park"}')"#)
        .await;
    play.clock("20 min").await;
    let parked =
        "select string_agg(key, ' ' order by key) from once.key_list('s', in_status => 'parked')";
    assert_eq!(play.show(parked).await, "parked running");
    play.clock("2 h").await;
    let gone = "select key, status, step, response_code, last_error from once.key_list('s', in_status => 'gone')";
    for _ in ["before the sweep", "after it"] {
        assert_eq!(play.show(gone).await, "done|gone|~|~|~");
        play.show("select once.sweep(task => 'key_tombstone')")
            .await;
    }
    play.clock("2 days").await;
    assert_eq!(
        play.show(gone).await,
        "",
        "past gone_for it is as if never claimed"
    );
}

#[tokio::test]
async fn it_is_for_operators_who_are_members_of_the_owner() {
    let play = Playground::open().await;
    play.show(
        "create role steps_owner; create role steps_user login; create role steps_operator login",
    )
    .await;
    play.show(
        "select once.grant_role('steps_user', 'use'), once.grant_role('steps_operator', 'operate')",
    )
    .await;
    play.show("select once.key_claim('s', 'k')").await;
    let (user, operator) = (
        play.another_as("steps_user").await,
        play.another_as("steps_operator").await,
    );
    let list = "select key from once.key_list('s')";
    assert_eq!(user.code(list).await, "42501");
    assert_eq!(operator.show(list).await, "k");
    play.show(r#"select once.scope_set('s', '{"owner": "steps_owner"}')"#)
        .await;
    assert_eq!(operator.code(list).await, "42501");
    play.show("grant steps_owner to steps_operator").await;
    assert_eq!(operator.show(list).await, "k");
    operator.show("begin read only").await;
    assert_eq!(operator.show(list).await, "k");
    operator.show("rollback").await;
}
