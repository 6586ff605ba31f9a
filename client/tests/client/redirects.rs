//! The examples do not follow a redirect of a foreign service, and do not take it for success.

#[path = "../../examples/order_service/bank.rs"]
#[allow(dead_code, reason = "the test uses a part of it")]
mod bank;
#[path = "../../examples/common/http.rs"]
#[allow(dead_code, reason = "the test uses a part of it")]
mod http;

use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::json;

/// Starts a service that redirects each charge to /login, where a GET succeeds; returns its address.
async fn moved() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let moved = || async { (StatusCode::FOUND, [(LOCATION, "/login")]) };
    let page = || async { Json(json!({"id": "none", "charge_id": "none"})) };
    let app = Router::new()
        .route("/charges", post(moved))
        .route("/login", get(page));
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

#[tokio::test]
async fn a_post_that_is_redirected_is_not_done() {
    let url = moved().await;
    let ended = http::Http::new(&url).unwrap();
    let ended = ended.post("/charges", "key", "{}").await;
    assert!(matches!(ended, http::Ended::Refused(StatusCode::FOUND, _)));

    let bank = bank::Bank::new(&url, Duration::from_secs(9), true, true).unwrap();
    let charge = bank::Charge {
        amount_cents: 1200,
        customer: "ada",
        reference: "order 1",
    };
    let ended = bank.charge("key", &charge).await;
    assert!(matches!(ended, bank::Ended::NoAnswer(_, _)));
}
