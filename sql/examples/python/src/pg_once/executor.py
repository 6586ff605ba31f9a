"""The objects that an operation runs on (connection, session, pool, engine), and the loops that drive its flow.

The first argument of every call is the object to run on:

    lease.complete(conn, 201, body)         a psycopg connection: one statement in its transaction, if any
    lease.complete(session, 201, body)      an SQLAlchemy Session: in its transaction
    lease.complete(pool, 201, body)         a pool: takes a connection, and repeats the call until it is answered
    lease.complete(engine, 201, body)       an SQLAlchemy Engine: the same, with the engine's pool
    await lease.complete(apool, 201, body)  the same for an async connection, session, pool or engine
"""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import namedtuple_row
from psycopg.types.string import TextLoader

from .errors import AlreadyDone, LeaseLost, OnceError, Unavailable, translated
from .flow import Alone, Beat, Effect, Flow, Invoke, Pause, Query, Transaction, Under, in_transaction, invoked, log

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")


# The objects that an operation runs on.


class Pool(Protocol):
    """psycopg_pool.ConnectionPool, `Connections`, or any other object with such a method."""

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]: ...


class AsyncPool(Protocol):
    """psycopg_pool.AsyncConnectionPool, or `AsyncConnections`."""

    def connection(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]: ...

    async def __aenter__(self) -> Any: ...


class _Alchemy(Protocol):
    @property
    def connection(self) -> Any: ...


class _AsyncAlchemy(Protocol):
    async def get_raw_connection(self) -> Any: ...


class _Raw(Protocol):
    @property
    def driver_connection(self) -> Any: ...


class Session(Protocol):
    """An SQLAlchemy Session over psycopg."""

    def connection(self) -> _Alchemy: ...


class AsyncSession(Protocol):
    """An SQLAlchemy AsyncSession over psycopg."""

    def connection(self) -> Coroutine[Any, Any, _AsyncAlchemy]: ...


class Engine(Protocol):
    """An SQLAlchemy Engine over psycopg, usable wherever a pool is."""

    def raw_connection(self) -> _Raw: ...


class AsyncEngine(Protocol):
    """An SQLAlchemy AsyncEngine over psycopg."""

    def raw_connection(self) -> Coroutine[Any, Any, Any]: ...


Sync = psycopg.Connection[Any] | Pool | Engine | Session
Async = psycopg.AsyncConnection[Any] | AsyncPool | AsyncEngine | AsyncSession


class Connections:
    """A new connection for each call: for scripts and tests. A service needs a pool.

    prepare_threshold=None: no prepared statements, so PgBouncer in transaction mode may be in between.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def connection(self) -> AbstractContextManager[psycopg.Connection[Any]]:
        return psycopg.connect(self.url, autocommit=True, prepare_threshold=None)


class AsyncConnections:
    """`Connections` for async programs."""

    def __init__(self, url: str) -> None:
        self.url = url

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        opened = await psycopg.AsyncConnection.connect(self.url, autocommit=True, prepare_threshold=None)
        async with opened as conn:
            yield conn

    async def __aenter__(self) -> "AsyncConnections":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass


# Drivers.


def rows(conn: psycopg.Connection[Any], sql: str, **arguments: object) -> list[Any]:
    """The rows of a statement, with json as the text that is stored, byte for byte."""
    with translated(), conn.cursor(row_factory=namedtuple_row) as cursor:
        # psycopg would parse json, and dumping it again gives other bytes (spaces, digits, duplicate keys).
        cursor.adapters.register_loader("json", TextLoader)
        return cursor.execute(sql.encode(), arguments).fetchall()


async def rows_async(conn: psycopg.AsyncConnection[Any], sql: str, **arguments: object) -> list[Any]:
    with translated():
        async with conn.cursor(row_factory=namedtuple_row) as cursor:
            cursor.adapters.register_loader("json", TextLoader)
            await cursor.execute(sql.encode(), arguments)
            return await cursor.fetchall()


def _is_session(on: Any) -> bool:
    return hasattr(on, "get_bind")


def _is_engine(on: Any) -> bool:
    return hasattr(on, "raw_connection")


def _is_pool(on: Any) -> bool:
    return not isinstance(on, (psycopg.Connection, psycopg.AsyncConnection)) and not _is_session(on)


def _of_psycopg(conn: Any) -> Any:
    if not isinstance(conn, (psycopg.Connection, psycopg.AsyncConnection)):
        raise TypeError(
            f"a connection of psycopg 3 is needed, not {type(conn)}: make the engine of postgresql+psycopg://"
        )
    return conn


@contextmanager
def _opened(on: Any) -> Iterator[psycopg.Connection[Any]]:
    if _is_session(on):
        yield _of_psycopg(on.connection().connection.driver_connection)
    elif _is_engine(on):
        with on.connect().execution_options(isolation_level="AUTOCOMMIT") as held:
            conn = _of_psycopg(held.connection.driver_connection)
            try:
                yield conn
            finally:
                if conn.closed:
                    held.invalidate()  # SQLAlchemy did not run the statements, so it has not noticed the loss
    elif _is_pool(on):
        with on.connection() as conn:
            yield conn
    else:
        yield on


@asynccontextmanager
async def _opened_async(on: Any) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    if _is_session(on):
        raw = await (await on.connection()).get_raw_connection()
        yield _of_psycopg(raw.driver_connection)
    elif _is_engine(on):
        async with on.connect() as held:
            await held.execution_options(isolation_level="AUTOCOMMIT")
            conn = _of_psycopg((await held.get_raw_connection()).driver_connection)
            try:
                yield conn
            finally:
                if conn.closed:
                    await held.invalidate()
    elif _is_pool(on):
        async with on.connection() as conn:
            yield conn
    else:
        yield on


def _may_begin(on: Any) -> None:
    """Refuses a session: a COMMIT here would commit the session's earlier writes, too."""
    if _is_session(on):
        raise TypeError("this opens a transaction of its own: pass a pool, not a session")


def _may_commit(conn: Any) -> None:
    """Raises if the connection is lost, or if a statement has failed and its error was caught.

    In the second case COMMIT would roll back, and raise nothing.
    """
    if conn.closed:
        raise Unavailable("the connection of this transaction is lost")
    if conn.info.transaction_status == TransactionStatus.INERROR:
        raise OnceError("a statement of this transaction has failed, so the transaction is rolled back", "25P02")


def _perform(on: Any, effect: Effect) -> Any:
    match effect:
        case Alone():
            return _is_pool(on)
        case Query():
            with translated(), _opened(on) as conn:
                return rows(conn, effect.sql, **effect.arguments)
        case Transaction():
            _may_begin(on)
            with translated(), _opened(on) as conn, conn.transaction():
                result = drive(conn, effect.body(conn))
                _may_commit(conn)
                return result
        case Invoke():
            with translated():
                return effect.function(*effect.arguments, **effect.named)
        case Under():
            with _beating(on, effect.beat):
                return drive(on, effect.body())
        case Pause():
            return effect.stop.wait(effect.seconds) if effect.stop else time.sleep(effect.seconds)


async def _perform_async(on: Any, effect: Effect) -> Any:
    match effect:
        case Alone():
            return _is_pool(on)
        case Query():
            with translated():
                async with _opened_async(on) as conn:
                    return await rows_async(conn, effect.sql, **effect.arguments)
        case Transaction():
            _may_begin(on)
            with translated():
                async with _opened_async(on) as conn, conn.transaction():
                    result = await drive_async(conn, effect.body(conn))
                    _may_commit(conn)
                    return result
        case Invoke():
            with translated():
                result = effect.function(*effect.arguments, **effect.named)
                return await result if isinstance(result, Awaitable) else result
        case Under():
            async with _beating_async(on, effect.beat):
                return await drive_async(on, effect.body())
        case Pause():
            if effect.stop is None:
                await asyncio.sleep(effect.seconds)
            else:
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(effect.stop.wait(), effect.seconds)
            return None


def drive(on: Any, flow: Flow[T]) -> T:
    try:
        effect = next(flow)
        while True:
            try:
                result = _perform(on, effect)
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def drive_async(on: Any, flow: Flow[T]) -> T:
    try:
        effect = next(flow)
        while True:
            try:
                result = await _perform_async(on, effect)
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _beat_once(beat: Beat) -> Flow[bool]:
    """Extends the lease. False: no more heartbeats. A lost lease is only logged: the next write raises LeaseLost."""
    try:
        yield from beat.extend()
    except AlreadyDone:
        return False
    except LeaseLost as error:
        log.warning("the lease is lost: %s", error)
        return False
    except OnceError as error:
        log.warning("a heartbeat failed: %s", error)
    return True


@contextmanager
def _beating(on: Any, beat: Beat) -> Iterator[None]:
    if not _is_pool(on):
        yield
        return
    over = threading.Event()

    def run() -> None:
        while not over.wait(beat.seconds / 3) and drive(on, _beat_once(beat)):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@asynccontextmanager
async def _beating_async(on: Any, beat: Beat) -> AsyncIterator[None]:
    if not _is_pool(on):
        yield
        return

    async def run() -> None:
        while True:
            await asyncio.sleep(beat.seconds / 3)
            if not await drive_async(on, _beat_once(beat)):
                return

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# A flow as a function, and as a method.


class Face(Generic[P, T]):
    """A flow as a function: its first argument is the object to run on. `flow` is for use inside another flow."""

    def __init__(self, flow: Callable[P, Flow[T]]) -> None:
        self.flow = flow
        functools.update_wrapper(self, flow)

    @overload
    def __call__(self, on: Sync, /, *args: P.args, **kwargs: P.kwargs) -> T: ...

    @overload
    def __call__(self, on: Async, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...

    def __call__(self, on: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        return (drive_async if is_async(on) else drive)(on, self.flow(*args, **kwargs))


class MethodFace(Generic[S, P, T]):
    """`Face` for a method: `@method def complete(self, …)` is called as `lease.complete(on, …)`."""

    def __init__(self, flow: Callable[Concatenate[S, P], Flow[T]]) -> None:
        self.flow = flow
        self.__doc__ = flow.__doc__

    def __get__(self, owner: S, _: type[S] | None = None) -> Face[P, T]:
        return Face(functools.partial(self.flow, owner))


operation = Face
method = MethodFace


def is_async(on: object) -> bool:
    return hasattr(on, "__aenter__") or hasattr(on, "sync_engine")


@overload
def transaction(on: Pool | Engine, work: Callable[[psycopg.Connection[Any]], T], unanswered: bool = False) -> T: ...


@overload
def transaction(
    on: AsyncPool | AsyncEngine, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]], unanswered: bool = False
) -> Coroutine[Any, Any, T]: ...


def transaction(on: Any, work: Callable[[Any], Any], unanswered: bool = False) -> Any:
    """Runs work(conn) in one transaction, and again where that is safe (see `in_transaction`)."""
    return _transaction(on, work, unanswered)


@operation
def _transaction(work: Callable[[Any], Any], unanswered: bool) -> Flow[Any]:
    return (yield from in_transaction(lambda conn: invoked(work, conn), unanswered))
