//! Owns the way of an HTTP request through a keyed run: an extractor and a layer for axum, or any other tower stack.
//! Feature `axum`.
//!
//! Invariants: a handler runs under a lease or not at all; what it answered once is what every retry gets, unless
//! the answer says that a retry may end otherwise; a client that hangs up stops nothing.

mod answer;
mod stored;

use std::error::Error as StdError;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::extract::FromRequestParts;
use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower_layer::Layer;
use tower_service::Service;

use crate::http::{Answer, IDEMPOTENCY_KEY, PREFER, User, key_of_header, wait_of_header};
use crate::{Autocommit, Failure, Lease, Outcome, Scope};

/// As axum's extractors have it.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// The key of a request, with the authenticated user in it: see [`key_of_header`]. [`Idempotency`] reads it by
/// itself; extract it where a handler runs the key itself ([`Key::run`](crate::Key::run)).
///
/// Whoever authenticates the request puts a [`User`] into its extensions. Without one the answer is 401, without
/// the header it is 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub String);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Answer> {
        key_of(parts).map(Self)
    }
}

/// The lease that [`Idempotency`] claimed for this request.
impl<S: Sync> FromRequestParts<S> for Lease {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Answer> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| {
            tracing::error!(
                path = parts.uri.path(),
                "no lease: the route has no Idempotency layer, or is no POST or PATCH"
            );
            Answer::problem(500, "internal error")
        })
    }
}

/// A layer that runs each POST and PATCH once for its `Idempotency-Key`. Other methods pass through.
///
/// It claims the key before the handler runs, keeps the lease alive, and stores the answer. A duplicate gets the stored
/// answer, byte for byte. Method, path and query belong to the request: the same key on another path is 422. The path is
/// the one that the layer sees: put the layer outside of `nest`.
///
/// The handler may extract the [`Lease`]. It answers in one of two ways:
///
/// - **`Result<Done, Failure>`**, as the work of [`Runner::run`](crate::Runner::run). [`Done::Stored`](crate::Done::Stored)
///   says that it has stored the answer itself, in the transaction of its own writes. A [`Failure`] releases, parks or
///   aborts the key. After `ON006`, or a connection that was lost, the handler is called again with a new lease and goes
///   on from what is committed.
/// - **Any response.** It is stored after the handler has returned, so a process that dies between the two runs the
///   request again. Not stored are 401, 403, 408, 409, 425, 429 and 5xx: the key is released, and a retry runs the
///   handler again. Cookies go out with the first answer only. A body that is not JSON is stored as base64.
///
/// With `keep_request` the scope keeps `{"target": [method, path, query], "body": …}`; a body that is not JSON is kept
/// as its `"sha256"` alone.
///
/// The request runs in a task of its own. It goes on when the client hangs up, and the retry gets its answer.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/doctest.rs"));
/// # fn main() { with_database(async |pool, idempotency_key| {
/// use axum::{Router, body::Body, http::Request, routing::post};
/// use pg_once::{Done, Failure, Lease, Response, Scope, axum::Idempotency, http::User};
/// # use tower::ServiceExt;
///
/// async fn pay(lease: Lease) -> Result<Done, Failure> {
///     Ok(Response::new(201).with_body(&lease.attempt())?.into())
/// }
///
/// let app: Router = Router::new()
///     .route("/payments", post(pay))
///     .layer(Idempotency::new(pool.clone(), Scope::new("payments.create")));
/// // ... and outside of it the layer that authenticates and puts the user in:
/// let mut request = Request::post("/payments").header("Idempotency-Key", &idempotency_key).body(Body::empty())?;
/// request.extensions_mut().insert(User::authenticated(Some("ada")).unwrap());
/// assert_eq!(app.oneshot(request).await?.status(), 201);
/// # Ok(()) }) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is added to a service"]
pub struct Idempotency<E> {
    exec: E,
    scope: Scope,
    lease: Option<Duration>,
    longest_wait: Duration,
    body_limit: usize,
}

impl<E: Autocommit> Idempotency<E> {
    /// Runs the requests of this scope. The executor is a pool, as for [`Key::run`](crate::Key::run).
    pub fn new(exec: E, scope: Scope) -> Self {
        Self {
            exec,
            scope,
            lease: None,
            longest_wait: Duration::ZERO,
            body_limit: BODY_LIMIT,
        }
    }

    /// The length of the lease, instead of the scope's: [`Runner::lease`](crate::Runner::lease).
    pub fn lease(self, lease: Duration) -> Self {
        Self {
            lease: Some(lease),
            ..self
        }
    }

    /// How long a duplicate may wait for the first one's answer if it asks for that by `Prefer: wait=5`, instead of
    /// 409 with `Retry-After` at once.
    pub fn longest_wait(self, longest_wait: Duration) -> Self {
        Self {
            longest_wait,
            ..self
        }
    }

    /// How long a request's body may be, 2 MiB unless you say otherwise; a longer one is 413.
    pub fn body_limit(self, body_limit: usize) -> Self {
        Self { body_limit, ..self }
    }

    /// The whole request, or the answer that refuses it.
    async fn read<B>(&self, request: Request<B>) -> Result<(String, Request<Bytes>), Answer>
    where
        B: http_body::Body,
        B::Error: Into<Box<dyn StdError + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let key = key_of(&parts)?;
        match Limited::new(body, self.body_limit).collect().await {
            Ok(body) => Ok((key, Request::from_parts(parts, body.to_bytes()))),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(Answer::problem(413, "the request's body is too long"))
            }
            Err(_) => Err(Answer::problem(400, "the request's body could not be read")),
        }
    }

    /// Runs the service once for the key.
    async fn run<S, B, R>(
        self,
        service: S,
        key: String,
        request: Request<Bytes>,
    ) -> Result<Response<R>, S::Error>
    where
        S: Service<Request<B>, Response = Response<R>> + Clone,
        B: From<Bytes>,
        R: http_body::Body + From<Bytes>,
    {
        let prefer = text(request.headers(), PREFER);
        let mut runner = self.scope.key(&key).run(&self.exec);
        if let Some(lease) = self.lease {
            runner = runner.lease(lease);
        }
        runner = runner
            .wait(wait_of_header(prefer, self.longest_wait))
            .request(stored::request(&request));
        // What the service gave last, unless that was for the runner.
        let given = Mutex::new(None);
        let keep = &|last| *given.lock().unwrap_or_else(PoisonError::into_inner) = last;
        let work = move |lease| {
            let mut request = request.clone().map(B::from);
            request.extensions_mut().insert::<Lease>(lease);
            let call = call(service.clone(), request);
            async move {
                keep(None);
                let mut response = match call.await {
                    Ok(response) => answer::whole(response).await?,
                    Err(error) => {
                        keep(Some(Err(error)));
                        return Err(Failure::retry("the service failed"));
                    }
                };
                if let Some(said) = answer::said(&mut response) {
                    return said;
                }
                let end = stored::end_of(&response);
                keep(Some(Ok(response)));
                end
            }
        };
        let outcome = runner.run(work).await;
        match (
            outcome,
            given.into_inner().unwrap_or_else(PoisonError::into_inner),
        ) {
            // A 503 of its own, say.
            (Ok(Outcome::Released { .. }), Some(given)) => Ok(given?.map(R::from)),
            (Ok(outcome), given) => {
                let mut response = Answer::of(&outcome).into_http();
                if let Some(Ok(first)) = given {
                    let cookies = first.headers().get_all(header::SET_COOKIE).iter();
                    let cookies = cookies.map(|cookie| (header::SET_COOKIE, cookie.clone()));
                    response.headers_mut().extend(cookies);
                }
                Ok(response)
            }
            (Err(error), _) => {
                tracing::error!(key, %error, "a request failed");
                Ok(Answer::of_error(&error).into_http())
            }
        }
    }
}

impl<S, E: Clone> Layer<S> for Idempotency<E> {
    type Service = Idempotent<S, E>;

    fn layer(&self, inner: S) -> Self::Service {
        let once = self.clone();
        Idempotent { inner, once }
    }
}

/// A service behind [`Idempotency`].
#[derive(Clone, Debug)]
pub struct Idempotent<S, E> {
    inner: S,
    once: Idempotency<E>,
}

impl<S, E, B, R> Service<Request<B>> for Idempotent<S, E>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    E: Autocommit + Clone + Send + 'static,
    B: http_body::Body + From<Bytes> + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
    R: http_body::Body + From<Bytes> + Send + 'static,
    R::Data: Send,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<R>, S::Error>> + Send>>;

    /// The inner service is waited for when it is called, which may be more than once for a request.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (service, once) = (self.inner.clone(), self.once.clone());
        if !matches!(*request.method(), Method::POST | Method::PATCH) {
            return Box::pin(call(service, request));
        }
        Box::pin(async move {
            let (key, request) = match once.read(request).await {
                Ok(read) => read,
                Err(refused) => return Ok(refused.into_http()),
            };
            // A task of its own: a client that hangs up drops only the wait for it.
            let run = tokio::spawn(once.run(service, key, request)).await;
            run.unwrap_or_else(|_| Ok(Answer::problem(500, "internal error").into_http()))
        })
    }
}

async fn call<S: Service<Q>, Q>(mut service: S, request: Q) -> Result<S::Response, S::Error> {
    poll_fn(|context| service.poll_ready(context)).await?;
    service.call(request).await
}

fn key_of(parts: &Parts) -> Result<String, Answer> {
    let user = parts.extensions.get::<User>();
    let user = user.ok_or(Answer::unauthenticated())?;
    key_of_header(user, text(&parts.headers, IDEMPOTENCY_KEY))
}

/// A header's value; a malformed one reads as empty.
fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let value = headers.get(name)?;
    Some(value.to_str().unwrap_or_default())
}
