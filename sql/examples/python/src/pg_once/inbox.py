"""Messages that are handled once, in the handler's own transaction."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .document import Document, text_of, value_of
from .executor import operation
from .flow import Flow, Invoke, Seconds, ask, in_transaction, interval

ACCEPT = "SELECT accepted, verdict FROM once.inbox_accept(%(scope)s, %(message)s, %(ttl)s)"
RECORD = "SELECT once.inbox_record(%(scope)s, %(message)s, %(verdict)s::json)"
BARRIER = "SELECT outcome FROM once.inbox_barrier(%(scope)s, %(saga)s, %(step)s, %(operation)s, %(ttl)s)"


@dataclass(frozen=True)
class Accepted:
    accepted: bool  # False: a duplicate, with the first message's verdict
    verdict: str | None  # json text

    @property
    def value(self) -> Any:
        return value_of(self.verdict)


@operation
def accept(scope: str, message_id: str, ttl: Seconds = None) -> Flow[Accepted]:
    """Call it in the handler's transaction. A duplicate waits for a handler that is still at work."""
    (row,) = yield from ask(ACCEPT, scope=scope, message=message_id, ttl=interval(ttl))
    return Accepted(row.accepted, row.verdict)


@operation
def record(scope: str, message_id: str, verdict: Document) -> Flow[None]:
    """Call it in the handler's transaction, once: a second call raises AlreadyDone."""
    yield from ask(RECORD, scope=scope, message=message_id, verdict=text_of(verdict))


@operation
def barrier(scope: str, saga: str, step: str, operation: str, ttl: Seconds = None) -> Flow[str]:
    """Call it in the handler's transaction. Returns the outcome: `run`, `duplicate`, `skipped` or `refused`.

    operation: `action` or `compensation`, of the saga's step.
    """
    who = {"scope": scope, "saga": saga, "step": step, "operation": operation}
    (row,) = yield from ask(BARRIER, **who, ttl=interval(ttl))
    return str(row.outcome)


@operation
def consume(scope: str, message_id: str, handle: Callable[[Any], Any], ttl: Seconds = None) -> Flow[Any]:
    """One message in one transaction: handle(conn) makes the writes and returns the verdict.

    Returns the verdict, parsed. A duplicate gets the first message's verdict, without a call of handle. Acknowledge the
    message to its queue afterwards.
    """

    def body(conn: Any) -> Flow[Any]:
        accepted = yield from accept.flow(scope, message_id, ttl)
        if not accepted.accepted:
            return accepted.value
        verdict = text_of((yield Invoke(handle, (conn,))))
        yield from record.flow(scope, message_id, "null" if verdict is None else verdict)
        return value_of(verdict)

    # If an unanswered COMMIT was carried out, the message is a duplicate: so the transaction may be run again.
    return (yield from in_transaction(body, unanswered=True))
