"""Calls to other services: retried while that can help; a call that fails raises Retry, Refused or Unknown."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from .errors import OnceError
from .executor import P, T, drive, drive_async
from .flow import Flow, Invoke, Pause, log, wait_before
from .http import retry_after

# Statuses of a call that did nothing.
NOT_DONE = {401, 403, 404, 405, 425, 429}
# Statuses 4xx that are no refusal. 404 and 405 are among them, because they may come from a gateway. A gateway's answer
# does not tell whether the service has carried out an earlier try.
NOT_REFUSED = NOT_DONE | {408, 409}


class Retry(Exception):
    """The call failed and may be retried after `after` seconds, at most a day (None: the caller's default).

    `run` releases the key.
    """

    def __init__(self, error: str, after: float | None = None) -> None:
        super().__init__(error)
        self.after = after


class Refused(Exception):
    """A final refusal: `run` stores it as the key's answer, and the steps' on_abort events are emitted."""

    def __init__(self, title: str, status: int = 402) -> None:
        super().__init__(title)
        self.status = status


class Unknown(Exception):
    """Nobody knows whether the call acted, and a retry could act twice: `run` parks the key."""


def foreign_call(*, dedupes: bool, tries: int = 4, cap: float = 2.0) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorates a function that makes one call to another service: repeats it while that can help, up to `tries` calls.

        @foreign_call(dedupes=True)
        def charge(derived_key, cents):
            headers = {"Idempotency-Key": derived_key}
            reply = requests.post(URL, json={"cents": cents}, headers=headers, timeout=10, allow_redirects=False)
            reply.raise_for_status()
            return reply.json()

    The function raises what its HTTP client raises: an error with a status (of urllib, requests, httpx, aiohttp) is
    judged by the status, any other counts as no answer. A Retry, Refused or Unknown that it raises keeps its type.
    4xx is Refused, except 401, 403, 404, 405, 408, 409, 425 and 429.
    dedupes=True: the other side dedupes by the key that it gets. Any other status is Retry, and so is no answer.
    dedupes=False: 401, 403, 404, 405, 425 and 429 are Retry; 408, 409, 3xx, 5xx and no answer are Unknown. Pass
    remembers=0 to `lease.foreign`, too. It then raises Unknown for a call in which an earlier attempt died.

    The pause between tries is a random time plus the time of Retry-After (seconds or an HTTP date). If Retry-After is
    longer than cap, the caller gets Retry at once, and `run` makes the key due after that time. Async functions may be
    decorated, too.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        driven: Any = drive_async if inspect.iscoroutinefunction(function) else drive

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return driven(None, _tried(Invoke(function, args, kwargs), dedupes, tries, cap))  # type: ignore[no-any-return]

        return call

    return decorate


def _tried(once: Invoke, dedupes: bool, tries: int, cap: float) -> Flow[Any]:
    for failures in range(1, max(tries, 1) + 1):
        try:
            return (yield once)
        except Exception as error:
            ended = error if isinstance(error, (Retry, Refused, Unknown, OnceError)) else _ended(error, dedupes)
            after = (ended.after or 0) if isinstance(ended, Retry) else cap + 1
            if failures >= tries or after > cap:
                if ended is error:
                    raise
                if not isinstance(ended, Refused):
                    log.warning("a foreign call failed: %s", ended, exc_info=error)
                raise ended from error
            log.info("a foreign call, once more: %s", ended)
        yield Pause(after + wait_before(failures, cap))


def _ended(error: Exception, dedupes: bool) -> Exception:
    reply = getattr(error, "response", None)
    reply = error if reply is None else reply
    status = getattr(reply, "status_code", None) or getattr(reply, "status", None)
    if not isinstance(status, int):
        return (Retry if dedupes else Unknown)(f"the other side did not answer: {error!r}")
    said = f"the other side says {status}"
    if 400 <= status < 500 and status not in NOT_REFUSED:
        return Refused(said)
    if not dedupes and status not in NOT_DONE:
        return Unknown(said)
    return Retry(said, retry_after((getattr(reply, "headers", None) or {}).get("Retry-After")))
