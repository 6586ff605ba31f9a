"""Events that leave the database: emit beside the writes, deliver in a worker.

At least once on the wire, once by the delivery key. Invariant: an event is acked only after `deliver` has
returned, and whatever dies, what is not acked comes again, with the same delivery key.
"""

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from .database import Connect, call, heartbeat, rows, wait_before
from .errors import AlreadyDone, Conflict, LeaseLost, Unavailable

log = logging.getLogger("pg_once")

EMIT = "SELECT event_id, emitted FROM once.outbox_emit(%(topic)s, %(payload)s::json, order_key => %(order_key)s)"
TAKE = """
SELECT token, event_id, attempt, delivery_key, order_key, payload, headers
  FROM once.outbox_take(%(topic)s, %(subscriber)s, %(max)s, make_interval(secs => %(lease)s))"""
ACK = "SELECT acked FROM once.outbox_ack(%(topic)s, %(subscriber)s, %(token)s, %(events)s::bigint[])"
NACK = """
SELECT event_id, attempt, dead
  FROM once.outbox_nack(%(topic)s, %(subscriber)s, %(token)s, %(events)s::bigint[], error => %(error)s,
                        kind => %(kind)s, retry_after => make_interval(secs => %(after)s))"""
EXTEND = """
SELECT lease_left
  FROM once.outbox_extend(%(topic)s, %(subscriber)s, %(token)s, make_interval(secs => %(lease)s))"""


@dataclass(frozen=True)
class Event:
    token: int
    event_id: int
    attempt: int
    delivery_key: str
    order_key: str | None
    payload: str  # json text, byte for byte what was emitted
    headers: str | None  # json text


class NotDelivered(Exception):
    """It is tried again, after the subscriber's backoff or after so many seconds.

    kind: a word by which failures are counted, such as "timeout".
    """

    def __init__(self, error: str, kind: str = "error", after: float | None = None) -> None:
        super().__init__(error)
        self.kind = kind
        self.after = after


class Never(NotDelivered):
    """It will not go through, however often it is tried: it is dead at once."""

    def __init__(self, error: str) -> None:
        super().__init__(error, "never")


def emit(conn: psycopg.Connection, topic: str, payload: str, order_key: str | None = None) -> int:
    """In the transaction of the writes that the event tells of."""
    (row,) = rows(conn, EMIT, topic=topic, payload=payload, order_key=order_key)
    return row.event_id


@dataclass(frozen=True)
class Worker:
    """Takes batches and delivers their events one after another; run several processes for more."""

    connect: Connect
    topic: str
    subscriber: str
    deliver: Callable[[Event], None]
    lease: float = 60.0  # seconds: how soon another worker goes on after this one died
    batch: int = 10
    poll: float = 1.0  # seconds that an idle worker waits, at most

    def run(self, stop: threading.Event) -> None:
        """Works until stop is set; finishes the event at hand and gives the rest of the batch back."""
        failures, idle = 0, 0.05
        while not stop.is_set():
            try:
                events = self._ask(TAKE, max=self.batch, lease=self.lease)
                failures = 0
                if events:
                    idle = 0.05
                    self._deliver_batch([Event(**event._asdict()) for event in events], stop)
                else:
                    stop.wait(idle * random.uniform(0.5, 1))
                    idle = min(2 * idle, self.poll)
            except LeaseLost as error:
                log.warning("somebody else has the rest of the batch: %s", error)
            except (Conflict, Unavailable) as error:
                # What was taken and not acked comes again when its lease has run out.
                failures += 1
                log.warning("the database is away: %s", error)
                stop.wait(wait_before(failures))

    def _deliver_batch(self, events: list[Event], stop: threading.Event) -> None:
        token = events[0].token
        stuck: set[str] = set()  # order keys of which one failed: the later ones left the batch with it
        with heartbeat(self.connect, self.lease, lambda conn: self._rows(conn, EXTEND, token=token, lease=self.lease)):
            for place, event in enumerate(events):
                if event.order_key in stuck:
                    continue
                if stop.is_set():
                    rest = [other.event_id for other in events[place:] if other.order_key not in stuck]
                    self._nack(token, rest, "the worker was stopped", "released")
                    return
                try:
                    self.deliver(event)
                except NotDelivered as failure:
                    self._nack(token, [event.event_id], str(failure), failure.kind, failure.after)
                except Exception as error:  # a fault of the handler is a failure of this event alone
                    self._nack(token, [event.event_id], repr(error), "exception")
                else:
                    self._retried(ACK, token=token, events=[event.event_id])
                    log.debug("acked")
                    continue
                if event.order_key is not None:
                    stuck.add(event.order_key)

    def _nack(self, token: int, events: list[int], error: str, kind: str, after: float | None = None) -> None:
        error = error.replace("\0", "")[:1000]
        for row in self._retried(NACK, token=token, events=events, error=error, kind=kind, after=after):
            log.log(logging.WARNING if row.dead else logging.INFO, "event %s, attempt %s: %s%s",
                    row.event_id, row.attempt, error, ", dead" if row.dead else "")

    def _rows(self, conn: psycopg.Connection, sql: str, **arguments: Any) -> list[Any]:
        return rows(conn, sql, topic=self.topic, subscriber=self.subscriber, **arguments)

    def _ask(self, sql: str, **arguments: Any) -> list[Any]:
        """Once: a take whose answer was lost waits for its lease, and a second one takes other events."""
        return call(self.connect, lambda conn: self._rows(conn, sql, **arguments), tries=1)

    def _retried(self, sql: str, **arguments: Any) -> list[Any]:
        """An ack or a nack changes nothing twice, so it is repeated until it is answered: at last that it is done."""
        try:
            return call(self.connect, lambda conn: self._rows(conn, sql, **arguments))
        except AlreadyDone:
            return []
