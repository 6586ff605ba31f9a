// Messages from outside, each handled once.
//
// In the handler's own transaction: accept, the handler's writes, record. A duplicate gets the first message's verdict.
// If the first handler is still at work, the duplicate waits for it (at most lock_timeout, then Conflict).

import { rows } from './database.js';

const ACCEPT = 'SELECT accepted, verdict FROM once.inbox_accept($1, $2, make_interval(secs => $3))';
const RECORD = 'SELECT once.inbox_record($1, $2, $3::json)';

/** → accepted (false: a duplicate), and verdict: the recorded JSON text, for a duplicate. ttl: seconds. */
export async function accept(client, scope, messageId, ttl = null) {
  const [row] = await rows(client, ACCEPT, [scope, messageId, ttl]);
  return row;
}

/** Records the verdict that each duplicate gets. */
export const record = (client, scope, messageId, verdict) => rows(client, RECORD, [scope, messageId, verdict]);
