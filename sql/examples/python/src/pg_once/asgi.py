"""A middleware for FastAPI, Starlette and other ASGI applications: requests with an Idempotency-Key may be retried.

    app.add_middleware(Idempotency, pool=pool, user=lambda scope: scope["state"]["user"], required=True)

A request with the header is claimed before the application sees it. When the application returns, its answer is stored,
but 5xx, 401, 403, 408, 409, 425 and 429 release the key instead. The application's writes commit with the answer only
if the application stores the answer in its own transaction:

    await current(request).complete(session, 201, body)

Without this line, the process may die after the application's COMMIT and before the answer is stored. A retry then
runs the application again. So without this line the application's writes and calls must dedupe.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from .errors import Conflict, InvalidArgument, OnceError, Unavailable, WrongShard
from .executor import AsyncEngine, AsyncPool, is_async
from .flow import log
from .http import Answer, key_of_header, problem, retry_after, wait_of_header
from .key import InProgress, Lease
from .run import answer_of, run

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LEASE = "pg_once.lease"
BASE64 = "pg-once-base64"  # a stored header of ours: the body is no JSON
# Headers of one response only, which are not stored.
NOT_STORED = {"content-length", "date", "server", "connection", "transfer-encoding"}
# The application's answer is not stored if it has one of these statuses.
NOT_FINAL = {401, 403, 408, 409, 425, 429}
# Headers that the first answer has and a replay lacks.
ONLY_FIRST = {"set-cookie"}


def current(request: Any) -> Lease:
    """The lease of a request, given as a Starlette or FastAPI Request or as an ASGI scope."""
    lease: Lease = (request if isinstance(request, dict) else request.scope)[LEASE]
    return lease


class Idempotency:
    """user: gives the authenticated user of an ASGI scope, never a value that a client chose. None is 401.

    name: the pg_once scope, or a function that returns it for an ASGI scope. Method, path and query belong to the
    request, so the same key with another path is 422.
    required: whether a request without the header is 400; if not, the application handles it without a key.
    wait: seconds for which a duplicate waits for the first request's answer, before it gets 409.
    longest_wait: the longest wait that a client can ask for, by `Prefer: wait=5`.
    """

    def __init__(
        self,
        app: App,
        pool: AsyncPool | AsyncEngine,
        user: Callable[[Scope], str | None],
        name: str | Callable[[Scope], str] = "http",
        methods: Iterable[str] = ("POST", "PATCH"),
        required: bool = False,
        wait: float = 0,
        longest_wait: float = 0,
    ) -> None:
        if not is_async(pool):
            raise TypeError(f"the middleware needs an async pool or engine, not {type(pool).__name__}")
        self.app, self.pool, self.user, self.name = app, pool, user, name
        self.methods, self.required = frozenset(methods), required
        self.wait, self.longest_wait = wait, longest_wait
        self.running: set[asyncio.Future[tuple[Answer, Headers]]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = _header(scope, "idempotency-key") if scope["type"] == "http" else None
        if scope["type"] != "http" or scope["method"] not in self.methods or (value is None and not self.required):
            await self.app(scope, receive, send)
            return
        key = key_of_header(self.user(scope), value)
        if isinstance(key, Answer):
            await _send(send, key)
            return
        if (body := await _body(receive)) is not None:
            # If the client hangs up, the server may cancel this call; the work goes on.
            task = asyncio.ensure_future(self._answer(scope, key, body))
            self.running.add(task)  # the event loop's own reference to a task is weak
            task.add_done_callback(self.running.discard)
            await _send(send, *await asyncio.shield(task))

    async def _answer(self, scope: Scope, key: str, body: bytes) -> tuple[Answer, Headers]:
        name = self.name(scope) if callable(self.name) else self.name
        request, fingerprint = _request(scope, body)

        wait = max(self.wait, wait_of_header(_header(scope, "prefer"), self.longest_wait))
        once: Headers = []
        began = False

        async def work(lease: Lease) -> Answer:
            nonlocal began
            began = True
            once.clear()
            return await self._work(lease, scope, body, once)

        try:
            answer = await run(self.pool, name, key, request, work, wait=wait, fingerprint=fingerprint)
            return answer, [] if "Idempotent-Replayed" in answer.headers else once
        except OnceError as error:
            told = _of_error(error)
            if told is None or (began and not isinstance(error, Unavailable)):  # an application's own error
                raise
            log.warning("the key could not be claimed: %s", error)
            return told, []

    async def _work(self, lease: Lease, scope: Scope, body: bytes, once: Headers) -> Answer:
        """Runs the application. Stores its answer or releases the key, unless the application committed an answer."""
        # The ASGI server's extensions are hidden from the application. With one of the extensions the application could
        # answer with a file, and a file cannot be stored.
        answer = await _run_app(self.app, {**scope, "extensions": {}, LEASE: lease}, body, once)
        if lease.answers:
            committed = await lease.committed(self.pool)
            if committed:
                return lease.answers[0][0]
            if committed is None:  # the open transaction has locked the key, so no other call can end the key now
                log.error("%s %s: commit what stores the answer before the application returns", lease.scope, lease.key)
                return problem(500, "the answer is not committed yet")
            if answer.status < 400:
                raise RuntimeError("the transaction that stored the answer is not committed: is a commit missing?")
            lease.answers.clear()
        if answer.status >= 500 or answer.status in NOT_FINAL:
            after = retry_after(answer.headers.get("retry-after"))
            await lease.release(self.pool, f"the application says {answer.status}", after)
            return answer
        end = lease.complete if answer.status < 400 else lease.abort
        await end(self.pool, answer.status, answer.body or None, answer.headers)
        return answer


def _of_error(error: OnceError) -> Answer | None:
    """The answer to a client whose key could not be claimed; None: a fault of the service."""
    state = error.sqlstate or ""
    if isinstance(error, InvalidArgument):  # JSON that jsonb cannot hold, such as \u0000
        return problem(400, str(error))
    if isinstance(error, Conflict):
        return answer_of(InProgress(1))
    if isinstance(error, (Unavailable, WrongShard)) or state == "25006":
        return problem(503, "the database is away", 1)
    if state == "57014" or state.startswith("53"):
        return problem(503, "the database is overloaded", 1)
    return None


async def _run_app(app: App, scope: Scope, body: bytes, once: Headers) -> Answer:
    sent, status, headers, came = bytearray(), 500, dict[str, str](), False

    async def receive() -> Message:
        nonlocal came
        if came:
            await asyncio.Event().wait()  # the application sees no hang-up
        came = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message.get("headers", ()):
                header = name.decode("latin-1").lower()
                if header in ONLY_FIRST:
                    once.append((name, value))
                elif header not in NOT_STORED:
                    text = value.decode("latin-1")
                    headers[header] = f"{headers[header]}, {text}" if header in headers else text
        elif message["type"] == "http.response.body":
            sent.extend(message.get("body", b""))

    await app(scope, receive, send)
    return _answer_of(status, bytes(sent), headers)


def _answer_of(status: int, body: bytes, headers: dict[str, str]) -> Answer:
    """JSON without a NUL is stored as its text; any other body as base64 in a JSON string."""
    try:
        text = body.decode()
        if text:
            json.loads(text)
        if "\\u0000" not in text:
            return Answer(status, text, headers)
    except ValueError:
        pass
    return Answer(status, json.dumps(base64.b64encode(body).decode()), {**headers, BASE64: "1"})


async def _send(send: Send, answer: Answer, once: Headers | None = None) -> None:
    headers = {name.lower(): value for name, value in answer.headers.items()}
    body = base64.b64decode(json.loads(answer.body)) if headers.pop(BASE64, None) else answer.body.encode()
    if body:
        headers.setdefault("content-type", "application/json")
    if body or answer.status not in (204, 304):
        headers["content-length"] = str(len(body))
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw + (once or [])})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Receive) -> bytes | None:
    """None: the client hung up before it had sent the whole body."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


def _request(scope: Scope, body: bytes) -> tuple[str | None, bytes | None]:
    """The parts of a request that must be equal in a retry: as JSON if the body is JSON, else as a fingerprint."""
    target = [scope["method"], scope["path"], scope.get("query_string", b"").decode("latin-1")]
    try:
        text = body.decode()
        json.loads(text)
        return f'{{"target": {json.dumps(target)}, "body": {text}}}', None
    except ValueError:
        return None, hashlib.sha256(json.dumps(target).encode() + b"\n" + body).digest()


def _header(scope: Scope, name: str) -> str | None:
    values = [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name.encode()]
    return ", ".join(values) if values else None
