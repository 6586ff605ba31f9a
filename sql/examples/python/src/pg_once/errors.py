"""The errors, one class for each reaction of a caller.

An expected outcome (somebody else holds the key, the answer is a replay) is no error. Errors are told
apart by SQLSTATE, never by their text.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg


class OnceError(Exception):
    """An error of the database or its connection; __cause__ is the driver's error, if any."""

    retryable = False  # whether the same call, or its transaction, may succeed when it is run again

    def __init__(self, message: str, sqlstate: str | None = None, hint: str | None = None) -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.sqlstate = sqlstate
        self.hint = hint

    @property
    def lasting(self) -> bool:
        """Whether waiting cannot help: a missing object or right, a wrong argument. Such an error ends a worker."""
        return (self.sqlstate or "").startswith(("22", "3F", "42"))


class LeaseLost(OnceError):
    """ON001: the lease is not yours any more. Stop, and write nothing."""


class IllegalTransition(OnceError):
    """ON002: fix the program, or the machine's definition."""


class InvalidDefinition(OnceError):
    """ON003: the faults are the lines of the driver's diag.message_detail."""


class UncoveredClaimState(OnceError):
    """ON004: start the janitor before the service."""


class TeardownIncomplete(OnceError):
    """ON005: refund and clean up first."""


class AlreadyDone(OnceError):
    """ON006: an earlier transaction with this token has made this call. Roll back, and continue after the call."""

    repeated = False  # whether that transaction may have been an earlier try of this call, whose answer was lost


class WrongShard(OnceError):
    """ON007: this database is the wrong shard, and nothing was done.

    Check in `Shards` the separator of keys, and the number and order of the pools.
    """


class InvalidArgument(OnceError):
    """22...: the program passed something wrong."""


class Conflict(OnceError):
    """A race was lost, and the transaction is rolled back for sure: run it again."""

    retryable = True


class Unavailable(OnceError):
    """The database is unreachable. The last statement may have been carried out, also a COMMIT."""

    retryable = True


# SQLAlchemy's error code: no connection of the pool is free.
NO_CONNECTION = "3o7r"
_BY_SQLSTATE: dict[str, type[OnceError]] = {
    "ON001": LeaseLost,
    "ON002": IllegalTransition,
    "ON003": InvalidDefinition,
    "ON004": UncoveredClaimState,
    "ON005": TeardownIncomplete,
    "ON006": AlreadyDone,
    "ON007": WrongShard,
    # Serialization failure, deadlock, lock not available.
    **dict.fromkeys(("40001", "40P01", "55P03"), Conflict),
    # Completion unknown; shutdown, crash, starting up; idle for too long; out of connections.
    # 3D000, no such database: a pooler may not know the database yet.
    **dict.fromkeys(("40003", "57P01", "57P02", "57P03", "57P05", "25P03", "53300", "3D000"), Unavailable),
}
_BY_CLASS: dict[str, type[OnceError]] = {"08": Unavailable, "22": InvalidArgument}


def _class_of(error: psycopg.Error) -> type[OnceError]:
    state = error.sqlstate
    if state is None:
        # No error of the server: the connection failed or was closed, or the pool had no connection.
        lost = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
        return Unavailable if lost else OnceError
    return _BY_SQLSTATE.get(state) or _BY_CLASS.get(state[:2], OnceError)


@contextmanager
def translated() -> Iterator[None]:
    """Inside this context the driver's errors become errors of this file, also where SQLAlchemy has wrapped them."""
    try:
        yield
    except Exception as error:
        if getattr(error, "code", None) == NO_CONNECTION:
            raise Unavailable(str(error)) from error
        said = error if isinstance(error, psycopg.Error) else getattr(error, "orig", None)
        if not isinstance(said, psycopg.Error):
            raise
        message = said.diag.message_primary or str(said)
        raise _class_of(said)(message, said.sqlstate, said.diag.message_hint) from error
