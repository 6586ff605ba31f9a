"""A keyed request from its claim to its answer, the completer of abandoned requests, and `@idempotent`.

The work is called with the lease. It continues from lease.recovery_point, whichever attempt reached it, and stores the
answer itself, by lease.complete or lease.abort in the transaction of its last writes; or it raises Retry, Refused or
Unknown.
"""

import functools
import inspect
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Concatenate

from .document import Document, text_of
from .errors import AlreadyDone, Conflict, LeaseLost, OnceError, Unavailable
from .executor import AsyncEngine, AsyncPool, Engine, P, Pool, operation
from .flow import LONGEST_WAIT, Flow, Invoke, Pause, Seconds, Under, in_transaction, invoked, log, wait_before
from .foreign import Refused, Retry, Unknown
from .http import Answer, problem
from .key import Claim, InProgress, Lease, Mismatched, Parked, Replayed, claim, give_back, take_abandoned

ROUNDS = 3  # at most this many calls of the work in one `run`; each repeat follows an error of the database

Work = Callable[[Lease], Answer | Awaitable[Answer]]
FlowOfWork = Callable[[Lease], Flow[Answer]]


@operation
def run(
    scope: str,
    key: str,
    request: Document,
    work: Work,
    *,
    wait: float = 0,
    lease: Seconds = None,
    ttl: Seconds = None,
    fingerprint: bytes | None = None,
) -> Flow[Answer]:
    """Answers a request: does the work, replays the stored answer, or says why it can do neither.

    request: the JSON text as it came, or a value; another request under the same key is 422.
    wait: seconds for which a duplicate waits for the first request's answer, before it gets 409. It claims again
    after 10 ms, doubling to 500 ms, and writes nothing.
    """

    def ask_for() -> Flow[Claim]:
        return claim.flow(scope, key, request, lease, ttl, fingerprint=fingerprint)

    return (yield from _rounds(ask_for, lambda lease: invoked(work, lease), wait))


@operation
def run_failing_open(
    scope: str,
    key: str,
    request: Document,
    work: Callable[[Lease | None], Answer | Awaitable[Answer]],
    on_open: Callable[[OnceError], Any],
    *,
    wait: float = 0,
) -> Flow[Answer]:
    """Like `run`, but calls work(None) if the key cannot be claimed because the database is unreachable.

    Then nothing is idempotent: a retry repeats the work. on_open(error) is called for each such request, to count them.
    """
    try:
        first: Claim | None = yield from claim.flow(scope, key, request)
    except Unavailable as error:
        yield Invoke(on_open, (error,))
        answer: Answer = yield Invoke(work, (None,))
        return answer

    def ask_for() -> Flow[Claim]:
        nonlocal first
        claimed, first = first, None
        return claimed or (yield from claim.flow(scope, key, request))

    return (yield from _rounds(ask_for, lambda lease: invoked(work, lease), wait))


def _rounds(ask_for: Callable[[], Flow[Claim]], work: FlowOfWork, wait: float) -> Flow[Answer]:
    end, pause = time.monotonic() + wait, 0.01
    rounds = 0
    while rounds < ROUNDS:
        claimed = yield from ask_for()
        left = end - time.monotonic()
        if isinstance(claimed, InProgress) and left > 0:
            yield Pause(min(pause, left))
            pause = min(2 * pause, 0.5)
            continue
        if not isinstance(claimed, Lease):
            return answer_of(claimed)
        rounds += 1
        if answer := (yield from _attempt(claimed, work)):
            return answer
        yield Pause(wait_before(rounds))
    return problem(503, "the request could not be finished", 1)


@operation
def complete_abandoned(
    scope: str, work: Work, stop: Any = None, *, lease: Seconds = None, poll: float = 10
) -> Flow[int]:
    """The completer: finishes keys that no client retries. It ends when stop is set; without stop, when no key is due.

    It takes one key at a time; any number of completers may run beside each other. A key that fails is due again after
    half a second to a second, then after longer each time, up to five minutes; later if Retry names a longer time.
    The scope needs keep_request; lease.request is the request's text. Returns how many keys it answered.
    """
    done, failures = 0, 0
    while not (stop and stop.is_set()):
        try:
            taken = yield from take_abandoned.flow(scope, 1, lease)
            failures = 0
        except OnceError as error:
            if stop is None or error.lasting:
                raise
            failures += 1
            log.warning("no key could be taken: %s", error)
            yield Pause(wait_before(failures, poll), stop)
            continue
        for one in taken:
            try:
                answer = yield from _attempt(one, lambda lease: invoked(work, lease), wait_after(one.attempt - 1))
                done += answer in [stored for stored, _ in one.answers]
            except Exception:
                log.exception("%s %s failed", one.scope, one.key)
        if not taken:
            if stop is None:
                break
            yield Pause(poll, stop)
    return done


def wait_after(failures: int) -> float:
    """Seconds until a key that failed is due again. It grows, so that an outage does not use up max_attempts."""
    return random.uniform(0.5, 1) * min(2.0 ** min(max(failures - 1, 0), 16), 300)


def _attempt(lease: Lease, work: FlowOfWork, deferred: float | None = None) -> Flow[Answer | None]:
    """One attempt. None: claim again. deferred: the least time until a failed key is due again, in seconds."""
    try:
        answer: Answer = yield Under(lease.beat, lambda: work(lease))
        if not isinstance(answer, Answer):
            raise TypeError("the work returned no Answer: end it with lease.complete or lease.abort")
        return answer
    except Retry as failure:
        if failure.after is None:
            after = deferred or wait_after(lease.attempt)
        else:
            after = min(max(failure.after, deferred or 0), LONGEST_WAIT)
        yield from give_back(lease, str(failure), after)
        return problem(503, "the request could not be finished", after)
    except Refused as refusal:
        try:
            return (yield from lease.abort.flow(refusal.status, {"title": str(refusal)}))
        except LeaseLost:
            return answer_of(InProgress(1))
        except (Conflict, Unavailable, AlreadyDone) as error:
            return (yield from give_back(lease, str(error), deferred))
    except Unknown as failure:
        try:
            yield from lease.park.flow(str(failure))
        except LeaseLost:
            return answer_of(InProgress(1))
        return answer_of(Parked(lease.attempt))
    except LeaseLost as error:  # of this lease, or of another that the work holds
        yield from give_back(lease, str(error), deferred)
        return answer_of(InProgress(1))
    except (Conflict, Unavailable, AlreadyDone) as error:
        # A transaction of this attempt may still run. The release ends the token: from then on no write with this token
        # can commit, so the next claim finds the final state. A claim by the same holder would not end the token, and
        # the old transaction could still commit.
        return (yield from give_back(lease, str(error), deferred))
    except BaseException as error:
        answered = yield from give_back(lease, repr(error), deferred or wait_after(lease.attempt))
        if answered and isinstance(error, OnceError):
            # Usually the first COMMIT was carried out, and the repeat failed on a row that the first try had inserted.
            log.warning("%s %s was answered before this error of the work", lease.scope, lease.key, exc_info=error)
            return answered
        raise


def answer_of(claimed: Claim) -> Answer:
    """The answer to the HTTP client if the claim got no lease."""
    match claimed:
        case Replayed(answer=answer):
            return Answer(answer.status, answer.body, {**answer.headers, "Idempotent-Replayed": "true"})
        case InProgress():
            return problem(409, "a request with this key is in progress", claimed.retry_after)
        case Mismatched():
            return problem(422, "this key was used for a different request")
        case Parked():
            return problem(409, "the outcome of a request with this key is not known yet")
        case Lease():
            raise ValueError("a lease is no answer: do the work")
        case _:
            return problem(410, "a request with this key was finished long ago")


def idempotent(
    on: Pool | Engine | AsyncPool | AsyncEngine, scope: str, *, status: int = 200, wait: float = 0
) -> Callable[[Callable[Concatenate[Any, P], Any]], Callable[Concatenate[str, P], Any]]:
    """Decorates a function: it runs once for each key, in one transaction with its answer.

        @idempotent(pool, "signups.create", status=201)
        def sign_up(conn, email): …

        answer = sign_up("ada/k-1", email="ada@example.org")

    Callers pass the key in place of the connection, and get an Answer. The other arguments are the request, so they
    must be JSON. The function returns the answer's body, or an Answer. With an async pool the function may be async,
    and the call must be awaited.
    """

    def decorate(function: Callable[Concatenate[Any, P], Any]) -> Callable[Concatenate[str, P], Any]:
        signature = inspect.signature(function)

        def once(key: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[Answer]:
            bound = signature.bind(None, *args, **kwargs)
            bound.apply_defaults()
            request = json.dumps(list(bound.arguments.items())[1:])

            def work(lease: Lease) -> Flow[Answer]:
                def body(conn: Any) -> Flow[Answer]:
                    made = yield Invoke(function, (conn, *args), kwargs)
                    answer = made if isinstance(made, Answer) else Answer(status, text_of(made) or "")
                    return (yield from lease.complete.flow(answer.status, answer.body or None, answer.headers))

                return (yield from in_transaction(body, unanswered=True))

            return (yield from _rounds(lambda: claim.flow(scope, key, request), work, wait))

        @functools.wraps(function)
        def call(key: str, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            return operation(once)(on, key, args, kwargs)

        return call

    return decorate
