"""Effects, and the flows that yield them.

An operation is a *flow*: a generator that yields effects (a query, a transaction, a call of the caller's own
function, a pause) and gets their results. executor.py drives it, in a sync or an async program, so there is one
implementation for both.
"""

import logging
import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from .errors import AlreadyDone, Conflict, OnceError, Unavailable

T = TypeVar("T")
log = logging.getLogger("pg_once")


# Effects.


@dataclass(frozen=True)
class Query:
    sql: str
    arguments: Mapping[str, object]


@dataclass(frozen=True)
class Transaction:
    """body's flow runs on a connection, in one transaction (in a savepoint if the caller's transaction is open)."""

    body: "Callable[[Any], Flow[Any]]"


@dataclass(frozen=True)
class Beat:
    """Extends a lease of `seconds` whenever a third of that time is over."""

    seconds: float
    extend: "Callable[[], Flow[Any]]"


@dataclass(frozen=True)
class Invoke:
    """A call of the caller's function; an async program awaits the result if it is awaitable."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Under:
    """body's flow, with a heartbeat on other connections of the pool.

    There is no heartbeat if the operation runs on a connection or session instead of a pool or engine.
    """

    beat: Beat
    body: "Callable[[], Flow[Any]]"


@dataclass(frozen=True)
class Pause:
    """Waits for `seconds`, or until stop (a threading.Event or asyncio.Event) is set."""

    seconds: float
    stop: Any = None


@dataclass(frozen=True)
class Alone:
    """Whether each call gets a connection of its own and may be repeated: false on the caller's connection."""


Effect = Query | Transaction | Invoke | Under | Pause | Alone
Flow = Generator[Effect, Any, T]


# Building blocks of other flows.


def wait_before(attempt: int, cap: float = 2.0) -> float:
    """Exponential backoff with full jitter, in seconds: calls that failed together are not retried together."""
    return random.uniform(0, min(cap, 0.05 * 2.0 ** min(attempt, 16)))


def repeated(effect: Effect, tries: int, again: tuple[type[OnceError], ...]) -> Flow[Any]:
    alone = yield Alone()
    for failures in range(1, tries + 1):
        try:
            return (yield effect)
        except again as error:
            if failures == tries or not alone:
                raise
            log.debug("once more: %s", error)
            yield Pause(wait_before(failures))
        except AlreadyDone as error:
            error.repeated = failures > 1
            raise


def ask(sql: str, tries: int = 8, /, **arguments: object) -> Flow[list[Any]]:
    """One call of pg_once. A pool repeats it until answered, up to `tries` times; tries > 1 needs a repeatable call."""
    rows: list[Any] = yield from repeated(Query(sql, arguments), tries, (Conflict, Unavailable))
    return rows


def tell(sql: str, /, **arguments: object) -> Flow[list[Any] | None]:
    """A write that a token fences, repeated if its answer is lost.

    If an earlier try was carried out, the repeat gets ON006, and `tell` returns None.
    """
    try:
        return (yield from ask(sql, **arguments))
    except AlreadyDone as error:
        if error.repeated:
            return None
        raise


def in_transaction(body: Callable[[Any], Flow[T]], unanswered: bool = False) -> Flow[T]:
    """Runs body in one transaction, and again after 40001, 40P01 and 55P03, which roll back for sure.

    unanswered: runs it again after a lost connection, too. The first COMMIT may have been carried out. Then the repeat
    must write nothing. A fenced write in body ensures this: in the repeat it raises AlreadyDone, which rolls back.
    """
    again = (Conflict, Unavailable) if unanswered else (Conflict,)
    result: T = yield from repeated(Transaction(body), 8 if unanswered else 5, again)
    return result


def invoked(function: Callable[..., Any], *arguments: Any) -> Flow[Any]:
    return (yield Invoke(function, arguments))


# Arguments.

Seconds = float | timedelta | None


# A longer wait is cut to one day: a Retry-After may have the wrong unit, or a date from a clock that is wrong.
LONGEST_WAIT = 86_400.0


def storable_wait(seconds: Seconds) -> timedelta | None:
    """A wait that the server accepts, and that blocks nothing for long: longer than 0, at most LONGEST_WAIT."""
    if isinstance(seconds, timedelta):
        seconds = seconds.total_seconds()
    return None if seconds is None else timedelta(seconds=min(max(seconds, 1e-6), LONGEST_WAIT))


def interval(seconds: Seconds) -> timedelta | None:
    return timedelta(seconds=seconds) if isinstance(seconds, (int, float)) else seconds
