"""Sharding: computes which of several databases a key belongs to."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def shard_of(routing: str, shards: int) -> int:
    """Like once.shard_of: the first 6 bytes of SHA-256(routing in UTF-8), big-endian, modulo shards."""
    if not 1 <= shards <= 65536:
        raise ValueError("shards must be from 1 to 65536")
    return int.from_bytes(hashlib.sha256(routing.encode()).digest()[:6], "big") % shards


def routing_of(key: str, separator: str = "/") -> str:
    """The part of a key that decides its shard: the text before the first separator, or the whole key if it has none.

    For an inbox, pass the message's id or the saga's name as key. If once.shard_set was called with by => 'scope', pass
    the scope instead.
    """
    return key.split(separator, 1)[0]


@dataclass(frozen=True)
class Shards(Generic[T]):
    """The pools of the shards 0, 1, ... Their number must never change. WrongShard: a pool is in the wrong place."""

    pools: Sequence[T]
    separator: str = "/"

    def of(self, key: str) -> T:
        return self.pools[shard_of(routing_of(key, self.separator), len(self.pools))]
