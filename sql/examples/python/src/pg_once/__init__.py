"""pg_once for psycopg 3, in sync and async programs alike.

The first argument of every operation is what it runs on (executor.py): a pool, a connection, an SQLAlchemy engine or
session, sync or async.

key      one logical request, one execution
run      a request from its claim to its answer; the completer; @idempotent
action   moves of a machine's rows, and actions under a lease
cancel   teardown with refunds
outbox   events that leave the database, workers, dead letters
inbox    messages that are handled once
shard    which database a key belongs to
foreign  calls to other services: retries, and how they ended
http     the key in a request's Idempotency-Key header, HTTP answers, Retry-After
asgi     a middleware for FastAPI and Starlette
errors   what can go wrong, one class each, told apart by SQLSTATE
"""

from . import action, cancel, errors, http, inbox, key, outbox, shard
from .action import Acted, Action, Cancelling, Row, act
from .cancel import teardown
from .errors import AlreadyDone, Conflict, LeaseLost, OnceError, Unavailable
from .executor import AsyncConnections, Connections, transaction
from .foreign import Refused, Retry, Unknown, foreign_call
from .http import Answer, key_of, key_of_header
from .inbox import consume
from .key import Lease, claim
from .outbox import Event, Never, NotDelivered, Subscriber, emit, work
from .run import complete_abandoned, idempotent, run, run_failing_open
from .shard import Shards, shard_of

__all__ = [
    "Acted",
    "Action",
    "AlreadyDone",
    "Answer",
    "AsyncConnections",
    "Cancelling",
    "Conflict",
    "Connections",
    "Event",
    "Lease",
    "LeaseLost",
    "Never",
    "NotDelivered",
    "OnceError",
    "Refused",
    "Retry",
    "Row",
    "Shards",
    "Subscriber",
    "Unavailable",
    "Unknown",
    "act",
    "action",
    "cancel",
    "claim",
    "complete_abandoned",
    "consume",
    "emit",
    "errors",
    "foreign_call",
    "http",
    "idempotent",
    "inbox",
    "key",
    "key_of",
    "key_of_header",
    "outbox",
    "run",
    "run_failing_open",
    "shard",
    "shard_of",
    "teardown",
    "transaction",
    "work",
]
