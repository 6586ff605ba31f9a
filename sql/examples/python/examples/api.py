"""A service with FastAPI and SQLAlchemy. The lines that idempotency adds are marked `# once`."""

import os

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from pg_once.asgi import Idempotency, current  # once

URL = os.environ["PG_ONCE_URL"]
# prepare_threshold=None: no prepared statements, so PgBouncer in transaction mode may be in between.
engine = create_async_engine(
    URL.replace("postgresql:", "postgresql+psycopg:"),
    connect_args={"prepare_threshold": None},
)


class Payment(BaseModel):
    cents: int


app = FastAPI()


def user_of(scope):
    """The authenticated user. The proxy in front must set X-Forwarded-User, and drop a client's value."""
    return dict(scope["headers"]).get(b"x-forwarded-user", b"").decode()


app.add_middleware(Idempotency, pool=engine, user=user_of, required=True, wait=float(os.environ.get("WAIT", 0)))  # once


@app.post("/payments", status_code=201)
async def pay(payment: Payment, request: Request):
    if payment.cents <= 0:
        raise HTTPException(402, "no such amount")
    async with AsyncSession(engine) as session, session.begin():
        insert = text("INSERT INTO payment_made (customer, cents) VALUES (:customer, :cents) RETURNING payment")
        made = await session.execute(insert, {"customer": user_of(request.scope), "cents": payment.cents})
        body = {"payment": made.scalar_one()}
        await current(request).complete(session, 201, body)  # once
    return body
