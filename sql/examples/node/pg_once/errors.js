// The errors, one class for each reaction of a caller.
//
// An expected outcome (somebody else holds the key, the answer is a replay) is no error. Errors are told
// apart by SQLSTATE, never by their text.

import pg from 'pg';

/** An error of the database or its connection; `cause` is the driver's error. */
export class OnceError extends Error {
  constructor(cause) {
    super(cause.hint ? `${cause.message} (${cause.hint})` : cause.message, { cause });
    this.name = this.constructor.name;
    this.sqlstate = cause instanceof pg.DatabaseError ? cause.code : undefined;
    this.hint = cause.hint;
  }

  /** Whether the error ends a worker, since waiting cannot help: a missing object or right, or a wrong argument. */
  get lasting() { return /^(22|3F|42)/.test(this.sqlstate); }
}

/** ON001: the lease is not yours any more. Stop, and write nothing. */
export class LeaseLost extends OnceError {}
/** ON002: fix the program, or the machine's definition. */
export class IllegalTransition extends OnceError {}
/** ON003: the faults are the lines of cause.detail. */
export class InvalidDefinition extends OnceError {}
/** ON004: start the janitor before the service. */
export class UncoveredClaimState extends OnceError {}
/** ON005: refund and clean up first. */
export class TeardownIncomplete extends OnceError {}
/** ON006: an earlier transaction has made this call: roll back, continue after the call (`run` claims again). */
export class AlreadyDone extends OnceError {
  repeated = false; // whether that transaction may have been an earlier try of this `call`, whose answer was lost
}
/** ON007: this is not the key's shard, and nothing was done. Check how the program chooses the key's database. */
export class WrongShard extends OnceError {}
/** 22...: the program passed something wrong. */
export class InvalidArgument extends OnceError {}
/** A race was lost, and the transaction is rolled back for sure: run it again. */
export class Conflict extends OnceError {}
/** The database is unreachable. The last statement may have been carried out, also a COMMIT. */
export class Unavailable extends OnceError {}

const bySqlstate = {
  ON001: LeaseLost,
  ON002: IllegalTransition,
  ON003: InvalidDefinition,
  ON004: UncoveredClaimState,
  ON005: TeardownIncomplete,
  ON006: AlreadyDone,
  ON007: WrongShard,
  // Serialization failure, deadlock, lock not available.
  40001: Conflict, '40P01': Conflict, '55P03': Conflict,
  // Completion unknown; shutdown, crash, starting up; idle for too long; out of connections.
  // 3D000, no such database: a pooler may not know the database yet.
  40003: Unavailable, '57P01': Unavailable, '57P02': Unavailable, '57P03': Unavailable, '57P05': Unavailable,
  '25P03': Unavailable, 53300: Unavailable, '3D000': Unavailable,
};
const byClass = { '08': Unavailable, 22: InvalidArgument };

/** The driver's error as one of this file; anything else unchanged. */
export function translated(error) {
  if (!(error instanceof pg.DatabaseError)) return error;
  const known = bySqlstate[error.code] ?? byClass[error.code?.slice(0, 2)] ?? OnceError;
  return new known(error);
}
