"""One logical request, one execution: claim, phases, answer.

`run` does it all. What it is given, the work, goes on from lease.recovery_point, whoever got there, and
stores the answer itself, by lease.complete or lease.abort in the transaction of its last writes.
Invariant: wherever a process dies, the next claim of the key goes on rightly.
"""

import json
import logging
import math
import re
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg

from .database import Connect, T, call, heartbeat, rows, transaction, wait_before
from .errors import AlreadyDone, Conflict, LeaseLost, Unavailable

log = logging.getLogger("pg_once")

ROUNDS = 3  # how often the work may run in one `run` when the database fails under it

CLAIM = """
SELECT outcome, token, attempt, recovery_point, state, response_code, response_body,
       extract(epoch FROM lease_left)::float8 AS lease_left, extract(epoch FROM retry_after)::float8 AS retry_after
  FROM once.key_claim(%(scope)s, %(key)s, %(request)s::json, holder => %(holder)s)"""
STEP = """
SELECT done, result, attempted, derived_key, extract(epoch FROM clock_timestamp() - first_at)::float8 AS age
  FROM once.key_step(%(scope)s, %(key)s, %(token)s, %(step)s, on_abort => %(on_abort)s::json)"""
STEP_DONE = "SELECT recorded, result FROM once.key_step_done(%(scope)s, %(key)s, %(token)s, %(step)s, %(result)s::json)"
ADVANCE = "SELECT once.key_advance(%(scope)s, %(key)s, %(token)s, %(point)s, %(state)s::json)"
COMPLETE = "SELECT once.key_complete(%(scope)s, %(key)s, %(token)s, %(code)s, %(body)s::json)"
ABORT = "SELECT once.key_abort(%(scope)s, %(key)s, %(token)s, %(code)s, %(body)s::json)"
RELEASE = "SELECT once.key_release(%(scope)s, %(key)s, %(token)s, %(error)s, make_interval(secs => %(after)s))"
PARK = "SELECT once.key_park(%(scope)s, %(key)s, %(token)s, %(reason)s)"
EXTEND = "SELECT once.key_extend(%(scope)s, %(key)s, %(token)s)"


@dataclass(frozen=True)
class Answer:
    """What goes to the HTTP client. The body is the stored text, never parsed on its way."""

    status: int
    body: str
    headers: dict[str, str] = field(default_factory=dict)


class Retry(Exception):
    """The work failed, and another attempt may go through: the key is released."""

    def __init__(self, error: str, after: float = 1.0) -> None:
        super().__init__(error)
        self.after = after


class Unknown(Exception):
    """Nobody knows whether the work was done, and asking again could do it twice: the key is parked."""


@dataclass(frozen=True)
class Step:
    done: bool
    result: str | None  # json text
    attempted: int  # beginnings by earlier attempts whose end nobody recorded
    derived_key: str
    age: float | None  # seconds since the first beginning


@dataclass(frozen=True)
class Lease:
    """The right to work on a key. Each method that takes a connection is one call, in its transaction if any."""

    scope: str
    key: str
    token: int
    attempt: int
    recovery_point: str
    state: str | None  # json text
    seconds: float

    def phase(self, connect: Connect, point: str, state: str, writes: Callable[[psycopg.Connection], Any]) -> None:
        """One transaction: the recovery point moves, and writes makes the phase's own. Repeated until it is answered.

        AlreadyDone: an earlier COMMIT was carried out, and nothing is written again; `run` goes on behind it.
        Only the same point with the same state is a repeat. So make ids that the state holds before the phase.
        """
        def work(conn: psycopg.Connection) -> None:
            self.advance(conn, point, state)
            writes(conn)

        transaction(connect, work, again=(Conflict, Unavailable))

    def last_phase(self, connect: Connect, writes: Callable[[psycopg.Connection], T]) -> T:
        """The same for the last writes: they end with complete or abort, whose AlreadyDone undoes the others."""
        return transaction(connect, writes, again=(Conflict, Unavailable))

    def step(self, conn: psycopg.Connection, name: str, on_abort: str | None = None) -> Step:
        """Records that a foreign call begins. Commit it before the call."""
        (step,) = self._ask(conn, STEP, step=name, on_abort=on_abort)
        log.debug("step %s begun", name)
        return Step(**step._asdict())

    def step_done(self, conn: psycopg.Connection, name: str, result: str) -> str | None:
        """Records that it ended. The first one wins; what is recorded comes back."""
        (done,) = self._ask(conn, STEP_DONE, step=name, result=result)
        log.debug("step %s done", name)
        return done.result

    def advance(self, conn: psycopg.Connection, point: str, state: str | None = None) -> None:
        """Moves the recovery point, in the transaction of the phase's own writes."""
        self._ask(conn, ADVANCE, point=point, state=state)
        log.debug("advanced %s", point)

    def complete(self, conn: psycopg.Connection, code: int, body: str) -> Answer:
        """Stores the answer, in the transaction of the last writes."""
        self._ask(conn, COMPLETE, code=code, body=body)
        log.debug("completed")
        return Answer(code, body)

    def abort(self, conn: psycopg.Connection, code: int, body: str) -> Answer:
        """Stores the answer of a failure that no retry mends; emits the steps' on_abort events."""
        self._ask(conn, ABORT, code=code, body=body)
        return Answer(code, body)

    def release(self, conn: psycopg.Connection, error: str, after: float | None = None) -> None:
        self._ask(conn, RELEASE, error=_storable(error), after=after)

    def park(self, conn: psycopg.Connection, reason: str) -> None:
        self._ask(conn, PARK, reason=_storable(reason))

    def extend(self, conn: psycopg.Connection) -> None:
        self._ask(conn, EXTEND)

    def _ask(self, conn: psycopg.Connection, sql: str, **arguments: object) -> list:
        return rows(conn, sql, scope=self.scope, key=self.key, token=self.token, **arguments)


def run(connect: Connect, scope: str, key: str, request: str, work: Callable[[Lease], Answer]) -> Answer:
    """Answers a request: does the work, replays its answer, or says why neither.

    request: the JSON text as it came; another one under the same key is 422.
    """
    for attempt in range(1, ROUNDS + 1):
        claimed = claim(connect, scope, key, request)
        if isinstance(claimed, Answer):
            return claimed
        try:
            with heartbeat(connect, claimed.seconds, claimed.extend):
                return work(claimed)
        except Retry as failure:
            _give_back(connect, claimed, str(failure), failure.after)
            return problem(503, "the request could not be finished", failure.after)
        except Unknown as failure:
            call(connect, lambda conn: claimed.park(conn, str(failure)))
            return problem(409, "the outcome of a request with this key is not known yet")
        except LeaseLost:
            return problem(409, "a request with this key is in progress", 1)
        except (Conflict, Unavailable, AlreadyDone) as error:
            # What the work sent last may have been committed. Once the key is given back, an old
            # transaction that still runs cannot commit a write with this token, so the next claim
            # tells what is so. (Claiming with the same holder would not end the token.)
            _give_back(connect, claimed, str(error))
            time.sleep(wait_before(attempt))
        except BaseException as error:
            _give_back(connect, claimed, repr(error), 1)
            raise
    return problem(503, "the request could not be finished", 1)


def claim(connect: Connect, scope: str, key: str, request: str) -> Lease | Answer:
    """One claim. A lost answer costs nothing: the same holder gets its own lease back."""
    holder = str(uuid.uuid4())
    (row,) = call(connect, lambda conn: rows(conn, CLAIM, scope=scope, key=key, request=request, holder=holder))
    match row.outcome:
        case "claimed" | "resumed":
            log.debug("claimed")
            return Lease(scope, key, row.token, row.attempt, row.recovery_point, row.state, row.lease_left)
        case "replayed":
            return Answer(row.response_code, row.response_body or "", {"Idempotent-Replayed": "true"})
        case "in_progress":
            return problem(409, "a request with this key is in progress", row.retry_after)
        case "mismatched":
            return problem(422, "this key was used for a different request")
        case "gone":
            return problem(410, "a request with this key was finished long ago")
        case "parked":
            return problem(409, "the outcome of a request with this key is not known yet")
        case other:
            raise ValueError(f"an outcome that this program does not know: {other}")


def problem(status: int, title: str, after: float | None = None) -> Answer:
    """Retry-After is there exactly when coming back can help without anybody's verdict."""
    headers = {"Content-Type": "application/problem+json"}
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    return Answer(status, json.dumps({"title": title}), headers)


def key_of_header(user: str | None, value: str | None) -> str | Answer:
    """The key of a user's Idempotency-Key header: `<user>/<what the client sent>`, or the 401 or 400 to answer.

    user: who is authenticated, never a value of the request's body. `/` in the name is written %2F and % is
    written %25, so that nobody reaches the keys of another.
    value: quoted (as the IETF draft has it) or bare.
    """
    user = (user or "").strip(" \t")
    if not user:
        return problem(401, "the request is not authenticated")
    value = (value or "").strip()
    if quoted := re.fullmatch(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', value):
        value = re.sub(r"\\(.)", r"\1", quoted[1])
    elif '"' in value:
        value = ""
    key = user.replace("%", "%25").replace("/", "%2F") + "/" + value
    if not value or not value.isprintable() or len(key) > 255:
        return problem(400, "the Idempotency-Key header is missing, not well formed or too long")
    return key


def _give_back(connect: Connect, lease: Lease, error: str, after: float | None = None) -> None:
    try:
        call(connect, lambda conn: lease.release(conn, error, after))
    except (LeaseLost, AlreadyDone):
        pass  # nothing to give back; the next claim tells
    except (Conflict, Unavailable):
        log.warning("the key is left to its lease: %s", error)


def _storable(text: str) -> str:
    """As the server takes it: not empty, not endless, no NUL."""
    return text.replace("\0", "")[:1000] or "no reason given"
