//! action_claim: every outcome, for every kind of requester, and what a repeat of its holder gets.

use crate::playground::Playground;
use crate::world::{claim, finish, job, jobs, moves, outcome, release, token, world};

#[tokio::test]
async fn a_claim_moves_the_row_and_hands_out_a_token_and_a_lease() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    play.ask(&format!(
        "select outcome, token > 0, status, version, lease_left, retry_after from {}",
        claim(1, "run", "")
    ))
    .is("claimed|t|running|1|00:00:30|~")
    .await;
    assert_eq!(job(&play, 1).await, "running|1");
}

#[tokio::test]
async fn a_live_lease_is_busy_and_says_when_to_come_back() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    token(&play, 1, "run", "").await;
    let busy = format!(
        "select outcome, token, status, lease_left, retry_after from {}",
        claim(1, "run", "")
    );
    play.clock("10 s").await;
    play.ask(&busy)
        .is("in_progress|~|running|00:00:20|00:00:01")
        .await;
    play.show("set once.retry_after = '5s'").await;
    play.ask(&busy)
        .is("in_progress|~|running|00:00:20|00:00:05")
        .await;
    // Never sooner than a tenth of a second.
    play.clock("29.99 s").await;
    play.ask(&busy)
        .is("in_progress|~|running|00:00:00.01|00:00:00.1")
        .await;
}

#[tokio::test]
async fn a_row_in_another_status_or_version_is_refused() {
    let play = world().await;
    jobs(&play, 1, 1, "new").await;
    jobs(&play, 2, 2, "ready").await;
    jobs(&play, 3, 3, "archived").await;
    assert_eq!(outcome(&play, 1, "run", "").await, "refused|new");
    assert_eq!(
        outcome(&play, 2, "retry", ", 'worker'").await,
        "refused|ready"
    );
    assert_eq!(outcome(&play, 3, "run", "").await, "refused|archived");
    assert_eq!(
        outcome(&play, 2, "run", ", version => 5").await,
        "refused|ready"
    );
    assert_eq!(
        outcome(&play, 2, "run", ", version => 0").await,
        "claimed|running"
    );
}

#[tokio::test]
async fn a_requester_that_the_step_does_not_name_is_refused_and_anybody_covers_all() {
    let play = world().await;
    jobs(&play, 1, 3, "failed").await;
    assert_eq!(outcome(&play, 1, "retry", "").await, "refused|failed");
    assert_eq!(
        outcome(&play, 1, "retry", ", 'clerk'").await,
        "refused|failed"
    );
    assert_eq!(outcome(&play, 1, "retry", ", '*'").await, "refused|failed");
    assert_eq!(
        outcome(&play, 1, "retry", ", 'worker'").await,
        "claimed|retrying"
    );
    jobs(&play, 11, 14, "ready").await;
    for (id, requester) in [(11, "null"), (12, "'*'"), (13, "'worker'"), (14, "'clerk'")] {
        let shown = outcome(&play, id, "run", &format!(", {requester}")).await;
        assert_eq!(shown, "claimed|running", "{requester}");
    }
}

#[tokio::test]
async fn a_requester_without_a_claim_state_is_unclaimed_and_ends_with_a_transition() {
    let play = world().await;
    jobs(&play, 1, 1, "failed").await;
    play.ask(&format!(
        "select outcome, token, status, lease_left from {}",
        claim(1, "retry", ", 'boss'")
    ))
    .is("unclaimed|~|failed|~")
    .await;
    assert_eq!(job(&play, 1).await, "failed|0");
    assert_eq!(
        moves(&play, "1", "archived", ", requester => 'boss'").await,
        "t|archived|1|~"
    );
}

#[tokio::test]
async fn the_same_holder_gets_its_token_again_and_writes_nothing() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    play.clock("0").await;
    let first = token(&play, 1, "run", ", holder => 'h'").await;
    play.clock("10 s").await;
    play.show("begin").await;
    let again = play
        .show(&format!(
            "select outcome, token, status, version, lease_left, retry_after from {}",
            claim(1, "run", ", holder => 'h'")
        ))
        .await;
    assert_eq!(again, format!("claimed|{first}|running|1|00:00:20|~"));
    play.ask("select pg_current_xact_id_if_assigned() is null")
        .is("t")
        .await;
    play.show("commit").await;
    for other in ["", ", holder => 'other'", ", holder => null"] {
        assert_eq!(outcome(&play, 1, "run", other).await, "in_progress|running");
    }
}

#[tokio::test]
async fn a_holder_whose_lease_ran_out_or_ended_claims_anew() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let holder = ", holder => 'h'";
    play.clock("0").await;
    let first = token(&play, 1, "run", holder).await;
    play.clock("31 s").await;
    let second = token(&play, 1, "run", holder).await;
    assert!(second > first);
    play.show(&release(1, second, "")).await;
    let third = token(&play, 1, "run", holder).await;
    assert!(third > second);
    play.show(&finish(1, third, "")).await;
    assert_eq!(outcome(&play, 1, "run", holder).await, "refused|done");
}

#[tokio::test]
async fn the_same_holder_at_another_row_or_step_is_another_claim() {
    let play = world().await;
    jobs(&play, 1, 2, "ready").await;
    jobs(&play, 3, 3, "failed").await;
    let holder = ", 'worker', holder => 'h'";
    let first = token(&play, 1, "run", holder).await;
    assert_ne!(token(&play, 2, "run", holder).await, first);
    token(&play, 3, "retry", holder).await;
    // The lease on 1 is for run, so a claim for another step is not its repeat.
    assert_ne!(outcome(&play, 1, "retry", holder).await, "claimed|running");
}

#[tokio::test]
async fn every_refused_or_busy_claim_writes_nothing() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    jobs(&play, 2, 2, "new").await;
    jobs(&play, 3, 3, "failed").await;
    jobs(&play, 4, 4, "ready").await;
    play.show("select once.cancel_request('job', '4')").await;
    token(&play, 1, "run", "").await;
    let leases = "select count(*), sum(token) from once.action_lease";
    let before = play.show(leases).await;
    for (id, step, more, expected) in [
        (1, "run", "", "in_progress|running"),
        (2, "run", "", "refused|new"),
        (3, "retry", ", 'boss'", "unclaimed|failed"),
        (4, "run", "", "cancelling|ready"),
        (9, "run", "", "not_found|~"),
    ] {
        assert_eq!(outcome(&play, id, step, more).await, expected);
    }
    assert_eq!(play.show(leases).await, before);
}

/// A step whose lease comes from the setting, claimed with these further arguments.
async fn granted(play: &Playground, id: i64, step: &str, more: &str) -> String {
    jobs(play, id, id, if step == "run" { "ready" } else { "failed" }).await;
    play.show(&format!(
        "select lease_left from {}",
        claim(id, step, &format!(", 'worker'{more}"))
    ))
    .await
}

#[tokio::test]
async fn a_lease_is_the_arguments_or_the_steps_or_the_settings() {
    let play = world().await;
    play.clock("0").await;
    assert_eq!(granted(&play, 1, "retry", "").await, "00:05:00");
    play.show("set once.action_lease = '7 min'").await;
    assert_eq!(granted(&play, 2, "retry", "").await, "00:07:00");
    assert_eq!(granted(&play, 3, "run", "").await, "00:00:30");
    assert_eq!(
        granted(&play, 4, "run", ", lease => '2 h'").await,
        "02:00:00"
    );
    assert_eq!(
        granted(&play, 5, "retry", ", lease => '1 s'").await,
        "00:00:01"
    );
    for bad in ["0", "-1", "x"] {
        let set = format!("set once.action_lease = '{bad}'");
        assert_eq!(play.code(&set).await, "22023", "{bad}");
    }
}

#[tokio::test]
async fn tokens_grow_with_each_holder_and_follow_the_servers_clock() {
    let play = world().await;
    jobs(&play, 1, 1, "ready").await;
    let mut last = 0;
    // A pretended clock that goes back does not take the tokens with it.
    for clock in ["1 year", "0", "2 years", "1 day"] {
        play.clock(clock).await;
        for _ in 0..5 {
            let token = token(&play, 1, "run", "").await;
            assert!(token > last, "{token} after {last}");
            last = token;
            play.show(&release(1, token, "")).await;
        }
    }
    play.ask(&format!(
        "select abs(extract(epoch from clock_timestamp() - timestamptz '2000-01-01 00:00+00')
                        - {last} / 1e6) < 60"
    ))
    .is("t")
    .await;
}
