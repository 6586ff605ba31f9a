"""Calls that are repeated until they are answered, transactions that are run again, and heartbeats.

`connect` is whatever gives an autocommit connection to a with statement: ConnectionPool.connection, or
`lambda: psycopg.connect(url, autocommit=True, prepare_threshold=None)`. Through PgBouncer in transaction
mode prepare_threshold=None is needed: a prepared statement would stay behind on another server connection.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.string import TextLoader

from .errors import AlreadyDone, Conflict, LeaseLost, OnceError, Unavailable, translated

Connect = Callable[[], AbstractContextManager[psycopg.Connection]]
T = TypeVar("T")
log = logging.getLogger("pg_once")


def rows(conn: psycopg.Connection, sql: str, **arguments: Any) -> list[Any]:
    """The rows of a statement, with json as the text that is stored, byte for byte."""
    with translated(), conn.cursor(row_factory=namedtuple_row) as cursor:
        # psycopg would parse json, and dumping it again gives other bytes (spaces, digits, key order).
        cursor.adapters.register_loader("json", TextLoader)
        return cursor.execute(sql, arguments).fetchall()


def wait_before(attempt: int, cap: float = 2.0) -> float:
    """Exponential backoff with full jitter, in seconds: those who failed together do not come back together."""
    return random.random() * min(cap, 0.05 * 2 ** min(attempt, 16))


def call(connect: Connect, work: Callable[[psycopg.Connection], T], tries: int = 8) -> T:
    """Runs one call of pg_once, on another connection where the first failed.

    Only for what converges when it is repeated: every claim, and every call that presents a token.
    """
    for failures in range(1, tries + 1):
        try:
            with translated(), connect() as conn:
                return work(conn)
        except (Conflict, Unavailable) as error:
            if failures == tries:
                raise
            log.debug("once more: %s", error)
            time.sleep(wait_before(failures))
    raise AssertionError("unreachable")


def transaction(connect: Connect, work: Callable[[psycopg.Connection], T], tries: int = 5,
                again: tuple[type[OnceError], ...] = (Conflict,)) -> T:
    """Runs work in one transaction, and again after 40001, 40P01 and 55P03, which roll back for sure.

    A lost connection is passed on: the COMMIT may have been carried out. Lease.phase and Lease.last_phase repeat
    their transaction then, too, since their token tells a repeat; otherwise key.run finds out by a new claim.
    """
    for failures in range(1, tries + 1):
        try:
            with translated(), connect() as conn, conn.transaction():
                return work(conn)
        except again as error:
            if failures == tries:
                raise
            log.debug("the transaction is run again: %s", error)
            time.sleep(wait_before(failures))
    raise AssertionError("unreachable")


@contextmanager
def heartbeat(connect: Connect, seconds: float, extend: Callable[[psycopg.Connection], Any]) -> Iterator[None]:
    """Extends a lease of so many seconds at every third of it, in a thread, while the block runs."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(seconds / 3):
            try:
                with translated(), connect() as conn:
                    extend(conn)
            except AlreadyDone:
                return
            except LeaseLost as error:
                # The next write with the token says so too, and undoes its transaction.
                log.warning("the lease is lost: %s", error)
                return
            except OnceError as error:
                log.warning("a heartbeat failed: %s", error)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
