"""One logical request, one execution: the claim of a key, and the calls of its lease.

`run` in run.py does all of it for a request. Invariant: wherever a process dies, the next claim of the key
continues correctly.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from .document import Document, storable, text_of, value_of
from .errors import AlreadyDone, Conflict, LeaseLost, Unavailable
from .executor import method, operation
from .flow import Beat, Flow, Invoke, Seconds, ask, in_transaction, interval, invoked, log, storable_wait, tell
from .foreign import Unknown
from .http import Answer

_CLAIMED = """outcome, token, attempt, recovery_point, state, response_code, response_body, response_headers,
       extract(epoch FROM lease_left)::float8 AS lease_left, extract(epoch FROM retry_after)::float8 AS retry_after"""
CLAIM = f"""
SELECT {_CLAIMED}
  FROM once.key_claim(%(scope)s, %(key)s, %(request)s::json, lease => %(lease)s, ttl => %(ttl)s, holder => %(holder)s,
                      fingerprint => %(fingerprint)s)"""
TAKE = f"""
SELECT {_CLAIMED}, key, request
  FROM once.key_take_abandoned(%(scope)s, %(max)s, lease => %(lease)s, holder => %(holder)s)"""
STEP = """
SELECT done, result, attempted, derived_key, extract(epoch FROM clock_timestamp() - first_at)::float8 AS age
  FROM once.key_step(%(scope)s, %(key)s, %(token)s, %(step)s, on_abort => %(on_abort)s::json)"""
STEP_DONE = """
SELECT recorded, result
  FROM once.key_step_done(%(scope)s, %(key)s, %(token)s, %(step)s, %(result)s::json,
                          on_complete => %(on_complete)s::json, on_abort => %(on_abort)s::json)"""
ADVANCE = """
SELECT extract(epoch FROM lease_left)::float8 AS lease_left
  FROM once.key_advance(%(scope)s, %(key)s, %(token)s, %(point)s, %(state)s::json, lease => %(lease)s)"""
END = """
SELECT once.key_{}(%(scope)s, %(key)s, %(token)s, %(code)s, %(body)s::json, %(headers)s::json),
       pg_current_xact_id()::text AS transaction"""
# NULL: the transaction is open. An id that is not below the snapshot's xmax counts as open, too. The server may have
# no status for it yet.
COMMITTED = """
SELECT CASE WHEN %(transaction)s::xid8 < pg_snapshot_xmax(pg_current_snapshot())
            THEN nullif(pg_xact_status(%(transaction)s::xid8), 'in progress') = 'committed' END AS committed"""
RELEASE = "SELECT once.key_release(%(scope)s, %(key)s, %(token)s, %(error)s, %(after)s)"
PARK = "SELECT once.key_park(%(scope)s, %(key)s, %(token)s, %(reason)s)"
EXTEND = """
SELECT extract(epoch FROM lease_left)::float8 AS lease_left
  FROM once.key_extend(%(scope)s, %(key)s, %(token)s, %(lease)s)"""
ROTATE = "SELECT version FROM once.key_rotate(%(scope)s, %(key)s, %(token)s, %(step)s, %(version)s)"
DERIVE = "SELECT once.key_derive(%(scope)s, %(key)s, %(step)s) AS derived"
RESOLVE = """
SELECT once.key_resolve(%(scope)s, %(key)s, %(attempt)s, %(verdict)s, %(code)s, %(body)s::json, %(headers)s::json)"""


# The outcomes of a claim that gets no lease.


@dataclass(frozen=True)
class Replayed:
    """Finished: return the stored answer."""

    answer: Answer
    headers: str | None = None  # the answer's headers as the json text that is stored


@dataclass(frozen=True)
class InProgress:
    """Somebody holds the key, or its retry is not due yet."""

    retry_after: float
    lease_left: float | None = None


@dataclass(frozen=True)
class Mismatched:
    """The same key was used for a different request."""


@dataclass(frozen=True)
class Gone:
    """Finished and past its ttl."""


@dataclass(frozen=True)
class Parked:
    """Nobody knows how the last attempt ended, or attempts are used up: give a verdict by `resolve`."""

    attempt: int


@dataclass(frozen=True)
class Step:
    done: bool
    result: str | None  # json text
    attempted: int  # earlier attempts that began the step and recorded no end
    derived_key: str
    age: float | None  # seconds since the step first began

    @property
    def value(self) -> Any:
        return value_of(self.result)


@dataclass(frozen=True)
class StepDone:
    recorded: bool  # False: another attempt was first, with this result
    result: str | None  # json text

    @property
    def value(self) -> Any:
        return value_of(self.result)


@dataclass(frozen=True)
class Lease:
    """The right to work on a key. The first argument of each method is the object to run on.

    A method that writes raises AlreadyDone if an earlier transaction of this lease has made that write, and LeaseLost
    if the lease is lost.
    """

    scope: str
    key: str
    token: int
    attempt: int
    recovery_point: str
    state: str | None  # json text
    seconds: float
    resumed: bool = False
    request: str | None = None  # JSON text; only from take_abandoned, if the scope keeps requests
    asked: timedelta | None = None  # the length of lease that the claim asked for
    # The answer that this lease has stored, with the id of the transaction that stored it. If a repeat of the call got
    # ON006, the id is None: an earlier try has committed the answer.
    answers: list[tuple[Answer, str | None]] = field(default_factory=list, compare=False, repr=False)

    @property
    def value(self) -> Any:
        """The state, parsed; {} if there is none."""
        return value_of(self.state, {})

    @method
    def advance(self, point: str, state: Document = None, lease: Seconds = None) -> Flow[float | None]:
        """Moves the recovery point, in the transaction of the phase's own writes. state None keeps the state."""
        told = yield from self._tell(ADVANCE, point=point, state=text_of(state), lease=interval(lease))
        log.debug("advanced %s", point)
        return told[0].lease_left if told else None

    @method
    def complete(self, code: int, body: Document = None, headers: Document = None) -> Flow[Answer]:
        """Stores the answer, in the transaction of the last writes."""
        return (yield from self._end("complete", code, body, headers))

    @method
    def abort(self, code: int, body: Document = None, headers: Document = None) -> Flow[Answer]:
        """Stores the answer of a failure that no retry mends; emits the steps' on_abort events."""
        return (yield from self._end("abort", code, body, headers))

    @method
    def committed(self) -> Flow[bool | None]:
        """Whether the transaction in which this lease has stored an answer is committed; None: it is still open."""
        for _, transaction in self.answers:
            if transaction is None:
                return True
            (row,) = yield from ask(COMMITTED, transaction=transaction)
            return None if row.committed is None else bool(row.committed)
        return False

    @method
    def release(self, error: str, after: Seconds = None) -> Flow[None]:
        """Gives the key back after a failure that a retry can mend; it is due after `after`, at most a day."""
        yield from ask(RELEASE, **self._fence, error=storable(error), after=storable_wait(after))

    @method
    def park(self, reason: str) -> Flow[None]:
        """Parks the key until a verdict (`resolve`): nobody knows how a foreign call ended."""
        yield from ask(PARK, **self._fence, reason=storable(reason))

    @method
    def extend(self, lease: Seconds = None) -> Flow[float]:
        """Extends the lease; returns the seconds that are left of it."""
        (row,) = yield from ask(EXTEND, **self._fence, lease=interval(lease))
        return float(row.lease_left)

    @method
    def step(self, name: str, on_abort: Document = None) -> Flow[Step]:
        """Records that a foreign call begins. Commit it before the call."""
        (row,) = yield from ask(STEP, **self._fence, step=name, on_abort=text_of(on_abort))
        log.debug("step %s begun", name)
        return Step(**row._asdict())

    @method
    def step_done(
        self, name: str, result: Document = None, on_complete: Document = None, on_abort: Document = None
    ) -> Flow[StepDone]:
        """Records that the foreign call ended. The first record wins; its result is returned."""
        text = text_of(result)
        events = {"on_complete": text_of(on_complete), "on_abort": text_of(on_abort)}
        told = yield from self._tell(STEP_DONE, step=name, result=text, **events)
        log.debug("step %s done", name)
        return StepDone(told[0].recorded, told[0].result) if told else StepDone(True, text)

    @method
    def rotate(self, step: str, from_version: int) -> Flow[int]:
        """Gives a step a new derived key, after the other side has stored a validation error under the old one."""
        (row,) = yield from ask(ROTATE, **self._fence, step=step, version=from_version)
        return int(row.version)

    @method
    def phase(self, point: str, state: Document, writes: Callable[[Any], Any]) -> Flow[None]:
        """One transaction, repeated if its COMMIT is not answered: moves the recovery point and calls writes(conn).

        AlreadyDone: an earlier COMMIT was carried out, and nothing is written again; `run` continues after that COMMIT.
        The repeat must have the same point and state. With another state there is no AlreadyDone, and the writes are
        made twice. So make the state's ids before you call `phase`, not in `writes`.
        """

        def body(conn: Any) -> Flow[None]:
            yield from self.advance.flow(point, state)
            yield Invoke(writes, (conn,))

        yield from in_transaction(body, unanswered=True)

    @method
    def last_phase(self, writes: Callable[[Any], Any]) -> Flow[Any]:
        """Like `phase`, for the last writes. writes(conn) must call complete or abort on conn.

        If an earlier COMMIT was carried out, that call raises AlreadyDone in the repeat. The repeat is rolled back.
        """
        return (yield from in_transaction(lambda conn: invoked(writes, conn), unanswered=True))

    @method
    def foreign(
        self,
        step: str,
        send: Callable[[str], Any],
        remembers: Seconds = None,
        on_abort: Document = None,
    ) -> Flow[Any]:
        """One foreign call as a step: send(derived_key) returns its JSON. Returns the recorded result, parsed.

        Each attempt calls send with the same key, until the step is done. send raises Refused for a final refusal,
        Retry if the call may be repeated, Unknown if not: `foreign_call` raises these.
        remembers: how long the other side remembers keys; an unrecorded call that began longer ago is Unknown.
        """
        begun = yield from self.step.flow(step, on_abort)
        if begun.done:
            return begun.value
        limit = interval(remembers)
        if limit is not None and begun.attempted and (begun.age or 0) > limit.total_seconds():
            raise Unknown("an earlier attempt may have acted, and the other side has forgotten its key by now")
        result = yield Invoke(send, (begun.derived_key,))
        return (yield from self.step_done.flow(step, result)).value

    @property
    def beat(self) -> Beat:
        return Beat(self.seconds, lambda: ask(EXTEND, 1, **self._fence, lease=self.asked))

    @property
    def _fence(self) -> dict[str, Any]:
        return {"scope": self.scope, "key": self.key, "token": self.token}

    def _tell(self, sql: str, **arguments: object) -> Flow[list[Any] | None]:
        return (yield from tell(sql, **self._fence, **arguments))

    def _end(self, how: str, code: int, body: Document, headers: Document) -> Flow[Answer]:
        text, names = text_of(body), text_of(headers or None)
        told = yield from self._tell(END.format(how), code=code, body=text, headers=names)
        log.debug("completed")
        answer = Answer(code, text or "", value_of(names, {}))
        self.answers[:] = [(answer, told[0].transaction if told else None)]
        return answer


Claim = Lease | Replayed | InProgress | Mismatched | Gone | Parked


@operation
def claim(
    scope: str,
    key: str,
    request: Document = None,
    lease: Seconds = None,
    ttl: Seconds = None,
    holder: str | None = None,
    fingerprint: bytes | None = None,
) -> Flow[Claim]:
    """One claim. If the answer is lost, a repeat with the same holder gets the holder's lease back."""
    arguments = {"scope": scope, "key": key, "request": text_of(request), "fingerprint": fingerprint}
    times = {"lease": interval(lease), "ttl": interval(ttl)}
    (row,) = yield from ask(CLAIM, **arguments, **times, holder=holder or str(uuid.uuid4()))
    return _claim_of(row, scope, key, times["lease"])


@operation
def take_abandoned(scope: str, max: int = 10, lease: Seconds = None, holder: str | None = None) -> Flow[list[Lease]]:
    """Claims unfinished keys that nobody holds, for a completer; each has its request if the scope keeps requests."""
    asked = interval(lease)
    arguments = {"scope": scope, "max": max, "lease": asked, "holder": holder or str(uuid.uuid4())}
    taken = [_claim_of(row, scope, row.key, asked, row.request) for row in (yield from ask(TAKE, **arguments))]
    return [claim for claim in taken if isinstance(claim, Lease)]


@operation
def derive(scope: str, key: str, step: str) -> Flow[str]:
    """The derived key of a step, without a lease."""
    (row,) = yield from ask(DERIVE, scope=scope, key=key, step=step)
    return str(row.derived)


@operation
def resolve(scope: str, key: str, attempt: int, verdict: str, answer: Answer | None = None) -> Flow[None]:
    """Gives a parked attempt its verdict: `retry`, or `complete` or `abort` with the answer. For an operator's role."""
    headers = json.dumps(answer.headers) if answer and answer.headers else None
    response = {"code": answer and answer.status, "body": (answer and answer.body) or None, "headers": headers}
    yield from tell(RESOLVE, scope=scope, key=key, attempt=attempt, verdict=verdict, **response)


def _claim_of(row: Any, scope: str, key: str, asked: timedelta | None, request: str | None = None) -> Claim:
    match row.outcome:
        case "claimed" | "resumed" as outcome:
            log.debug("claimed")
            lease = (row.token, row.attempt, row.recovery_point, row.state, row.lease_left)
            return Lease(scope, key, *lease, resumed=outcome == "resumed", request=request, asked=asked)
        case "replayed":
            headers = row.response_headers
            return Replayed(Answer(row.response_code, row.response_body or "", value_of(headers, {})), headers)
        case "in_progress":
            return InProgress(row.retry_after, row.lease_left)
        case "mismatched":
            return Mismatched()
        case "gone":
            return Gone()
        case "parked":
            return Parked(row.attempt)
        case other:
            raise ValueError(f"an outcome that this program does not know: {other}")


def give_back(lease: Lease, error: str, after: Seconds = None) -> Flow[Answer | None]:
    """Releases the key after a failure. If this lease has committed an answer before, returns that answer instead."""
    try:
        yield from lease.release.flow(error, after)
    except AlreadyDone:
        return lease.answers[0][0] if lease.answers else None
    except LeaseLost:
        pass  # the next claim shows this, too
    except (Conflict, Unavailable):
        log.warning("the key is left to its lease: %s", error)
    return None
