//! Many claims of one key at once: one gets it, the others are told so without waiting or writing.

use crate::playground::Playground;
use crate::waiting::{at_once, sessions};

const CONNECTIONS: usize = 16;
const XID: &str = "select pg_current_xact_id_if_assigned() is null";

fn claim(key: &str) -> String {
    format!("select outcome, retry_after from once.key_claim('s', '{key}', '{{\"a\": 1}}')")
}

/// The index of the one session that got the key; all others were told `other`.
fn winner(
    answers: &[Result<String, crate::playground::Refusal>],
    mine: &str,
    other: &str,
) -> usize {
    let mut winners = Vec::new();
    for (i, answer) in answers.iter().enumerate() {
        match answer.as_ref().unwrap() {
            won if won.starts_with(mine) => winners.push(i),
            lost => assert!(lost.starts_with(other), "{lost}"),
        }
    }
    assert_eq!(winners.len(), 1, "{answers:?}");
    winners[0]
}

#[tokio::test]
async fn sixteen_connections_claim_one_key_and_one_gets_it() {
    let play = Playground::open().await;
    let sessions = sessions(&play, CONNECTIONS).await;
    for round in 0..100 {
        let answers = at_once(&sessions, |_| claim(&format!("k{round}"))).await;
        winner(&answers, "claimed", "in_progress");
    }
    play.ask("select count(*), sum(attempt) from once.key")
        .is("100|100")
        .await;
}

#[tokio::test]
async fn nobody_waits_while_the_winner_stays_open_and_losers_have_no_transaction_id() {
    let play = Playground::open().await;
    let sessions = sessions(&play, CONNECTIONS).await;
    for round in 0..20 {
        let key = format!("k{round}");
        at_once(&sessions, |_| "begin; savepoint s".to_owned()).await;
        let answers = at_once(&sessions, |_| claim(&key)).await;
        let winner = winner(&answers, "claimed", "in_progress|00:00:01");
        for (i, session) in sessions.iter().enumerate() {
            assert_eq!(session.show(XID).await, if i == winner { "f" } else { "t" });
        }
        let loser = &sessions[(winner + 1) % CONNECTIONS];
        let next = match round % 3 {
            0 => {
                sessions[winner].show("rollback").await;
                "claimed|~"
            }
            1 => {
                sessions[winner].show("rollback to s").await;
                "claimed|~"
            }
            _ => {
                sessions[winner].show("commit").await;
                "in_progress"
            }
        };
        let again = loser.show(&claim(&key)).await;
        assert!(again.starts_with(next), "round {round}: {again}");
        at_once(&sessions, |_| "commit".to_owned()).await;
    }
}

#[tokio::test]
async fn a_claim_meets_an_open_one_and_its_end_decides() {
    let play = Playground::open().await;
    let other = play.another().await;
    other.show("set lock_timeout = '1ms'").await;
    play.show("begin").await;
    assert_eq!(play.claim("k", ", '1'").await, "claimed");
    // The row cannot be read yet, so another request is not told apart yet.
    assert_eq!(other.claim("k", ", '2'").await, "in_progress");
    play.show("commit").await;
    assert_eq!(other.claim("k", ", '2'").await, "mismatched");
    assert_eq!(other.claim("k", ", '1'").await, "in_progress");
}

#[tokio::test]
async fn an_expired_lease_is_taken_over_by_one_of_sixteen() {
    let play = Playground::open().await;
    let sessions = sessions(&play, CONNECTIONS).await;
    for round in 0..50 {
        let key = format!("k{round}");
        play.token(&key, ", '{\"a\": 1}', lease => '1 microsecond'")
            .await;
        let answers = at_once(&sessions, |_| claim(&key)).await;
        winner(&answers, "resumed", "in_progress");
    }
    play.ask("select count(*) from once.key where attempt = 2")
        .is("50")
        .await;
}

#[tokio::test]
async fn a_takeover_that_rolls_back_leaves_the_key_to_the_next() {
    let play = Playground::open().await;
    let (first, second) = (play.another().await, play.another().await);
    let token = play.token("k", ", lease => '1 microsecond'").await;
    first.show("begin; savepoint s").await;
    assert_eq!(first.claim("k", "").await, "resumed");
    assert_eq!(second.claim("k", "").await, "in_progress");
    first.show("rollback to s").await;
    second.show("begin").await;
    assert_eq!(second.claim("k", "").await, "resumed");
    second.show("rollback").await;
    // Nobody took over in the end, so the lease that only ran out is still its holder's.
    play.show(&format!("select once.key_complete('s', 'k', {token}, 200)"))
        .await;
    first.show("commit").await;
    assert_eq!(first.claim("k", "").await, "replayed");
}

#[tokio::test]
async fn an_expired_answer_is_claimed_anew_by_one_of_sixteen() {
    let play = Playground::open().await;
    let sessions = sessions(&play, CONNECTIONS).await;
    play.show(r#"select once.scope_set('s', '{"gone_for": "0"}')"#)
        .await;
    for round in 0..50 {
        let key = format!("k{round}");
        let token = play.token(&key, ", ttl => '1 microsecond'").await;
        play.show(&format!(
            "select once.key_step('s', '{key}', {token}, 'pay')"
        ))
        .await;
        play.show(&format!(
            "select once.key_complete('s', '{key}', {token}, 200)"
        ))
        .await;
        let answers = at_once(&sessions, |_| claim(&key)).await;
        winner(&answers, "claimed", "in_progress");
    }
    play.ask("select count(*), sum(attempt), (select count(*) from once.key_step) from once.key")
        .is("50|50|0")
        .await;
}

#[tokio::test]
async fn fifty_thousand_claims_in_one_transaction_do_not_fill_the_lock_table() {
    let play = Playground::open().await;
    play.show("begin").await;
    let claimed = play
        .show(
            "select c.outcome, count(*) from generate_series(1, 50000) as g,
                    lateral once.key_claim('s', 'k' || g, to_json(g)) as c group by 1",
        )
        .await;
    assert_eq!(claimed, "claimed|50000");
    play.ask("select count(*) < 100 from pg_locks where pid = pg_backend_pid()")
        .is("t")
        .await;
    let other = play.another().await;
    assert_eq!(other.claim("k77", "").await, "in_progress");
    play.show("rollback").await;
    assert_eq!(other.claim("k77", "").await, "claimed");
}
