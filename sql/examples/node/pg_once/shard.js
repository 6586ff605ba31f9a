// Which database of many holds a routing value, such as a tenant's name.

import { createHash } from 'node:crypto';

/** Like once.shard_of: the first 6 bytes of the text's SHA-256, modulo shards (a number that must never change). */
export function shardOf(routing, shards) {
  return createHash('sha256').update(routing, 'utf8').digest().readUIntBE(0, 6) % shards;
}
