// Messages from outside, each handled once.
//
// In the handler's own transaction: accept, the handler's writes, record. A duplicate gets the first one's verdict, and
// one that meets a handler still at work waits for it (lock_timeout bounds the wait: Conflict).

import { rows } from './database.js';

const ACCEPT = 'SELECT accepted, verdict FROM once.inbox_accept($1, $2, make_interval(secs => $3))';
const RECORD = 'SELECT once.inbox_record($1, $2, $3::json)';

/** → accepted; false: it was handled, and verdict is what was recorded (JSON text). ttl: seconds. */
export async function accept(client, scope, messageId, ttl = null) {
  const [row] = await rows(client, ACCEPT, [scope, messageId, ttl]);
  return row;
}

/** The verdict that each duplicate gets. */
export const record = (client, scope, messageId, verdict) => rows(client, RECORD, [scope, messageId, verdict]);
