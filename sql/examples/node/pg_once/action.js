// Work on one row, under a lease, by a worker that may die half-way.
//
// Claim, commit, do the work; finish as the first call of the transaction of its writes, or release after a failure.
// If the holder dies, the janitor reverts the row. LeaseLost: its hint says what to delete outside the database.

import { rows } from './database.js';

const CLAIM = `
  SELECT outcome, token, status, version, extract(epoch FROM lease_left)::float8 AS "leaseLeft",
         extract(epoch FROM retry_after)::float8 AS "retryAfter"
    FROM once.action_claim($1, $2::text, $3, requester => $4, lease => make_interval(secs => $5), holder => $6,
                           version => $7)`;
const EXTEND = `
  SELECT extract(epoch FROM lease_left)::float8 AS "leaseLeft", cancelling
    FROM once.action_extend($1, $2::text, $3, make_interval(secs => $4))`;
const FINISH = 'SELECT outcome, status, version FROM once.action_finish($1, $2::text, $3, $4::json)';
const RELEASE = 'SELECT status, version FROM once.action_release($1, $2::text, $3, $4)';

/**
 * → outcome (claimed, in_progress, cancelling, refused, not_found, unclaimed), status, version, retryAfter (seconds),
 * and an action if claimed. A claim that may be repeated needs a holder: a random UUID for each attempt.
 */
export async function claim(client, machine, id, step, { requester = null, lease = null, holder = null, version = null } = {}) {
  const [row] = await rows(client, CLAIM, [machine, id, step, requester, lease, holder, version]);
  return { ...row, action: row.token === null ? undefined : new Action(machine, id, row) };
}

/** The right to work on a row. Each method is one call, in the client's transaction if any. */
export class Action {
  constructor(machine, id, row) {
    this.machine = machine;
    this.id = id;
    this.token = row.token;
    this.seconds = row.leaseLeft;
  }

  /** Extends the lease from now. → leaseLeft, and cancelling: roll back, release, tear down. */
  extend(client, seconds = null) { return this.#ask(client, EXTEND, seconds); }

  /** patch: JSON text, other columns to set. → outcome: finished, or cancelling (nothing changed). */
  finish(client, patch = null) { return this.#ask(client, FINISH, patch); }

  /** Puts the row into the revert status of its claim state. */
  release(client, error = null) { return this.#ask(client, RELEASE, error); }

  async #ask(client, text, value) {
    const [row] = await rows(client, text, [this.machine, this.id, this.token, value]);
    return row;
  }
}
