"""For the type checker only: nothing here is run. The first argument decides whether a call is sync or async."""

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import assert_type

from pg_once import Answer, AsyncConnections, Connections, Lease, Row, claim, consume, foreign_call, run, transaction
from pg_once.action import Moved
from pg_once.key import Claim


def sync(
    pool: ConnectionPool, conn: psycopg.Connection, session: Session, connections: Connections, lease: Lease
) -> Answer:
    assert_type(claim(pool, "scope", "key"), Claim)
    assert_type(claim(connections, "scope", "key", {"a": 1}, lease=30), Claim)
    assert_type(lease.complete(session, 201, {}), Answer)
    assert_type(Row("billing", 1).transition(conn, "paid"), Moved)
    assert_type(transaction(pool, lambda conn: 1), int)
    return run(pool, "scope", "key", "{}", lambda lease: lease.complete(pool, 200), wait=1)


async def asynchronous(
    pool: AsyncConnectionPool,
    conn: psycopg.AsyncConnection,
    session: AsyncSession,
    connections: AsyncConnections,
    lease: Lease,
) -> Answer:
    claim(pool, "scope", "key")  # type: ignore[unused-coroutine] # a forgotten await
    assert_type(await claim(connections, "scope", "key"), Claim)
    assert_type(await lease.complete(session, 201, {}), Answer)
    assert_type(await Row("billing", 1).transition(conn, "paid"), Moved)

    async def handle(conn: psycopg.AsyncConnection) -> dict[str, bool]:
        return {"done": True}

    await consume(pool, "scope", "message", handle)

    async def work(lease: Lease) -> Answer:
        return await lease.complete(pool, 200)

    return await run(pool, "scope", "key", "{}", work)


async def engines(engine: Engine, async_engine: AsyncEngine) -> None:
    assert_type(claim(engine, "scope", "key"), Claim)
    assert_type(await claim(async_engine, "scope", "key"), Claim)


@foreign_call(dedupes=True)
def charge(derived_key: str) -> int:
    return 1


assert_type(charge("key"), int)


def wrong(pool: ConnectionPool, lease: Lease) -> None:
    lease.complete(pool, "201")  # type: ignore[call-overload]
    lease.complete("postgresql://", 201)  # type: ignore[call-overload]
    claim(pool, "scope")  # type: ignore[call-overload]
