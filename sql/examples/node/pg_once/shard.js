// Which database of many holds a routing value, such as a tenant's name.

import { createHash } from 'node:crypto';

/** As once.shard_of: the first 6 bytes of SHA-256 of the text, modulo the number of shards, which never changes. */
export function shardOf(routing, shards) {
  return createHash('sha256').update(routing, 'utf8').digest().readUIntBE(0, 6) % shards;
}
