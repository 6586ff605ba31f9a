"""JSON on its way in and out: text stays as it is, everything else is dumped."""

import json
from typing import Any

Document = Any


def text_of(document: Document) -> str | None:
    """A str is JSON text and goes in byte for byte. None is SQL NULL; for JSON's null pass "null"."""
    return document if document is None or isinstance(document, str) else json.dumps(document)


def value_of(text: str | None, default: Any = None) -> Any:
    return default if text is None else json.loads(text)


def storable(text: str) -> str:
    """An error's text as the server accepts it: not empty, at most 1,000 characters, no NUL and no half of an emoji."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()[:1000] or "no reason given"
