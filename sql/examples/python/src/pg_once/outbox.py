"""Events: emitted in the transaction of the writes, delivered by a worker; dead letters.

Delivered at least once; handled once by a receiver that dedupes by the delivery key. Invariant: the ack of an event
commits only after `deliver` has returned. An event without an ack is delivered again, until it is dead.
"""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .document import Document, storable, text_of, value_of
from .errors import AlreadyDone, LeaseLost, OnceError
from .executor import method, operation
from .flow import (
    Beat,
    Flow,
    Invoke,
    Pause,
    Seconds,
    Under,
    ask,
    in_transaction,
    interval,
    log,
    storable_wait,
    tell,
    wait_before,
)
from .foreign import Refused, Retry, Unknown

EMIT = """
SELECT event_id, emitted
  FROM once.outbox_emit(%(topic)s, %(payload)s::json, order_key => %(order_key)s, dedupe_key => %(dedupe_key)s,
                        headers => %(headers)s::json, delay => %(delay)s)"""
TAKE = """
SELECT token, event_id, attempt, delivery_key, order_key, payload, headers, emitted_at
  FROM once.outbox_take(%(topic)s, %(subscriber)s, %(max)s, %(lease)s)"""
ACK = "SELECT acked FROM once.outbox_ack(%(topic)s, %(subscriber)s, %(token)s, %(events)s::bigint[])"
NACK = """
SELECT event_id, attempt, next_attempt_at, dead
  FROM once.outbox_nack(%(topic)s, %(subscriber)s, %(token)s, %(events)s::bigint[], error => %(error)s,
                        kind => %(kind)s, retry_after => %(after)s)"""
EXTEND = """
SELECT extract(epoch FROM lease_left)::float8 AS lease_left
  FROM once.outbox_extend(%(topic)s, %(subscriber)s, %(token)s, %(lease)s)"""
DEAD = """
SELECT event_id, attempts, died_at, kind, error, order_key, payload, headers, emitted_at
  FROM once.outbox_dead(%(topic)s, %(subscriber)s, %(max)s)"""
REDRIVE = "SELECT redriven FROM once.outbox_redrive(%(topic)s, %(subscriber)s, %(max)s, %(events)s::bigint[])"
DISCARD = "SELECT discarded FROM once.outbox_discard(%(topic)s, %(subscriber)s, %(events)s::bigint[])"


@dataclass(frozen=True)
class Emitted:
    event_id: int
    emitted: bool  # False: event_id is an earlier event with this dedupe_key, within the topic's dedupe_for


@dataclass(frozen=True)
class Event:
    token: int
    event_id: int
    attempt: int
    delivery_key: str
    order_key: str | None
    payload: str  # json text, byte for byte what was emitted
    headers: str | None  # json text
    emitted_at: datetime

    @property
    def value(self) -> Any:
        return value_of(self.payload)


@dataclass(frozen=True)
class Nacked:
    event_id: int
    attempt: int
    next_attempt_at: datetime | None
    dead: bool


@dataclass(frozen=True)
class Dead:
    event_id: int
    attempts: int
    died_at: datetime
    kind: str
    error: str | None
    order_key: str | None
    payload: str
    headers: str | None
    emitted_at: datetime


class NotDelivered(Exception):
    """The event is tried again, after `after` seconds, at most a day (None: after the subscriber's backoff).

    kind: a word by which failures are counted, such as "timeout". The kind "expired", and kinds that the server cannot
    store (empty, of more than 100 characters, or with a NUL), count as "error".
    """

    def __init__(self, error: str, kind: str = "error", after: float | None = None) -> None:
        super().__init__(error)
        self.kind = kind if kind == storable(kind) and kind != "expired" and len(kind) <= 100 else "error"
        self.after = after


class Never(NotDelivered):
    """The event cannot be delivered, however often it is tried: it is dead at once."""

    def __init__(self, error: str) -> None:
        super().__init__(error, "never")


@operation
def emit(
    topic: str,
    payload: Document,
    *,
    order_key: str | None = None,
    dedupe_key: str | None = None,
    headers: Document = None,
    delay: Seconds = None,
) -> Flow[Emitted]:
    """Call it in the transaction of the writes that the event reports. On a pool it is repeated only with a dedupe_key.

    delay and order_key exclude each other.
    """
    arguments = {"topic": topic, "payload": text_of(payload), "headers": text_of(headers), "delay": interval(delay)}
    tries = 8 if dedupe_key else 1
    (row,) = yield from ask(EMIT, tries, order_key=order_key, dedupe_key=dedupe_key, **arguments)
    return Emitted(row.event_id, row.emitted)


@dataclass(frozen=True)
class Subscriber:
    """A receiver of a topic's events. The first argument of each method is the object to run on."""

    topic: str
    name: str = "default"

    @method
    def take(self, max: int = 10, lease: Seconds = None) -> Flow[list[Event]]:
        """Takes a batch. Commit before delivery. If the answer is lost, the events wait until the lease expires."""
        taken = yield from ask(TAKE, 1, **self._who, max=max, lease=interval(lease))
        return [Event(**row._asdict()) for row in taken]

    @method
    def ack(self, token: int, event_ids: Sequence[int] | None = None) -> Flow[int]:
        """Returns the number of acked events.

        A pool repeats the call if its answer is lost. If the first try has acked the events, the repeat returns
        len(event_ids), or 0 without event_ids.
        In a transaction that also calls functions of keys, call ack first: batches are locked before keys.
        """
        told = yield from tell(ACK, **self._who, token=token, events=_list(event_ids))
        return told[0].acked if told else len(event_ids or ())

    @method
    def nack(
        self,
        token: int,
        event_ids: Sequence[int] | None = None,
        error: str | None = None,
        kind: str = "error",
        after: Seconds = None,
    ) -> Flow[list[Nacked]]:
        """Records failed deliveries. If an event has an order key, later events of that key leave the batch, too."""
        error = None if error is None else storable(error)
        what = {"token": token, "events": _list(event_ids), "error": error, "kind": kind, "after": storable_wait(after)}
        told = yield from tell(NACK, **self._who, **what)
        return [Nacked(**row._asdict()) for row in told or []]

    @method
    def extend(self, token: int, lease: Seconds = None) -> Flow[float]:
        (row,) = yield from ask(EXTEND, **self._who, token=token, lease=interval(lease))
        return float(row.lease_left)

    @method
    def dead(self, max: int = 100) -> Flow[list[Dead]]:
        """The dead letters. `dead`, `redrive` and `discard` are for an operator's role."""
        return [Dead(**row._asdict()) for row in (yield from ask(DEAD, **self._who, max=max))]

    @method
    def redrive(self, event_ids: Sequence[int] | None = None, max: int = 100) -> Flow[int]:
        """Makes dead letters due again, with no attempt counted. Returns their number."""
        (row,) = yield from ask(REDRIVE, **self._who, max=max, events=_list(event_ids))
        return int(row.redriven)

    @method
    def discard(self, event_ids: Sequence[int]) -> Flow[int]:
        """Discards dead letters for good. Returns their number."""
        (row,) = yield from ask(DISCARD, **self._who, events=_list(event_ids))
        return int(row.discarded)

    def beat(self, token: int, seconds: float) -> Beat:
        return Beat(seconds, lambda: ask(EXTEND, 1, **self._who, token=token, lease=interval(seconds)))

    @property
    def _who(self) -> dict[str, Any]:
        return {"topic": self.topic, "subscriber": self.name}


@operation
def work(
    subscriber: Subscriber,
    deliver: Callable[..., Any],
    stop: Any = None,
    *,
    here: bool = False,
    lease: float = 60.0,
    batch: int = 10,
    poll: float = 1.0,
) -> Flow[None]:
    """A worker: takes batches and delivers their events one after another. Several may run at once.

    Calls deliver(event). With here=True it calls deliver(conn, event) in the ack's transaction, so the writes on conn
    are committed once. If deliver raises NotDelivered or Retry, the event is tried again. If it raises Never, Refused
    or Unknown, the event is dead. Any other error counts as a failed delivery of this event alone. Without here=True,
    deliver may ack its event itself, in a transaction of its own.
    stop: once set, the worker finishes the present event and gives the rest of the batch back. Without stop it ends
    when nothing is due, and after an error of the database; with stop, only `lasting` errors end it.
    lease: seconds after which another worker continues if this one died.
    poll: limit on the pause of an idle worker, in seconds.
    """
    failures, idle = 0, 0.05
    while not (stop and stop.is_set()):
        try:
            events = yield from subscriber.take.flow(batch, lease)
            failures = 0
            if events:
                idle = 0.05
                token = events[0].token
                beat = subscriber.beat(token, lease)
                yield Under(beat, lambda events=events: _batch(subscriber, events, deliver, here, stop))  # type: ignore[misc]
            elif stop is None:
                return
            else:
                yield Pause(idle * random.uniform(0.5, 1), stop)
                idle = min(2 * idle, poll)
        except LeaseLost as error:
            log.warning("somebody else has the rest of the batch: %s", error)
        except OnceError as error:
            # Events that were taken and not acked are due again when their lease has expired.
            if stop is None or error.lasting:
                raise
            failures += 1
            log.warning("the worker waits for the database: %s", error)
            yield Pause(wait_before(failures), stop)


def _batch(
    subscriber: Subscriber, events: list[Event], deliver: Callable[..., Any], here: bool, stop: Any
) -> Flow[None]:
    stuck: set[str] = set()  # order keys with a failed event: the nack took their later events out of the batch
    for place, event in enumerate(events):
        if event.order_key in stuck:
            continue
        if stop and stop.is_set():
            rest = [other.event_id for other in events[place:] if other.order_key not in stuck]
            yield from _nack(subscriber, event.token, rest, "the worker was stopped", "released")
            return
        failure = yield from (_handle if here else _deliver)(subscriber, event, deliver)
        if failure is None:
            log.debug("acked")
            continue
        what = (str(failure), failure.kind, failure.after)
        nacked = yield from _nack(subscriber, event.token, [event.event_id], *what)
        if nacked and event.order_key is not None:
            stuck.add(event.order_key)


def _failure_of(error: Exception) -> NotDelivered:
    """A fault of the handler is a failure of this event alone."""
    match error:
        case NotDelivered():
            return error
        case Retry():
            return NotDelivered(str(error), "retry", error.after)
        case Refused() | Unknown():
            return Never(str(error))
        case _:
            return NotDelivered(repr(error), "exception")


def _deliver(subscriber: Subscriber, event: Event, deliver: Callable[..., Any]) -> Flow[NotDelivered | None]:
    try:
        yield Invoke(deliver, (event,))
    except Exception as error:
        return _failure_of(error)
    with suppress(AlreadyDone):  # deliver has acked it itself
        yield from subscriber.ack.flow(event.token, [event.event_id])
    return None


def _handle(subscriber: Subscriber, event: Event, handle: Callable[..., Any]) -> Flow[NotDelivered | None]:
    acked = False

    def body(conn: Any) -> Flow[None]:
        nonlocal acked
        acked = False
        yield from subscriber.ack.flow(event.token, [event.event_id])
        acked = True
        yield Invoke(handle, (conn, event))

    try:
        yield from in_transaction(body, unanswered=True)
    except Exception as error:
        if acked:
            return _failure_of(error)
        if not isinstance(error, AlreadyDone):  # AlreadyDone: an earlier COMMIT of body was carried out
            raise
    return None


def _nack(
    subscriber: Subscriber, token: int, events: list[int], error: str, kind: str, after: float | None = None
) -> Flow[bool]:
    """False: the events were acked before, by the handler or by a COMMIT that was not answered."""
    try:
        rows = yield from subscriber.nack.flow(token, events, error, kind, after)
    except AlreadyDone:
        return False
    for row in rows:
        level = logging.WARNING if row.dead else logging.INFO
        dead = ", dead" if row.dead else ""
        log.log(level, "event %s, attempt %s: %s%s", row.event_id, row.attempt, storable(error), dead)
    return True


def _list(event_ids: Sequence[int] | None) -> list[int] | None:
    return None if event_ids is None else list(event_ids)
