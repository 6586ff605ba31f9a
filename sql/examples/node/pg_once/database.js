// Calls that are repeated if they get no answer, transactions that are run again, and heartbeats.
//
// pg sends unnamed statements unless a query has a name, so PgBouncer in transaction mode may be in between.

import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { AlreadyDone, Conflict, LeaseLost, OnceError, translated, Unavailable } from './errors.js';

const JSON_OID = 114;

// pg would parse json, and JSON.stringify gives other bytes (spaces, digits, duplicate members).
const types = {
  getTypeParser: (oid, format) => (oid === JSON_OID ? (text) => text : pg.types.getTypeParser(oid, format)),
};

/** The rows of a statement, with json as the text that is stored, byte for byte. bigint comes as a string. */
export async function rows(client, text, values) {
  try {
    return (await client.query({ text, values, types })).rows;
  } catch (error) {
    throw translated(error);
  }
}

// A longer wait is cut to one day: a Retry-After may have the wrong unit, or a date from a clock that is wrong.
const LONGEST_WAIT = 86_400;

/** A wait in seconds that the server accepts, and that blocks nothing for long: longer than 0, at most LONGEST_WAIT. */
export function storableWait(seconds) {
  if (seconds === null || seconds === undefined) return null;
  return seconds > 1e-6 ? Math.min(seconds, LONGEST_WAIT) : 1e-6;
}

/** Exponential backoff with full jitter, in ms: calls that failed together are not retried together. */
export const waitBefore = (attempt, cap = 2000) => Math.random() * Math.min(cap, 50 * 2 ** Math.min(attempt, 16));

/** Runs work with a client of the pool. */
async function withClient(pool, work) {
  let client;
  try {
    client = await pool.connect();
  } catch (error) {
    throw error instanceof pg.DatabaseError ? translated(error) : new Unavailable(error);
  }
  let broken; // set by the error event of a lost connection; a client in use has no other listener
  const onError = (error) => { broken = error; };
  client.on('error', onError);
  try {
    return await work(client);
  } catch (error) {
    const spoken = error instanceof pg.DatabaseError || error instanceof OnceError;
    const known = broken && !spoken ? new Unavailable(broken) : translated(error);
    if (known instanceof Unavailable) broken ??= known;
    throw known;
  } finally {
    client.removeListener('error', onError);
    client.release(broken);
  }
}

/**
 * Runs one call of pg_once, again after Conflict and Unavailable. Sets `repeated` of an AlreadyDone.
 * With tries above 1, only for calls that may be repeated: claims with a holder, and calls that present a token.
 */
export async function call(pool, work, tries = 8) {
  for (let failures = 1; ; failures += 1) {
    try {
      return await withClient(pool, work);
    } catch (error) {
      if (error instanceof AlreadyDone) error.repeated = failures > 1;
      if (failures >= tries || !(error instanceof Conflict || error instanceof Unavailable)) throw error;
      await sleep(waitBefore(failures));
    }
  }
}

/**
 * Runs work in one transaction, and again after 40001, 40P01 and 55P03, which roll back for sure.
 * After a lost connection it raises Unavailable, since the COMMIT may have been carried out. `phase` and `lastPhase` of
 * a lease then repeat the transaction: its token detects a repeat (ON006). Otherwise `run` in key.js claims again.
 */
export async function transaction(pool, work, tries = 5, again = [Conflict]) {
  const once = async (client) => {
    await client.query('BEGIN');
    try {
      const result = await work(client);
      // If work has caught the error of a statement, COMMIT rolls back, and the server reports no error.
      const { command } = await client.query('COMMIT');
      if (command !== 'COMMIT') throw new Error('a statement of this transaction has failed, so it was rolled back');
      return result;
    } catch (error) {
      await client.query('ROLLBACK').catch(() => {}); // after a lost connection the server rolls back
      throw error;
    }
  };
  for (let failures = 1; ; failures += 1) {
    try {
      return await withClient(pool, once);
    } catch (error) {
      if (failures >= tries || !again.some((known) => error instanceof known)) throw error;
      await sleep(waitBefore(failures));
    }
  }
}

/** While work runs, extends a lease of `seconds` every seconds / 3. ON001 aborts the signal that work gets. */
export async function heartbeat(pool, seconds, extend, work) {
  const over = new AbortController();
  const lost = new AbortController();
  const beat = async () => {
    while (!over.signal.aborted) {
      await sleep((seconds * 1000) / 3, undefined, { signal: over.signal }).catch(() => {});
      if (over.signal.aborted) return;
      try {
        await withClient(pool, extend);
      } catch (error) {
        if (error instanceof AlreadyDone) return;
        console.warn(`a heartbeat failed: ${error.message}`);
        if (error instanceof LeaseLost) return lost.abort(error);
      }
    }
  };
  const beating = beat();
  try {
    return await work(lost.signal);
  } finally {
    over.abort();
    await beating;
  }
}
