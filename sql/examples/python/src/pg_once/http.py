"""HTTP: the key of a header, answers, Retry-After."""

import email.utils
import json
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any

from .document import value_of


@dataclass(frozen=True)
class Answer:
    """The answer to the HTTP client. The body is the stored text, byte for byte."""

    status: int
    body: str
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def value(self) -> Any:
        return value_of(self.body or None)


def problem(status: int, title: str, after: float | None = None) -> Answer:
    """after: the seconds of Retry-After, if a client should retry."""
    headers = {"Content-Type": "application/problem+json"}
    if after is not None:
        headers["Retry-After"] = str(max(1, math.ceil(after)))
    return Answer(status, json.dumps({"title": title}), headers)


def key_of(user: str, value: str) -> str:
    """The key `<user>/<value>`. A `/` in the user's name becomes %2F, so no user reaches the keys of another."""
    return user.replace("%", "%25").replace("/", "%2F") + "/" + value


def key_of_header(user: str | None, value: str | None) -> str | Answer:
    """The key of a user's Idempotency-Key header: `<user>/<what the client sent>`, or the 401 or 400 to answer.

    user: the authenticated user, never a value of the request's body.
    value: quoted (as the IETF draft has it) or bare.
    """
    user = (user or "").strip(" \t")
    if not user:
        return problem(401, "the request is not authenticated")
    value = (value or "").strip()
    if quoted := re.fullmatch(r'"((?:[ !#-\[\]-~]|\\["\\])*)"', value):
        value = re.sub(r"\\(.)", r"\1", quoted[1])
    elif '"' in value:
        value = ""
    key = key_of(user, value)
    if not value or not value.isprintable() or len(key) > 255:
        return problem(400, "the Idempotency-Key header is missing, not well formed or too long")
    return key


def retry_after(value: str | None) -> float | None:
    """The seconds that a Retry-After header asks to wait. The header holds seconds or an HTTP date. None: no wait."""
    try:
        value = (value or "").strip()
        seconds = (
            float(value) if value.isdecimal() else email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        )
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def wait_of_header(value: str | None, longest: float) -> float:
    """How long a client will wait for the answer: the seconds of `wait` in its Prefer header, up to `longest`."""
    for preference in (value or "").split(","):
        # Parameters may follow after a semicolon.
        name, given, seconds = preference.split(";")[0].partition("=")
        if given and name.strip().lower() == "wait":
            seconds = seconds.strip().strip('"')
            return min(float(seconds), longest) if seconds.isdecimal() else 0
    return 0
