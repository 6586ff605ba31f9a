//! Defining a machine, checking it, and moving its rows.

use std::collections::BTreeSet;

use pg_once::{ActionClaim, ActionOptions, Json, Kind, Machine, Reason, Transition, Transitioned};

use crate::support::{Jobs, code, pool};

fn moved(outcome: &Transitioned) -> Option<&str> {
    match outcome {
        Transitioned::Moved { status, .. } => Some(status),
        Transitioned::NotMoved { .. } => None,
    }
}

fn reason(outcome: &Transitioned) -> Option<(Reason, Option<&str>)> {
    match outcome {
        Transitioned::Moved { .. } => None,
        Transitioned::NotMoved { reason, status, .. } => Some((*reason, status.as_deref())),
    }
}

/// Makes the tables and the machine of the billings, and an open billing; returns the machine and that billing's id.
async fn billing(jobs: &Jobs) -> (Machine, String) {
    const TABLES: &str = include_str!("../../../sql/examples/billing.sql");
    const DEFINITION: &str = include_str!("../../../sql/examples/billing.json");
    let client = jobs.pool.get().await.unwrap();
    client.batch_execute(TABLES).await.unwrap();
    let mut definition: serde_json::Value = serde_json::from_str(DEFINITION).unwrap();
    let name = format!("billing_{}", jobs.machine.as_str());
    definition["machine"] = name.as_str().into();
    Machine::define(&client, &definition.into()).await.unwrap();
    let open = "INSERT INTO billing (customer, total) VALUES ('ada', 12.50) RETURNING id::text";
    (Machine::new(&name), jobs.text(open).await)
}

#[tokio::test]
async fn everything_that_is_wrong_with_a_definition_comes_back_at_once() {
    let error = Machine::define(
        &pool(),
        &Json::from_text(r#"{"machine": "m", "colour": 1}"#),
    )
    .await
    .unwrap_err();
    assert_eq!(
        (error.code(), error.kind(), error.is_retryable()),
        (Some("ON003"), Kind::InvalidDefinition, false)
    );
    assert!(error.faults().count() >= 2, "{error}");
    assert!(
        error.faults().any(|fault| fault.contains("colour")),
        "{error}"
    );
    for fault in error.faults() {
        assert!(error.to_string().contains(fault), "{error}");
    }
}

#[tokio::test]
async fn a_machine_is_kept_as_it_was_given_until_it_is_dropped() {
    let jobs = Jobs::new().await;
    let stored = jobs.machine.get(&jobs.pool).await.unwrap();
    assert_eq!(Machine::define(&jobs.pool, &stored).await.unwrap(), stored);
    jobs.machine.drop(&jobs.pool).await.unwrap();
    let gone = jobs.machine.get(&jobs.pool).await.unwrap_err();
    assert_eq!(
        (gone.code(), gone.kind()),
        (Some("42704"), Kind::Undeclared)
    );
}

#[tokio::test]
async fn a_machine_in_use_is_not_dropped() {
    let jobs = Jobs::new().await;
    let action = jobs.claimed().await;
    assert_eq!(code(jobs.machine.drop(&jobs.pool).await), "55006");
    action.release(&jobs.pool, None).await.unwrap();
    jobs.machine.drop(&jobs.pool).await.unwrap();
}

#[tokio::test]
async fn a_renamed_column_is_found() {
    let jobs = Jobs::new().await;
    jobs.execute("ALTER TABLE batch_item RENAME COLUMN points TO price")
        .await;
    let found = jobs.machine.check(&jobs.pool).await.unwrap();
    assert!(
        found
            .iter()
            .any(|finding| finding.problem.contains("points")),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .all(|finding| finding.machine == jobs.machine.as_str())
    );
    let all = Machine::check_all(&jobs.pool).await.unwrap();
    assert!(found.iter().all(|finding| all.contains(finding)));
}

#[tokio::test]
async fn a_claim_state_that_nobody_sweeps_is_named_until_somebody_does() {
    let jobs = Jobs::new().await;
    let name = jobs.machine.as_str();
    let error = Machine::assert_covered(&jobs.pool).await.unwrap_err();
    assert_eq!(
        (error.code(), error.kind()),
        (Some("ON004"), Kind::UncoveredClaimState)
    );
    assert!(error.to_string().contains(name), "{error}");
    jobs.text(&format!(
        "SELECT task FROM once.sweep(1000, 'action_release', '{name}')"
    ))
    .await;
    // The call may fail because of other tests' machines.
    if let Err(error) = Machine::assert_covered(&jobs.pool).await {
        assert!(!error.to_string().contains(name), "{error}");
    }
}

#[tokio::test]
async fn the_guard_refuses_what_is_not_declared_for_as_long_as_it_is_on() {
    let jobs = Jobs::new().await;
    let by_hand = "UPDATE batch_job SET status = 'done'";
    jobs.machine.guard(&jobs.pool, true).await.unwrap();
    let client = jobs.pool.get().await.unwrap();
    let refused = client.execute_typed(by_hand, &[]).await.unwrap_err();
    let refused = pg_once::Error::from(refused);
    assert_eq!(
        (refused.code(), refused.kind()),
        (Some("ON002"), Kind::IllegalTransition)
    );
    jobs.machine.guard(&jobs.pool, false).await.unwrap();
    assert_eq!(jobs.execute(by_hand).await, 1);
}

#[tokio::test]
async fn a_declared_move_is_made_with_its_patch_and_counts_the_version() {
    let jobs = Jobs::new().await;
    let give_up = Transition::to("failed")
        .from(["queued"])
        .version(0)
        .patch(Json::from_text(r#"{"result": "given up"}"#));
    let outcome = jobs.job.transition(&jobs.pool, &give_up).await.unwrap();
    assert_eq!(
        outcome,
        Transitioned::Moved {
            status: "failed".to_owned(),
            version: Some(1)
        }
    );
    assert_eq!(jobs.text("SELECT result FROM batch_job").await, "given up");
    let own_status = Transition::to("queued").patch(Json::from_text(r#"{"status": "done"}"#));
    assert_eq!(
        code(jobs.job.transition(&jobs.pool, &own_status).await),
        "22023"
    );
}

#[tokio::test]
async fn a_move_that_is_not_made_says_why() {
    let jobs = Jobs::new().await;
    let (pool, job) = (&jobs.pool, &jobs.job);
    let fail = Transition::to("failed");

    let nobody = jobs
        .machine
        .row(999_999)
        .transition(pool, &fail)
        .await
        .unwrap();
    assert_eq!(reason(&nobody), Some((Reason::NotFound, None)));

    let stale = job
        .transition(pool, &fail.clone().version(7))
        .await
        .unwrap();
    assert_eq!(reason(&stale), Some((Reason::Version, Some("queued"))));

    let requeue = job
        .transition(pool, &Transition::to("queued"))
        .await
        .unwrap();
    assert_eq!(reason(&requeue), Some((Reason::Status, Some("queued"))));

    let action = jobs.claimed().await;
    let claimed = job.transition(pool, &fail).await.unwrap();
    assert_eq!(reason(&claimed), Some((Reason::Claimed, Some("running"))));
    action.release(pool, None).await.unwrap();

    job.cancel().request(pool).await.unwrap();
    let cancelling = job.transition(pool, &fail).await.unwrap();
    assert_eq!(
        reason(&cancelling),
        Some((Reason::Cancelling, Some("queued")))
    );
}

#[tokio::test]
async fn a_move_that_nobody_declared_is_a_mistake_of_the_program() {
    let jobs = Jobs::new().await;
    let error = jobs
        .job
        .transition(&jobs.pool, &Transition::to("cancelled"))
        .await
        .unwrap_err();
    assert_eq!(
        (error.code(), error.kind()),
        (Some("ON002"), Kind::IllegalTransition)
    );
}

#[tokio::test]
async fn of_many_who_make_one_move_one_moves() {
    let jobs = Jobs::new().await;
    let give_up = Transition::to("failed");
    let tries: Vec<_> = (0..12)
        .map(|_| {
            let (pool, job, give_up) = (jobs.pool.clone(), jobs.job.clone(), give_up.clone());
            tokio::spawn(async move { job.transition(&pool, &give_up).await.unwrap() })
        })
        .collect();
    let mut made = 0;
    for outcome in tries {
        let outcome = outcome.await.unwrap();
        match moved(&outcome) {
            Some(_) => made += 1,
            None => assert_eq!(reason(&outcome), Some((Reason::Status, Some("failed")))),
        }
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn many_rows_move_in_one_call_and_each_says_what_became_of_it() {
    let jobs = Jobs::new().await;
    let other = jobs.another("bob").await;
    let claimed = jobs.claimed().await;
    let ids = [other, jobs.id, other, 999_999];
    let moves = jobs
        .machine
        .transition_many(&jobs.pool, &ids, "failed", Some(&["queued"]), None)
        .await
        .unwrap();
    let outcomes: BTreeSet<String> = moves
        .iter()
        .map(|row| match &row.outcome {
            Transitioned::Moved { status, .. } => format!("{} {status}", row.id),
            Transitioned::NotMoved { reason, .. } => format!("{} {reason:?}", row.id),
        })
        .collect();
    let expected = [
        format!("{other} failed"),
        format!("{} Claimed", jobs.id),
        "999999 NotFound".to_owned(),
    ];
    assert_eq!((moves.len(), outcomes), (3, expected.into()));
    claimed.release(&jobs.pool, None).await.unwrap();
}

#[tokio::test]
async fn a_when_that_does_not_hold_is_a_reason() {
    let jobs = Jobs::new().await;
    let (billings, id) = billing(&jobs).await;
    jobs.execute("UPDATE billing SET invoices = 1").await;
    let void = Transition::to("void");
    let outcome = billings
        .row(&id)
        .transition(&jobs.pool, &void)
        .await
        .unwrap();
    assert_eq!(reason(&outcome), Some((Reason::Guard, Some("open"))));
    jobs.execute("UPDATE billing SET invoices = 0").await;
    let outcome = billings
        .row(&id)
        .transition(&jobs.pool, &void)
        .await
        .unwrap();
    assert_eq!(moved(&outcome), Some("void"));
}

#[tokio::test]
async fn of_two_clerks_one_closes_the_billing_and_the_other_is_told_that_it_is_busy() {
    let jobs = Jobs::new().await;
    let (billings, id) = billing(&jobs).await;
    let (billing, clerk) = (billings.row(&id), ActionOptions::new().requester("clerk"));
    let first = billing.claim(&jobs.pool, "close", &clerk).await.unwrap();
    let ActionClaim::Claimed(action) = first else {
        panic!("{first:?}")
    };
    let second = billing.claim(&jobs.pool, "close", &clerk).await.unwrap();
    assert!(
        matches!(second, ActionClaim::InProgress { .. }),
        "{second:?}"
    );
    action.finish(&jobs.pool, None).await.unwrap();

    // The machine has no claim state for the bank import: its work is one transaction.
    let import = ActionOptions::new().requester("bank_import");
    let claim = billing
        .claim(&jobs.pool, "apply_payment", &import)
        .await
        .unwrap();
    assert_eq!(claim, ActionClaim::Unclaimed);
    let pay = Transition::to("paid")
        .from(["closed"])
        .requester("bank_import");
    let outcome = billing.transition(&jobs.pool, &pay).await.unwrap();
    assert_eq!(moved(&outcome), Some("paid"));
}
