//! The layer for axum, over real HTTP: a server of its own for each test, and clients that hang up or ask twice.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::StatusCode;
use axum::middleware::map_request;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::{BodyExt, Full};
use pg_once::axum::{Idempotency, IdempotencyKey};
use pg_once::http::{Answer, IDEMPOTENCY_KEY, IDEMPOTENT_REPLAYED, PREFER, RETRY_AFTER, User};
use pg_once::{Done, Failure, Lease, Scope};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_postgres::types::Type;
use tower::{Layer, ServiceExt};

use crate::proxy::Proxy;
use crate::support::{Pool, pool, pool_to, until};

const USER: &str = "X-Forwarded-User";
const LONG: Duration = Duration::from_secs(60);

/// The parts of an answer that the tests compare.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Came {
    status: u16,
    replayed: bool,
    retry_after: Option<String>,
    kind: Option<String>,
    location: Option<String>,
    cookies: usize,
    body: bytes::Bytes,
}

impl Came {
    fn replay_of(first: &Self) -> Self {
        Self {
            replayed: true,
            cookies: 0,
            ..first.clone()
        }
    }
}

/// A server with one handler for its POST requests, and a fresh key.
struct Server {
    address: SocketAddr,
    key: String,
}

async fn authenticate(mut request: Request) -> Result<Request, Answer> {
    let name = request.headers().get(USER);
    let user = User::authenticated(name.and_then(|name| name.to_str().ok()))?;
    request.extensions_mut().insert(user);
    Ok(request)
}

fn once(pool: Pool) -> Idempotency<Pool> {
    Idempotency::new(pool, Scope::new("client.tests"))
}

impl Server {
    async fn start<H: Handler<T, ()>, T: 'static>(once: Idempotency<Pool>, handler: H) -> Self {
        let app = Router::new()
            .route("/things", post(handler.clone()).get(async || "all"))
            .route("/others", post(handler))
            .layer(once)
            .layer(map_request(authenticate));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        let key = uuid::Uuid::new_v4().to_string();
        Self { address, key }
    }

    /// A request of the user `ada`, with the server's key.
    fn post(&self, path: &str) -> reqwest::RequestBuilder {
        let client = reqwest::Client::new();
        let post = client.post(format!("http://{}{path}", self.address));
        post.header(USER, "ada").header(IDEMPOTENCY_KEY, &self.key)
    }

    async fn ask(&self) -> Came {
        came(self.post("/things").body("{}")).await
    }

    /// Sends twelve requests at once.
    fn twelve(&self, prefer: &str) -> JoinSet<Came> {
        let requests = (0..12).map(|_| self.post("/things").header(PREFER, prefer));
        requests.map(came).collect()
    }
}

async fn came(request: reqwest::RequestBuilder) -> Came {
    let answer = request.send().await.unwrap();
    let header = |name: &str| Some(answer.headers().get(name)?.to_str().unwrap().to_owned());
    Came {
        status: answer.status().as_u16(),
        replayed: header(IDEMPOTENT_REPLAYED).is_some(),
        retry_after: header(RETRY_AFTER),
        kind: header("Content-Type"),
        location: header("Location"),
        cookies: answer.headers().get_all("Set-Cookie").iter().count(),
        body: answer.bytes().await.unwrap(),
    }
}

/// Work that counts its runs; each run ends when it gets a permit.
#[derive(Clone)]
struct Work(Arc<(AtomicU32, Semaphore)>);

impl Work {
    /// Makes work whose first `permits` runs may end.
    fn new(permits: usize) -> Self {
        Self(Arc::new((AtomicU32::new(0), Semaphore::new(permits))))
    }

    fn runs(&self) -> u32 {
        self.0.0.load(Ordering::SeqCst)
    }

    fn may_end(&self) {
        self.0.1.add_permits(12);
    }

    async fn once(&self) -> u32 {
        let run = self.0.0.fetch_add(1, Ordering::SeqCst);
        self.0.1.acquire().await.unwrap().forget();
        run
    }

    /// A handler whose answer has another body in each run.
    fn handler(&self) -> impl Handler<((),), ()> {
        let work = self.clone();
        move || async move {
            work.once().await;
            let id = uuid::Uuid::new_v4().to_string();
            let location = [("Location", format!("/things/{id}"))];
            (StatusCode::CREATED, location, Json(id))
        }
    }
}

#[tokio::test]
async fn duplicates_are_told_to_come_back_in_a_second_and_then_get_the_same_bytes() {
    let work = Work::new(0);
    let server = Server::start(once(pool()), work.handler()).await;
    // Without `longest_wait` no request waits, whatever its `Prefer` says.
    let mut requests = server.twelve("wait=60");
    for _ in 0..11 {
        let refused = requests.join_next().await.unwrap().unwrap();
        assert_eq!(refused.status, 409);
        assert_eq!(refused.retry_after.as_deref(), Some("1"));
        assert_eq!(refused.kind.as_deref(), Some("application/problem+json"));
    }
    work.may_end();
    let first = requests.join_next().await.unwrap().unwrap();
    assert_eq!((first.status, first.replayed), (201, false));
    assert!(first.location.is_some());
    let again = came(server.post("/things")).await;
    assert_eq!(again, Came::replay_of(&first));
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn duplicates_that_prefer_to_wait_get_the_bytes_of_the_first_one_and_the_work_runs_once() {
    let work = Work::new(0);
    let server = Server::start(once(pool()).longest_wait(LONG), work.handler()).await;
    let mut requests = server.twelve("wait=60");
    until(|| work.runs() > 0).await;
    tokio::time::sleep(Duration::from_millis(200)).await; // the duplicates poll meanwhile
    assert!(requests.try_join_next().is_none(), "nobody is answered yet");
    work.may_end();
    let answers = requests.join_all().await;
    let first = answers.iter().find(|answer| !answer.replayed).unwrap();
    let replays = answers.iter().filter(|answer| answer.replayed);
    assert!(replays.clone().all(|a| *a == Came::replay_of(first)));
    assert_eq!((first.status, replays.count(), work.runs()), (201, 11, 1));
}

#[tokio::test]
async fn a_handler_goes_on_when_its_client_hangs_up_and_the_retry_gets_its_answer() {
    let work = Work::new(0);
    let server = Server::start(once(pool()).longest_wait(LONG), work.handler()).await;
    let impatient = tokio::spawn(came(server.post("/things")));
    until(|| work.runs() == 1).await;
    impatient.abort(); // closes the connection
    assert!(impatient.await.unwrap_err().is_cancelled());
    let retry = tokio::spawn(came(server.post("/things").header(PREFER, "wait=60")));
    tokio::time::sleep(Duration::from_millis(50)).await;
    work.may_end();
    let retry = retry.await.unwrap();
    assert_eq!((retry.status, retry.replayed, work.runs()), (201, true, 1));
}

/// Makes a table for the rows of one test.
async fn fresh_table() -> (Pool, String) {
    let (pool, name) = (pool(), format!("\"axum {}\"", uuid::Uuid::new_v4()));
    let client = pool.get().await.unwrap();
    let create = format!("CREATE TABLE {name} (id uuid PRIMARY KEY)");
    client.batch_execute(&create).await.unwrap();
    (pool, name)
}

async fn rows_then_drop(pool: &Pool, table: &str) -> i64 {
    let client = pool.get().await.unwrap();
    let count = format!("SELECT count(*) FROM {table}");
    let rows = client.query_typed_one(&count, &[]).await.unwrap().get(0);
    let drop = format!("DROP TABLE {table}");
    client.batch_execute(&drop).await.unwrap();
    rows
}

async fn write(
    transaction: &tokio_postgres::Transaction<'_>,
    table: &str,
) -> Result<(), tokio_postgres::Error> {
    // Each call inserts another id, so no constraint refuses a second row.
    let (insert, id) = (
        format!("INSERT INTO {table} VALUES ($1)"),
        uuid::Uuid::new_v4(),
    );
    let args = [(&id as _, Type::UUID)];
    transaction.execute_typed(&insert, &args).await.map(drop)
}

#[tokio::test]
async fn a_handler_whose_own_commit_is_not_answered_has_written_once_and_its_answer_is_sent() {
    let (direct, table) = fresh_table().await;
    let proxy = Arc::new(Proxy::start().await);
    let (through, work) = (pool_to(proxy.config()), Work::new(2));
    let handler = {
        let (proxy, pool, table, work) =
            (proxy.clone(), through.clone(), table.clone(), work.clone());
        move |lease: Lease| async move {
            work.once().await;
            let mut connection = pool.get().await?;
            let transaction = connection.transaction().await?;
            write(&transaction, &table).await?;
            let answer = pg_once::Response::new(201).with_body("made")?;
            let answer = answer.with_headers(&HashMap::from([("Location", "/things/1")]))?;
            lease.complete(&transaction, &answer).await?;
            proxy.lose_answer_to("COMMIT");
            transaction.commit().await?;
            Ok::<_, Failure>(Done::Stored(answer))
        }
    };
    let server = Server::start(once(through), handler).await;
    let first = server.ask().await;
    assert_eq!((first.status, &*first.body), (201, &b"\"made\""[..]));
    assert_eq!(first.kind.as_deref(), Some("application/json"));
    assert_eq!(first.location.as_deref(), Some("/things/1"));
    assert_eq!(server.ask().await, Came::replay_of(&first));
    assert_eq!((proxy.lost(), work.runs()), (1, 1));
    assert_eq!(rows_then_drop(&direct, &table).await, 1);
}

#[tokio::test]
async fn a_handler_that_sends_a_phase_twice_is_called_again_and_goes_on_behind_it() {
    let (pool, table) = fresh_table().await;
    let work = Work::new(3);
    let handler = {
        let (pool, table, work) = (pool.clone(), table.clone(), work.clone());
        move |lease: Lease| async move {
            work.once().await;
            if lease.recovery_point() == "started" {
                for _ in 0..2 {
                    let mut connection = pool.get().await?;
                    let transaction = connection.transaction().await?;
                    write(&transaction, &table).await?;
                    // In the second run of the transaction this call raises ON006.
                    lease.advance(&transaction, "written", None, None).await?;
                    transaction.commit().await?;
                }
            }
            let answer = pg_once::Response::new(200).with_body(&lease.attempt())?;
            Ok::<Done, Failure>(answer.into())
        }
    };
    let server = Server::start(once(pool.clone()), handler).await;
    let answer = server.ask().await;
    assert_eq!((answer.status, &*answer.body), (200, &b"2"[..]));
    assert_eq!(work.runs(), 2);
    assert_eq!(rows_then_drop(&pool, &table).await, 1);
}

#[tokio::test]
async fn what_cannot_be_run_once_is_refused_before_the_handler() {
    let work = Work::new(9);
    let server = Server::start(once(pool()).body_limit(10), work.handler()).await;
    let url = format!("http://{}/things", server.address);
    let post = || reqwest::Client::new().post(&url);
    let status = async |request| came(request).await.status;
    assert_eq!(status(post().header(USER, "ada")).await, 400);
    assert_eq!(status(post().header(IDEMPOTENCY_KEY, "k")).await, 401);
    assert_eq!(
        status(server.post("/things").body("12345678901")).await,
        413
    );
    assert_eq!(work.runs(), 0);

    assert_eq!(status(server.post("/things").body("[1, 2]")).await, 201);
    // The same JSON; other JSON; another path; another query; another method, without a key.
    assert_eq!(status(server.post("/things").body("[1,2]")).await, 201);
    assert_eq!(status(server.post("/things").body("[1,3]")).await, 422);
    assert_eq!(status(server.post("/others").body("[1,2]")).await, 422);
    assert_eq!(status(server.post("/things?x=1").body("[1,2]")).await, 422);
    let get = reqwest::Client::new().get(&url).header(USER, "ada");
    assert_eq!(&*came(get).await.body, b"all");
    assert_eq!(work.runs(), 1);
}

#[tokio::test]
async fn any_body_is_replayed_byte_for_byte_and_cookies_are_not() {
    let bodies = [
        (Body::empty(), None),
        (Body::from("made"), Some("text/plain")),
        (Body::from("{ \"a\":  1.0 }"), Some("application/json")),
        (Body::from("\"\\u0000 \\ud800\""), Some("application/json")),
        (Body::from(&[0, 255, 254][..]), Some("image/png")),
    ];
    for (body, kind) in bodies {
        let body = std::sync::Mutex::new(Some(body));
        let body = Arc::new(body);
        let handler = move || async move {
            let body = body.lock().unwrap().take().expect("called once");
            let mut response = Response::builder().status(201);
            if let Some(kind) = kind {
                response = response.header("Content-Type", kind);
            }
            let response = response.header("Set-Cookie", "a=1");
            response.header("Set-Cookie", "b=2").body(body).unwrap()
        };
        let server = Server::start(once(pool()), handler).await;
        // The request's body is not JSON. The fingerprint distinguishes such bodies, too.
        let first = came(server.post("/things").body(&[1, 255][..])).await;
        assert_eq!((first.status, first.cookies), (201, 2));
        assert_eq!(first.kind.as_deref(), kind);
        let again = came(server.post("/things").body(&[1, 255][..])).await;
        assert_eq!(again, Came::replay_of(&first));
        let other = came(server.post("/things").body(&[2, 255][..])).await;
        assert_eq!(other.status, 422);
    }
}

/// Sends three requests to a handler whose answer depends on the number of its run.
async fn thrice<R: IntoResponse + 'static>(answer: fn(u32) -> R) -> ([u16; 3], u32) {
    let work = Work::new(9);
    let handler = {
        let work = work.clone();
        move || async move { answer(work.once().await) }
    };
    let server = Server::start(once(pool()), handler).await;
    let mut statuses = [0; 3];
    for status in &mut statuses {
        *status = server.ask().await.status;
    }
    (statuses, work.runs())
}

#[tokio::test]
async fn answers_that_a_retry_may_change_are_not_stored_and_the_others_are() {
    let busy_first = |run| match run {
        0 => StatusCode::SERVICE_UNAVAILABLE,
        1 => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::NO_CONTENT,
    };
    assert_eq!(thrice(busy_first).await, ([503, 429, 204], 3));
    let in_a_minute = |_| (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "60")]);
    assert_eq!(thrice(in_a_minute).await, ([503, 409, 409], 1));
    let refused = |_| StatusCode::UNPROCESSABLE_ENTITY;
    assert_eq!(thrice(refused).await, ([422; 3], 1));
}

#[tokio::test]
async fn a_failure_of_the_handler_releases_aborts_or_parks_the_key() {
    let later_done = |run| match run {
        0 => Err(Failure::retry("not yet")),
        _ => Ok(Done::Answer(pg_once::Response::new(201))),
    };
    assert_eq!(thrice(later_done).await, ([503, 201, 201], 2));
    let refused = |_| Failure::Abort(pg_once::Response::new(402));
    assert_eq!(thrice(refused).await, ([402; 3], 1));
    assert_eq!(thrice(|_| Failure::unknown("?")).await, ([409; 3], 1));
    let panics_first = |run| match run {
        0 => panic!("on purpose"),
        _ => StatusCode::OK,
    };
    assert_eq!(thrice(panics_first).await, ([500, 200, 200], 2));
}

#[tokio::test]
async fn a_handler_that_runs_the_key_itself_is_handed_it_with_the_user_in_it() {
    let app = Router::new()
        .route(
            "/",
            get(|IdempotencyKey(key): IdempotencyKey| async { key }),
        )
        .route("/lease", get(|_: Lease| async {}))
        .layer(map_request(authenticate));
    let ask = async |path: &str, key: Option<&str>| {
        let mut request = Request::get(path).header(USER, "a/b");
        if let Some(key) = key {
            request = request.header(IDEMPOTENCY_KEY, key);
        }
        let request = request.body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    };
    assert_eq!(ask("/", Some("k")).await, (200, "a%2Fb/k".to_owned()));
    assert_eq!(ask("/", None).await.0, 400);
    // No layer has claimed the key.
    assert_eq!(ask("/lease", Some("k")).await.0, 500);
}

#[tokio::test]
async fn a_tower_service_without_axum_is_run_once() {
    type Bytes = Full<bytes::Bytes>;
    let work = Work::new(2);
    let service = {
        let work = work.clone();
        tower::service_fn(move |request: Request<Bytes>| {
            let work = work.clone();
            async move {
                let lease = request.extensions().get::<Lease>().unwrap();
                let body = lease.attempt().to_string();
                let mut response = Response::new(Bytes::from(body));
                if work.once().await == 0 {
                    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
                }
                Ok::<_, Infallible>(response)
            }
        })
    };
    let service = once(pool()).layer(service);
    let key = uuid::Uuid::new_v4().to_string();
    for (status, attempt) in [(500, "1"), (200, "2"), (200, "2")] {
        let user = User::authenticated(Some("ada")).unwrap();
        let request = Request::patch("/").header(IDEMPOTENCY_KEY, &key);
        let request = request.extension(user).body(Bytes::default()).unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(&*body, attempt.as_bytes());
    }
    assert_eq!(work.runs(), 2);
}
