//! Owns running an HTTP request under its key: a layer for axum or any other tower stack, and extractors for axum.
//! Feature `axum`.
//!
//! Invariants: a handler of POST or PATCH runs only under a lease; once an answer is stored, a retry gets it until the
//! key's ttl ends, without another run; a handler runs on when its client hangs up.

mod stored;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};
use std::time::Duration;

use axum_core::extract::FromRequestParts;
use bytes::Bytes;
use http::header::SET_COOKIE;
use http::request::Parts;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tower_layer::Layer;
use tower_service::Service;

use crate::http::{Answer, IDEMPOTENCY_KEY, PREFER, User, key_of_header, wait_of_header};
use crate::options::setters;
use crate::{Autocommit, BoxError, Lease, Outcome, Scope};

/// The same as the default limit of axum's extractors.
const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// The key of a request, with the authenticated user in it ([`key_of_header`]), for a handler that calls `Key::run`.
///
/// The service's authentication puts a [`User`] into the request's extensions. Without a [`User`] the answer is 401;
/// without the header `Idempotency-Key` the answer is 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdempotencyKey(pub String);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Answer> {
        let user = parts.extensions.get().cloned();
        let user = user.map_or_else(|| User::authenticated(None), Ok)?;
        key_of_header(&user, text(parts, IDEMPOTENCY_KEY)).map(Self)
    }
}

/// The lease that [`Idempotency`] has claimed for this request.
impl<S: Sync> FromRequestParts<S> for Lease {
    type Rejection = Answer;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Answer> {
        parts.extensions.get().cloned().ok_or_else(|| {
            tracing::error!("no lease: not behind the layer Idempotency, or not a POST or PATCH");
            Answer::problem(500, "internal error")
        })
    }
}

/// A layer that runs each POST and PATCH once for its [`IdempotencyKey`]; other methods pass through.
///
/// A retry must repeat method, path, query and body. `nest` cuts a prefix off the path. Put the layer outside of
/// `nest`, so that it gets the whole path. The handler may extract the [`Lease`], and answers in one of two ways:
///
/// - **`Result<Done, Failure>`**, like the work of [`Runner::run`](crate::Runner::run). With
///   [`Done::Stored`](crate::Done::Stored) the handler has stored the answer in the transaction of its own writes.
///   A handler may fail after a lost race, a lost connection or `ON006`. If the key is already finished, the layer
///   sends the stored answer. Otherwise the layer runs the handler again in a new attempt.
/// - **Any response.** It is stored when the handler has returned. If the process dies before that, a retry runs the
///   handler again. A response with 401, 403, 408, 409, 425, 429 or 5xx is not stored; it releases the key. Cookies are
///   sent with the first answer only.
///
/// With `keep_request` the scope keeps `{"target": [method, path, query], "body": …}`. A body that is not JSON is in a
/// field `"base64"` instead of `"body"`. The handler runs in a task of its own, which goes on when the client hangs up.
/// `client/examples/payments.rs` is a whole service.
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
    setters! {
        /// The length of the lease, instead of the scope's: [`Runner::lease`](crate::Runner::lease).
        lease: Duration,
    }

    /// Makes a layer that runs requests in this scope. The executor is a pool, as for [`Key::run`](crate::Key::run).
    pub fn new(exec: E, scope: Scope) -> Self {
        Self {
            exec,
            scope,
            lease: None,
            longest_wait: Duration::ZERO,
            body_limit: BODY_LIMIT,
        }
    }

    /// How long a duplicate with `Prefer: wait=…` may wait for the first answer. By default it gets 409 at once.
    pub fn longest_wait(mut self, longest_wait: Duration) -> Self {
        self.longest_wait = longest_wait;
        self
    }

    /// Upper limit of the bytes of a request's body; by default 2 MiB. A longer body gets 413.
    pub fn body_limit(mut self, body_limit: usize) -> Self {
        self.body_limit = body_limit;
        self
    }

    async fn run<S, B>(self, service: S, request: Request<B>) -> Result<Response<B>, Answer>
    where
        S: Service<Request<B>, Response = Response<B>, Error = Infallible> + Clone,
        B: Body<Error: Into<BoxError>> + From<Bytes>,
    {
        let (mut parts, body) = request.into_parts();
        let IdempotencyKey(key) = IdempotencyKey::from_request_parts(&mut parts, &()).await?;
        let wait = wait_of_header(text(&parts, PREFER), self.longest_wait);
        let body = Limited::new(body, self.body_limit).collect().await;
        let body = body.map_err(|error| match error.is::<LengthLimitError>() {
            true => Answer::problem(413, "the request's body is too long"),
            false => Answer::problem(400, "the request's body could not be read"),
        })?;
        let request = Request::from_parts(parts, body.to_bytes());

        let runner = self.scope.key(&key).run(&self.exec).wait(wait);
        let mut runner = runner.request(stored::request(&request));
        if let Some(lease) = self.lease {
            runner = runner.lease(lease);
        }
        // The handler's response, unless it was made from a `Done` or a `Failure`.
        let own = OnceLock::new();
        let keep = &own;
        let work = move |lease: Lease| {
            let mut request = request.clone().map(B::from);
            request.extensions_mut().insert(lease);
            let answer = call(service.clone(), request);
            async move {
                let Ok(response) = answer.await;
                let (end, response) = stored::end_of(response).await;
                if let Some(response) = response {
                    keep.get_or_init(|| response);
                }
                end
            }
        };
        let outcome = runner.run(work).await.map_err(|error| {
            tracing::error!(key, %error, "a request failed");
            Answer::of_error(&error)
        })?;
        match own.into_inner() {
            Some(own) if matches!(outcome, Outcome::Released { .. }) => Ok(own.map(B::from)),
            own => {
                let mut response = Answer::of(&outcome).into_http();
                for cookie in own.iter().flat_map(|own| own.headers().get_all(SET_COOKIE)) {
                    response.headers_mut().append(SET_COOKIE, cookie.clone());
                }
                Ok(response)
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

impl<S, E, B> Service<Request<B>> for Idempotent<S, E>
where
    S: Service<Request<B>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    E: Autocommit + Clone + Send + 'static,
    B: Body<Data: Send, Error: Into<BoxError>> + From<Bytes> + Send + 'static,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, Infallible>> + Send>>;

    /// Returns ready at once: `call` waits for the inner service.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (service, once) = (self.inner.clone(), self.once.clone());
        match *request.method() {
            Method::POST | Method::PATCH => Box::pin(async move {
                // If the client hangs up, this future is dropped, but the spawned task runs on.
                let ran = tokio::spawn(once.run(service, request)).await;
                let ran = ran.unwrap_or(Err(Answer::problem(500, "internal error")));
                Ok(ran.unwrap_or_else(Answer::into_http))
            }),
            _ => Box::pin(call(service, request)),
        }
    }
}

async fn call<S: Service<Q>, Q>(mut service: S, request: Q) -> Result<S::Response, S::Error> {
    std::future::poll_fn(|context| service.poll_ready(context)).await?;
    service.call(request).await
}

fn text<'h>(parts: &'h Parts, name: &str) -> Option<&'h str> {
    let value = parts.headers.get(name)?;
    Some(value.to_str().unwrap_or_default())
}
