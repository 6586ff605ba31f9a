//! Calls run on a pool, a connection or a transaction of either driver, and in test mode.

use std::collections::BTreeSet;
use std::sync::Arc;

use pg_once::{
    Abandoned, Acted, ActionClaim, ActionEnd, Claim, ClaimOptions, Error, Executor, Json,
    MachineRow, Outcome, Response, Scope, Sqlx, TestMode, Transition, Transitioned, Waker,
};
use sqlx::{Connection, Executor as _};

use crate::support::{
    Jobs, backend_pid, claimed, connect, connect_to, directly, fresh_key, pool, sqlx_pool_to,
    through_pooler, worker,
};

/// Makes the calls from the claim of a key to its replay, on one executor.
async fn whole_life<E: Executor>(exec: &E) {
    let key = fresh_key();
    let Claim::Claimed(lease) = key
        .claim(exec, &ClaimOptions::of(&[1]).unwrap())
        .await
        .unwrap()
    else {
        panic!("a fresh key is claimed")
    };
    lease.step(exec, "charge").await.unwrap();
    lease
        .step_done(exec, "charge", Some(&Json::from_text("1")))
        .await
        .unwrap();
    lease.advance(exec, "charged", None, None).await.unwrap();
    lease.complete(exec, &Response::new(201)).await.unwrap();
    let again = key
        .claim(exec, &ClaimOptions::of(&[1]).unwrap())
        .await
        .unwrap();
    assert_eq!(again, Claim::Replayed(Response::new(201)));
}

/// Makes the calls from the first move of a job to its end, on one executor.
async fn whole_job<E: Executor>(exec: &E, job: MachineRow) {
    for to in ["failed", "queued"] {
        let moved = job.transition(exec, &Transition::to(to)).await.unwrap();
        assert!(matches!(moved, Transitioned::Moved { .. }), "{moved:?}");
    }
    let claim = job.claim(exec, "run", &worker()).await.unwrap();
    let ActionClaim::Claimed(action) = claim else {
        panic!("{claim:?}")
    };
    assert!(!action.extend(exec, None).await.unwrap().cancelling);
    let end = action.finish(exec, None).await.unwrap();
    assert!(matches!(end, ActionEnd::Finished { .. }), "{end:?}");
}

/// Tears a job down, call by call, on one executor.
async fn whole_teardown<E: Executor>(exec: &E, job: MachineRow) {
    let cancel = job.cancel();
    cancel.request(exec).await.unwrap();
    let pass = cancel.refund(exec, None).await.unwrap().pass;
    let items = cancel.items(exec, None, 10).await.unwrap();
    assert_eq!(items.len(), 3);
    assert!(cancel.confirm(exec, pass).await.unwrap());
    assert_eq!(cancel.finish(exec, None).await.unwrap().status, "cancelled");
}

#[tokio::test]
async fn actions_and_teardowns_on_a_pool_a_connection_and_a_transaction() {
    let jobs = Jobs::new().await;
    let mut names = 'a'..='z';
    let mut another = async || {
        let name = names.next().unwrap().to_string();
        jobs.machine.row(jobs.another(&name).await)
    };
    whole_job(&jobs.pool, another().await).await;
    whole_teardown(&jobs.pool, another().await).await;

    let mut client = jobs.pool.get().await.unwrap();
    whole_job(&client, another().await).await;
    whole_teardown(&client, another().await).await;
    let (job, torn_down) = (another().await, another().await);
    let transaction = client.transaction().await.unwrap();
    whole_job(&transaction, job).await;
    whole_teardown(&transaction, torn_down).await;
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn on_a_pool_a_connection_and_a_transaction_of_either_driver() {
    let pool = pool();
    whole_life(&pool).await;
    whole_life(&&pool).await;

    let mut pooled = pool.get().await.unwrap();
    whole_life(&pooled).await;
    let transaction = pooled.transaction().await.unwrap();
    whole_life(&transaction).await;
    transaction.commit().await.unwrap();

    let mut client = connect().await;
    whole_life(&client).await;
    let transaction = client.transaction().await.unwrap();
    whole_life(&transaction).await;
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn on_a_pool_a_connection_and_a_transaction_of_sqlx() {
    let jobs = Jobs::new().await;
    let mut names = 'a'..='z';
    let mut another = async || {
        let name = names.next().unwrap().to_string();
        jobs.machine.row(jobs.another(&name).await)
    };
    let mut config = directly("sqlx names its statements");
    let pool = sqlx_pool_to(config.user(jobs.machine.as_str()));
    whole_life(&pool).await;
    whole_job(&pool, another().await).await;
    whole_teardown(&pool, another().await).await;

    let mut connection = pool.acquire().await.unwrap();
    whole_life(&Sqlx::on(&mut connection)).await;
    whole_job(&Sqlx::on(&mut connection), another().await).await;
    let (job, torn_down) = (another().await, another().await);
    let mut transaction = pool.begin().await.unwrap();
    whole_life(&Sqlx::on(&mut transaction)).await;
    whole_job(&Sqlx::on(&mut transaction), job).await;
    whole_teardown(&Sqlx::on(&mut transaction), torn_down).await;
    transaction.commit().await.unwrap();
}

#[tokio::test]
async fn an_answer_commits_with_the_writes_of_a_transaction_of_sqlx_or_with_none_of_them() {
    let (key, pool) = (
        fresh_key(),
        sqlx_pool_to(&directly("sqlx names its statements")),
    );
    let table = format!("\"sqlx {}\"", uuid::Uuid::new_v4());
    let create = format!("CREATE TABLE {table} (id int)");
    pool.execute(create.as_str()).await.unwrap();
    let Claim::Claimed(lease) = key.claim(&pool, &ClaimOptions::new()).await.unwrap() else {
        panic!("a fresh key is claimed")
    };
    for commits in [false, true] {
        let mut transaction = pool.begin().await.unwrap();
        let insert = format!("INSERT INTO {table} VALUES ($1)");
        let insert = sqlx::query(&insert).bind(i32::from(commits));
        insert.execute(&mut *transaction).await.unwrap();
        let answer = Response::new(201);
        lease
            .complete(&Sqlx::on(&mut transaction), &answer)
            .await
            .unwrap();
        match commits {
            true => transaction.commit().await.unwrap(),
            false => transaction.rollback().await.unwrap(),
        }
        let claim = key.claim(&pool, &ClaimOptions::new()).await.unwrap();
        assert_eq!(claim == Claim::Replayed(answer), commits, "{claim:?}");
    }
    let written = format!("SELECT array_agg(id) FROM {table}");
    let written: Vec<i32> = sqlx::query_scalar(&written).fetch_one(&pool).await.unwrap();
    assert_eq!(written, [1]);
    pool.execute(format!("DROP TABLE {table}").as_str())
        .await
        .unwrap();
}

/// An update of the extension may change the columns of a function's result.
#[tokio::test]
async fn a_statement_that_sqlx_has_kept_is_prepared_again_when_it_is_stale() {
    const ASK: &str = "SELECT * FROM pg_temp.f()";
    let pool = sqlx_pool_to(&directly("sqlx names its statements"));
    let mut connection = pool.acquire().await.unwrap();
    for (columns, in_a_transaction) in [("a int", false), ("b int", false), ("c int", true)] {
        let replace = format!(
            "DROP FUNCTION IF EXISTS pg_temp.f; CREATE FUNCTION pg_temp.f() \
             RETURNS TABLE ({columns}, d int) LANGUAGE plpgsql AS 'BEGIN END'"
        );
        connection.execute(replace.as_str()).await.unwrap();
        if in_a_transaction {
            let mut transaction = connection.begin().await.unwrap();
            let answer = Sqlx::on(&mut transaction).query(ASK, &[]).await;
            assert_eq!(answer.unwrap_err().code(), Some("0A000"));
            transaction.rollback().await.unwrap();
        }
        Sqlx::on(&mut connection).query(ASK, &[]).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_in_a_transaction_that_is_rolled_back_never_happened() {
    let (pool, key) = (pool(), fresh_key());
    let mut client = pool.get().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    assert!(matches!(
        key.claim(&transaction, &ClaimOptions::new()).await.unwrap(),
        Claim::Claimed(_)
    ));
    transaction.rollback().await.unwrap();
    claimed(&key, &pool).await;
}

#[tokio::test]
async fn a_response_of_ten_megabytes_comes_back_byte_for_byte() {
    let (pool, key) = (pool(), fresh_key());
    let lease = claimed(&key, &pool).await;
    let body = format!(
        " {{\"b\" :  1.0, \"a\": \"{}\"}}\n",
        "\u{e4}".repeat(5 << 20)
    );
    let answer = Response {
        code: 200,
        body: Some(Json::from_text(body)),
        headers: Some(Json::from_text("{ }")),
    };
    lease.complete(&pool, &answer).await.unwrap();
    assert_eq!(
        key.claim(&pool, &ClaimOptions::new()).await.unwrap(),
        Claim::Replayed(answer)
    );
}

#[tokio::test]
async fn of_claims_with_a_fingerprint_only_the_hashes_are_compared() {
    let (pool, key) = (pool(), fresh_key());
    let claim = async |hash, request: i32| {
        let options = ClaimOptions::of(&request).unwrap().fingerprint([hash; 32]);
        key.claim(&pool, &options).await.unwrap()
    };
    assert!(matches!(claim(7, 1).await, Claim::Claimed(_)));
    assert!(matches!(claim(7, 2).await, Claim::InProgress { .. }));
    assert_eq!(claim(8, 1).await, Claim::Mismatched);
}

#[tokio::test]
async fn nothing_is_left_in_the_session() {
    let client = connect_to(directly("what a session holds is counted")).await;
    whole_life(&client).await;
    let left = client
        .query_one("SELECT count(*) FROM pg_prepared_statements", &[])
        .await
        .unwrap();
    // The counting statement is itself prepared.
    assert_eq!(left.get::<_, i64>(0), 1);
}

#[tokio::test]
async fn behind_a_pooler_a_connection_is_served_by_one_session_after_another() {
    if !through_pooler() {
        return;
    }
    let (client, other) = (connect().await, connect().await);
    let (key, mut sessions) = (fresh_key(), BTreeSet::new());
    let lease = claimed(&key, &pool()).await;
    // Other tests use the pooler, too, so a round may find the same session twice.
    for _ in 0..100 {
        sessions.insert(backend_pid(&client).await);
        lease.extend(&client, None).await.unwrap();
        // While `other` has a transaction in the session that served `client`, `client` gets another session.
        other.batch_execute("BEGIN; SELECT 1").await.unwrap();
        sessions.insert(backend_pid(&client).await);
        lease.extend(&client, None).await.unwrap();
        other.batch_execute("COMMIT").await.unwrap();
    }
    assert!(sessions.len() > 1, "no pooler is between: {sessions:?}");
}

#[tokio::test]
async fn in_test_mode_a_run_leaves_nothing_once_its_transaction_is_rolled_back() {
    let (pool, key) = (pool(), fresh_key());
    let mut client = pool.get().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let test = TestMode(&transaction);
    let work = |_lease| async { Ok(Response::new(201).into()) };
    let outcome = key.clone().run(&test).run(work).await.unwrap();
    assert!(matches!(outcome, Outcome::Ran(_)));
    transaction.rollback().await.unwrap();
    let again = key.claim(&pool, &ClaimOptions::new()).await.unwrap();
    assert!(matches!(again, Claim::Claimed(_)), "{again:?}");
}

#[tokio::test]
async fn in_test_mode_an_action_and_a_completer_leave_nothing_either() {
    let jobs = Jobs::guarded().await;
    let test = jobs.begun().await;
    let client = Arc::clone(&test.0);
    let run = jobs.job.action("run").requester("worker");
    let acted = run.run(&test, |_, transaction| async move {
        let burn = "UPDATE wallet SET points = points - 10";
        transaction.execute_typed(burn, &[]).await?;
        Ok(None)
    });
    let acted = acted.await.unwrap();
    assert!(matches!(acted, Acted::Finished { .. }), "{acted:?}");

    let scope = Scope::new(&format!("tests {}", jobs.machine.as_str()));
    let claim = scope.key("k").claim(&test, &ClaimOptions::new()).await;
    let Claim::Claimed(lease) = claim.unwrap() else {
        panic!("a fresh key is claimed")
    };
    lease.release(&test, None, None).await.unwrap();
    let done = Arc::new(tokio::sync::Notify::new());
    let told = Arc::clone(&done);
    let handler = move |_: Abandoned| {
        told.notify_one();
        async { Ok(Response::new(201).into()) }
    };
    let completer = scope.completer(&test).waker(&Waker::new());
    let completed = completer.run(done.notified(), handler).await.unwrap();
    assert_eq!(completed.completed, 1);

    client.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(jobs.status().await, "queued");
    assert_eq!(jobs.points().await, 100);
    assert!(scope.key("k").get(&jobs.pool).await.unwrap().is_none());
}

#[tokio::test]
async fn in_test_mode_a_teardown_leaves_nothing_either() {
    let jobs = Jobs::guarded().await;
    let test = jobs.begun().await;
    let cancel = jobs.job.cancel();
    cancel.request(&test).await.unwrap();
    let clean = async |_| Ok::<(), Error>(());
    let cancelled = cancel.teardown(&test).run(clean).await.unwrap();
    assert_eq!(cancelled.status, "cancelled");
    test.0.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(jobs.status().await, "queued");
}

#[tokio::test]
async fn in_test_mode_work_that_fails_is_undone_and_the_test_goes_on() {
    let jobs = Jobs::guarded().await;
    let test = jobs.begun().await;
    let client = Arc::clone(&test.0);
    let run = jobs.job.action("run").requester("worker");
    let acted = run.run(&test, |_, transaction| async move {
        transaction
            .execute_typed("UPDATE wallet SET points = -1", &[])
            .await?;
        Ok(None)
    });
    assert_eq!(acted.await.unwrap_err().code(), Some("23514"));
    let status = "SELECT status::text, (SELECT points FROM wallet) FROM batch_job";
    let row = client.query_typed_one(status, &[]).await.unwrap();
    let found: (String, i64) = (row.get(0), row.get(1));
    assert_eq!(found, ("queued".to_owned(), 100));
    client.batch_execute("ROLLBACK").await.unwrap();
}
