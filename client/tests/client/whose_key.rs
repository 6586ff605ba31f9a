//! A key belongs to the authenticated user, and to nobody else.

use pg_once::http::{Answer, User, key_of_header};
use pg_once::{Json, Response, Scope};

use crate::support::pool;

/// Handles a request as `client/examples/order_service` does.
async fn post(user: Option<&str>, key: &str, body: &str) -> Answer {
    let user = match User::authenticated(user) {
        Ok(user) => user,
        Err(answer) => return answer,
    };
    let key = match key_of_header(&user, Some(key)) {
        Ok(key) => key,
        Err(answer) => return answer,
    };
    let outcome = Scope::new("client.tests")
        .key(&key)
        .run(&pool())
        .request(Json::from_text(body))
        .run(async |_| {
            let order = uuid::Uuid::new_v4().to_string();
            Ok(Response::new(201).with_body(&order)?.into())
        })
        .await;
    Answer::of(&outcome.unwrap())
}

fn fresh_header() -> String {
    uuid::Uuid::new_v4().to_string()
}

const BODY: &str = r#"{"customer": "ada", "item": "tea"}"#;

#[tokio::test]
async fn bob_with_adas_key_and_body_runs_his_own_request_and_never_sees_her_answer() {
    let key = fresh_header();
    let adas = post(Some("ada"), &key, BODY).await;
    let bobs = post(Some("bob"), &key, BODY).await;
    for answer in [&adas, &bobs] {
        assert_eq!(
            (answer.status, answer.header("Idempotent-Replayed")),
            (201, None)
        );
    }
    assert_ne!(adas.body, bobs.body);
    for (user, stored) in [("ada", adas), ("bob", bobs)] {
        let again = post(Some(user), &key, BODY).await;
        assert_eq!(again.header("Idempotent-Replayed"), Some("true"));
        assert_eq!(again.body, stored.body, "{user}");
    }
}

#[tokio::test]
async fn a_user_whose_name_has_a_slash_cannot_reach_the_key_of_another() {
    let key = fresh_header();
    let adas = post(Some("ada"), &format!("x/{key}"), BODY).await;
    for user in ["ada/x", "ada%2Fx"] {
        let other = post(Some(user), &key, BODY).await;
        assert_eq!(
            (other.status, other.header("Idempotent-Replayed")),
            (201, None)
        );
        assert_ne!(other.body, adas.body, "{user}");
    }
}

#[tokio::test]
async fn without_a_user_it_is_401_and_a_key_too_long_for_both_is_400() {
    assert_eq!(post(None, &fresh_header(), BODY).await.status, 401);
    let longest = format!("{}{}", fresh_header(), "k".repeat(255 - 4 - 36));
    assert_eq!(post(Some("ada"), &longest, BODY).await.status, 201);
    assert_eq!(post(Some("adam"), &longest, BODY).await.status, 400);
}
