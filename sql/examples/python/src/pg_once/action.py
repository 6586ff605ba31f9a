"""Rows of a machine: single declared moves, and actions under a lease.

`act` does all of an action: claim and commit, the work outside, then one transaction that finishes and writes.
Invariant: an action that finds its lease lost, or the row cancelled, has written nothing to this database.
"""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

from .document import Document, storable, text_of
from .errors import AlreadyDone, Conflict, LeaseLost, OnceError, Unavailable
from .executor import method, operation
from .flow import Beat, Flow, Invoke, Seconds, Under, ask, in_transaction, interval, log
from .key import InProgress

Id = str | int | Decimal | uuid.UUID

TRANSITION = """
SELECT moved, status, version, reason
  FROM once.transition(%(machine)s, %(id)s, %(to)s, from_status => %(from_)s::text[], patch => %(patch)s::json,
                       requester => %(requester)s, version => %(version)s)"""
CLAIM = """
SELECT outcome, token, status, version, extract(epoch FROM lease_left)::float8 AS lease_left,
       extract(epoch FROM retry_after)::float8 AS retry_after
  FROM once.action_claim(%(machine)s, %(id)s, %(step)s, requester => %(requester)s, lease => %(lease)s,
                         holder => %(holder)s, version => %(version)s)"""
EXTEND = """
SELECT extract(epoch FROM lease_left)::float8 AS lease_left, cancelling
  FROM once.action_extend(%(machine)s, %(id)s, %(token)s, %(lease)s)"""
FINISH = """
SELECT outcome, status, version FROM once.action_finish(%(machine)s, %(id)s, %(token)s, patch => %(patch)s::json)"""
RELEASE = "SELECT status, version FROM once.action_release(%(machine)s, %(id)s, %(token)s, error => %(error)s)"
ASSERT = "SELECT once.machine_assert()"


class Cancelling(Exception):
    """Raised by an action's work if the row is to be cancelled: `act` releases the row and returns `cancelling`."""


@dataclass(frozen=True)
class Moved:
    moved: bool
    status: str | None
    version: int | None
    reason: str | None  # not_found, status, guard, version, claimed, cancelling; None when moved


@dataclass(frozen=True)
class NotClaimed:
    """Why an action does not begin here.

    cancelling: the row is to be torn down. not_found: there is no such row.
    refused: the row has another status or version, or the step declares no `successful_state` for this requester.
    unclaimed: the step has no claim state for this requester. Move the row with `Row.transition`.
    """

    outcome: str
    status: str | None
    version: int | None


@dataclass(frozen=True)
class Finished:
    outcome: str  # finished or cancelling
    status: str | None
    version: int | None


@dataclass(frozen=True)
class Released:
    status: str | None
    version: int | None


@dataclass(frozen=True)
class Acted:
    """How `act` ended: `finished`; `cancelling`: tear down; `in_progress`; `refused`; `not_found`; `unclaimed`."""

    outcome: str
    status: str | None = None
    result: Any = None  # what the work returned
    retry_after: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of a machine's table. The first argument of each method is what it runs on."""

    machine: str
    id: Id

    @method
    def transition(
        self,
        to: str,
        from_status: Sequence[str] | None = None,
        patch: Document = None,
        requester: str | None = None,
        version: int | None = None,
    ) -> Flow[Moved]:
        """One conditional update. A pool repeats the call if its answer is lost.

        The first try may have moved the row. Then the repeat returns the reason `status`, and `to` as the row's status.
        """
        from_ = None if from_status is None else list(from_status)
        arguments = {"to": to, "from_": from_, "patch": text_of(patch), "requester": requester, "version": version}
        (row,) = yield from ask(TRANSITION, **self._which, **arguments)
        return Moved(**row._asdict())

    @method
    def claim(
        self,
        step: str,
        requester: str | None = None,
        lease: Seconds = None,
        version: int | None = None,
        holder: str | None = None,
    ) -> "Flow[Action | InProgress | NotClaimed]":
        """Commit it before any foreign call. A lost answer costs nothing: the same holder gets its lease back."""
        arguments = {"step": step, "requester": requester, "lease": interval(lease), "version": version}
        (row,) = yield from ask(CLAIM, **self._which, **arguments, holder=holder or str(uuid.uuid4()))
        if row.outcome == "claimed":
            return Action(self, row.token, row.status, row.version, row.lease_left, interval(lease))
        if row.outcome == "in_progress":
            return InProgress(row.retry_after, row.lease_left)
        return NotClaimed(row.outcome, row.status, row.version)

    @property
    def _which(self) -> dict[str, Any]:
        return {"machine": self.machine, "id": self.id}


@dataclass(frozen=True)
class Action:
    """The lease of an action. LeaseLost: delete what you made outside, and stop."""

    row: Row
    token: int
    status: str
    version: int | None
    seconds: float
    asked: timedelta | None = None  # the lease that the claim named

    @method
    def extend(self, lease: Seconds = None) -> Flow[bool]:
        """Renews the lease. True: the row is to be cancelled.

        Work that commits item by item begins each item's transaction with this call. If the lease is lost, the call
        raises LeaseLost, before the item is written. Else the lease is yours until the transaction ends.
        """
        (row,) = yield from ask(EXTEND, **self._fence, lease=interval(lease))
        return bool(row.cancelling)

    @method
    def go_on(self, lease: Seconds = None) -> Flow[None]:
        """Like `extend`, but raises Cancelling if the row is to be cancelled; the error rolls the transaction back."""
        if (yield from self.extend.flow(lease)):
            raise Cancelling(f"{self.row.machine} {self.row.id} is cancelled")

    @method
    def finish(self, patch: Document = None) -> Flow[Finished]:
        """Call it in the transaction of the action's writes, before them. `cancelling`: nothing changed; roll back."""
        (row,) = yield from ask(FINISH, **self._fence, patch=text_of(patch))
        return Finished(**row._asdict())

    @method
    def release(self, error: str | None = None) -> Flow[Released]:
        """Moves the row back, from its claim state to revert_to."""
        (row,) = yield from ask(RELEASE, **self._fence, error=None if error is None else storable(error))
        return Released(row.status, row.version)

    @property
    def beat(self) -> Beat:
        return Beat(self.seconds, lambda: ask(EXTEND, 1, **self._fence, lease=self.asked))

    @property
    def _fence(self) -> dict[str, Any]:
        return {**self.row._which, "token": self.token}


@operation
def act(
    row: Row,
    step: str,
    work: Callable[[Action], Any],
    writes: Callable[[Any, Any], Any] | None = None,
    *,
    requester: str | None = None,
    patch: Document | Callable[[Any], Document] = None,
    to: str | None = None,
    lease: Seconds = None,
    version: int | None = None,
) -> Flow[Acted]:
    """One action. work(action) makes the foreign calls under a heartbeat; writes(conn, result) commits with the finish.

    patch: new values of other columns of the row, or a function that makes them from the result.
    to: the next status of the row, for a step that has no claim state for the requester. Such a step has no lease.
    `act` calls work(None), and moves the row to this status in the transaction of writes. If you pass no `to` for such
    a step, the outcome is `unclaimed`, and work is not called.
    After Cancelling, `act` releases the row and returns `cancelling`. After any other error, `act` releases the lease
    if it still has it, and raises the error. If only the answer to the last COMMIT was lost, it returns `finished`
    (with `to`, it raises Unavailable: look at the row).
    After LeaseLost the caller deletes what work made outside. If the error's hint says so, look at the row first: the
    action may have been committed.
    """
    claimed = yield from row.claim.flow(step, requester, lease, version)
    match claimed:
        case InProgress():
            return Acted("in_progress", retry_after=claimed.retry_after)
        case NotClaimed("unclaimed") if to is not None:
            return (yield from _unclaimed(row, to, work, writes, requester, patch, version))
        case NotClaimed():
            return Acted(claimed.outcome, claimed.status)
    action = claimed
    made: list[Any] = []

    def body() -> Flow[Acted]:
        made.append((yield Invoke(work, (action,))))
        return (yield from _finish(action, made[0], writes, patch))

    try:
        acted: Acted = yield Under(action.beat, body)
        return acted
    except Cancelling:
        released = yield from action.release.flow("cancelled")
        return Acted("cancelling", released.status)
    except BaseException as error:
        try:
            yield from action.release.flow(repr(error))
        except AlreadyDone:
            if made and isinstance(error, OnceError):
                return Acted("finished", result=made[0])  # its COMMIT was carried out, and not answered
        except (LeaseLost, Conflict, Unavailable) as left:
            log.warning("%s %s is left to its lease: %s", row.machine, row.id, left)
        raise


def _finish(action: Action, result: Any, writes: Callable[[Any, Any], Any] | None, patch: Any) -> Flow[Acted]:
    def body(conn: Any) -> Flow[Acted]:
        finished = yield from action.finish.flow(patch(result) if callable(patch) else patch)
        if finished.outcome == "cancelling":
            raise Cancelling(f"{action.row.machine} {action.row.id} is cancelled")
        if writes:
            yield Invoke(writes, (conn, result))
        return Acted("finished", finished.status, result)

    return (yield from in_transaction(body, unanswered=True))


def _unclaimed(
    row: Row, to: str, work: Any, writes: Any, requester: str | None, patch: Any, version: int | None
) -> Flow[Acted]:
    result = yield Invoke(work, (None,))

    def body(conn: Any) -> Flow[Acted]:
        changed = patch(result) if callable(patch) else patch
        moved = yield from row.transition.flow(to, patch=changed, requester=requester, version=version)
        if not moved.moved:
            return Acted("cancelling" if moved.reason == "cancelling" else "refused", moved.status)
        if writes:
            yield Invoke(writes, (conn, result))
        return Acted("finished", moved.status, result)

    return (yield from in_transaction(body))


@operation
def assert_covered() -> Flow[None]:
    """At boot: UncoveredClaimState names every claim state that no sweep reverts."""
    yield from ask(ASSERT)
