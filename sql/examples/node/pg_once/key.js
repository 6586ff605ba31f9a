// One logical request, one execution: claim, phases, answer.
//
// `run` does all of it. Its argument `work` continues from lease.recoveryPoint, whichever attempt reached it, and
// stores the answer itself, by lease.complete or lease.abort in the transaction of its last writes.
// Invariant: wherever a process dies, the next claim of the key continues correctly.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { call, heartbeat, rows, storableWait, transaction, waitBefore } from './database.js';
import { AlreadyDone, Conflict, LeaseLost, OnceError, Unavailable } from './errors.js';

const ROUNDS = 3; // most calls of the work in one `run`; each repeat follows an error of the database

const CLAIM = `
  SELECT outcome, token, attempt, recovery_point AS "recoveryPoint", state, response_code AS code, response_body AS body,
         response_headers AS headers, extract(epoch FROM lease_left)::float8 AS "leaseLeft",
         extract(epoch FROM retry_after)::float8 AS "retryAfter"
    FROM once.key_claim($1, $2, $3::json, lease => make_interval(secs => $4), ttl => make_interval(secs => $5), holder => $6)`;
const STEP = `
  SELECT done, result, attempted, derived_key AS "derivedKey",
         extract(epoch FROM clock_timestamp() - first_at)::float8 AS age
    FROM once.key_step($1, $2, $3, $4, on_abort => $5::json)`;
const STEP_DONE = `
  SELECT recorded, result
    FROM once.key_step_done($1, $2, $3, $4, $5::json, on_complete => $6::json, on_abort => $7::json)`;
const ADVANCE = 'SELECT once.key_advance($1, $2, $3, $4, $5::json)';
const COMPLETE = 'SELECT once.key_complete($1, $2, $3, $4, $5::json, $6::json)';
const ABORT = 'SELECT once.key_abort($1, $2, $3, $4, $5::json, $6::json)';
const RELEASE = 'SELECT once.key_release($1, $2, $3, $4, make_interval(secs => $5))';
const PARK = 'SELECT once.key_park($1, $2, $3, $4)';
const EXTEND = 'SELECT once.key_extend($1, $2, $3, make_interval(secs => $4))';

/** The work failed, and another attempt may succeed: the key is released. */
export class Retry extends Error {
  constructor(message, { after = null, cause } = {}) {
    super(message, { cause });
    this.after = after; // seconds, at most a day; null: longer after each attempt
  }
}

/** The seconds from now of a Retry-After header (seconds or an HTTP date). null: none, or a time that has passed. */
export function retryAfter(value) {
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return seconds > 0 ? seconds : null;
}

/** Seconds until a key that failed is due again. It grows, so that an outage does not use up max_attempts. */
const waitAfter = (attempt) => (0.5 + Math.random() / 2) * Math.min(2 ** (attempt - 1), 300);

/** Nobody knows whether the call acted, and a retry could act twice: the key is parked. */
export class Unknown extends Error {}

/** The right to work on a key. Each method that takes a client is one call, in the client's transaction if any. */
export class Lease {
  constructor(scope, key, row) {
    this.scope = scope;
    this.key = key;
    this.token = row.token;
    this.attempt = row.attempt;
    this.recoveryPoint = row.recoveryPoint;
    this.state = row.state; // JSON text
    this.seconds = row.leaseLeft;
  }

  /**
   * One transaction: moves the recovery point and calls writes(client). Repeated if its COMMIT is not answered.
   * AlreadyDone: an earlier COMMIT was carried out, and nothing is written again; `run` continues after that COMMIT.
   * Only the same point with the same state is a repeat. So make the ids of the state before you call `phase`.
   */
  async phase(pool, point, state, writes) {
    const work = async (client) => {
      await this.advance(client, point, state);
      await writes(client);
    };
    await transaction(pool, work, 5, [Conflict, Unavailable]);
  }

  /** Like `phase`, for the last writes: one of them is complete or abort, whose AlreadyDone undoes the others. */
  lastPhase(pool, writes) { return transaction(pool, writes, 5, [Conflict, Unavailable]); }

  /**
   * Records that a foreign call begins; commit it before the call. → done and result (JSON text); attempted: how many
   * earlier attempts began the step and recorded no end; derivedKey; age: seconds since the step first began.
   */
  async step(client, name, onAbort = null) {
    const [step] = await this.#ask(client, STEP, name, onAbort);
    return step;
  }

  /** Records the call's end. → recorded: whether this record is the first; result: that of the first record. */
  async stepDone(client, name, result = null, { onComplete = null, onAbort = null } = {}) {
    const [done] = await this.#ask(client, STEP_DONE, name, result, onComplete, onAbort);
    return done;
  }

  /** Moves the recovery point, in the transaction of the phase's own writes. */
  async advance(client, point, state = null) {
    await this.#ask(client, ADVANCE, point, state);
  }

  /** Stores the answer, in the transaction of the last writes. headers: JSON text, an object of texts. */
  async complete(client, status, body = null, headers = null) {
    await this.#ask(client, COMPLETE, status, body, headers);
    return answerOf(status, body, headers);
  }

  /** Stores the answer of a failure that no retry mends; emits the steps' on_abort events. */
  async abort(client, status, body = null, headers = null) {
    await this.#ask(client, ABORT, status, body, headers);
    return answerOf(status, body, headers);
  }

  release(client, error, after = null) { return this.#ask(client, RELEASE, storable(error), storableWait(after)); }
  park(client, reason) { return this.#ask(client, PARK, storable(reason)); }
  /** Extends the lease from now; seconds: its length, instead of the scope's. */
  extend(client, seconds = null) { return this.#ask(client, EXTEND, seconds); }

  #ask(client, text, ...values) { return rows(client, text, [this.scope, this.key, this.token, ...values]); }
}

/**
 * Answers a request: does the work, replays the stored answer, or says why not. → {status, body, headers}
 * request: the JSON text as it came; another request under the same key is 422.
 */
export async function run(pool, scope, key, request, work) {
  for (let round = 1; ; round += 1) {
    const { lease, answer } = await claim(pool, scope, key, request);
    if (answer) return answer;
    try {
      return await heartbeat(pool, lease.seconds, (client) => lease.extend(client), (lost) => work(lease, lost));
    } catch (error) {
      if (error instanceof Unknown) return park(pool, lease, error.message);
      if (error instanceof LeaseLost) { // of this lease, or of another that the work holds
        await giveBack(pool, lease, error.message, 1);
        return inProgress();
      }
      if (error instanceof Retry) {
        const after = storableWait(error.after ?? waitAfter(lease.attempt));
        await giveBack(pool, lease, error.message, after);
        return problem(503, 'the request could not be finished', after);
      }
      const again = [Conflict, Unavailable, AlreadyDone].some((known) => error instanceof known);
      // The work's last transaction may have been committed. Once the key is released, an old transaction
      // that still runs cannot commit a write with this token. So the next claim finds the final state.
      // (Claiming with the same holder would not end the token.)
      const finished = await giveBack(pool, lease, String(error), again ? null : waitAfter(lease.attempt));
      if (!again) {
        // If the COMMIT was carried out, its repeat may have met a row of its own, such as by 23505.
        if (!finished || !(error instanceof OnceError)) throw error;
        console.warn(`${scope} ${key} was answered before this error of the work:`, error);
      }
      if (round >= ROUNDS && !finished) return problem(503, 'the request could not be finished', 1);
      await sleep(waitBefore(round));
    }
  }
}

/**
 * One claim as the server answers it: outcome, a lease if claimed or resumed, and code, body and headers (JSON text)
 * of a replay. A claim that may be repeated needs a holder: a random UUID for each attempt.
 */
export async function claimOnce(client, scope, key, request = null, { holder = null, lease = null, ttl = null } = {}) {
  const [row] = await rows(client, CLAIM, [scope, key, request, lease, ttl, holder]);
  return { ...row, lease: row.token === null ? undefined : new Lease(scope, key, row) };
}

/** A claim for HTTP: a lease or an answer. A repeat after a lost reply has the same holder, so it gets that lease. */
export async function claim(pool, scope, key, request) {
  const holder = randomUUID();
  const claimed = await call(pool, (client) => claimOnce(client, scope, key, request, { holder }));
  switch (claimed.outcome) {
    case 'claimed':
    case 'resumed':
      return { lease: claimed.lease };
    case 'replayed': {
      const { status, body, headers } = answerOf(claimed.code, claimed.body, claimed.headers);
      return { answer: { status, body, headers: { ...headers, 'Idempotent-Replayed': 'true' } } };
    }
    case 'in_progress':
      return { answer: problem(409, 'a request with this key is in progress', claimed.retryAfter) };
    case 'mismatched':
      return { answer: problem(422, 'this key was used for a different request') };
    case 'gone':
      return { answer: problem(410, 'a request with this key was finished long ago') };
    case 'parked':
      return { answer: problem(409, 'the outcome of a request with this key is not known yet') };
    default:
      throw new Error(`an outcome that this program does not know: ${claimed.outcome}`);
  }
}

const answerOf = (status, body, headers) => ({ status, body: body ?? '', headers: JSON.parse(headers ?? '{}') });

/** after: the seconds of Retry-After, if a client should retry. */
export function problem(status, title, after) {
  const headers = { 'Content-Type': 'application/problem+json' };
  if (after !== undefined) headers['Retry-After'] = String(Math.max(1, Math.ceil(after)));
  return { status, body: JSON.stringify({ title }), headers };
}

/**
 * The key of a user's Idempotency-Key header: `<user>/<what the client sent>`, or the 401 or 400 to answer.
 * → {key} or {answer}
 * user: the authenticated user, never a value of the request's body. `/` in the name is written %2F and % is written
 * %25, so that nobody reaches the keys of another.
 * value: quoted (as the IETF draft has it) or bare.
 */
export function keyOfHeader(user, value = '') {
  const name = (user ?? '').replace(/^[ \t]+|[ \t]+$/g, '');
  if (!name) return { answer: problem(401, 'the request is not authenticated') };
  let sent = value.trim();
  const quoted = /^"((?:[ !#-[\]-~]|\\["\\])*)"$/.exec(sent);
  if (quoted) sent = quoted[1].replace(/\\(.)/g, '$1');
  else if (sent.includes('"')) sent = '';
  const key = `${name.replaceAll('%', '%25').replaceAll('/', '%2F')}/${sent}`;
  if (!sent || /\p{Cc}/u.test(sent) || key.length > 255) {
    return { answer: problem(400, 'the Idempotency-Key header is missing, not well formed or too long') };
  }
  return { key };
}

const inProgress = () => problem(409, 'a request with this key is in progress', 1);

async function park(pool, lease, reason) {
  try {
    await call(pool, (client) => lease.park(client, reason));
  } catch (error) {
    if (error instanceof LeaseLost) return inProgress();
    throw error;
  }
  return problem(409, 'the outcome of a request with this key is not known yet');
}

/** → whether this lease has finished the key. */
async function giveBack(pool, lease, error, after) {
  try {
    await call(pool, (client) => lease.release(client, error, after));
  } catch (refusal) {
    // LeaseLost or AlreadyDone: nothing to release. Conflict or Unavailable: the lease will expire.
    if (![LeaseLost, AlreadyDone, Conflict, Unavailable].some((known) => refusal instanceof known)) throw refusal;
    return refusal instanceof AlreadyDone;
  }
  return false;
}

/** A text that the server accepts: not empty, at most 1000 characters, no NUL. */
const storable = (text) => text.replaceAll('\0', '').slice(0, 1000) || 'no reason given';
