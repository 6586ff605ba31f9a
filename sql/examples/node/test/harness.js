// Shared by the tests: the programs as processes, an HTTP client, and a superuser's connections.
//
// PG_ONCE_URL        the database as the role of the services
// PG_ONCE_ADMIN_URL  that database as a superuser, for checks and for faults
// PG_ONCE_POOLER_URL PG_ONCE_URL through PgBouncer in transaction mode; without it, tests with PgBouncer are skipped

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import pg from 'pg';

export const URL_ = process.env.PG_ONCE_URL;
export const POOLER_URL = process.env.PG_ONCE_POOLER_URL;
export const newKey = () => randomUUID();
const here = (name) => fileURLToPath(new URL(name, import.meta.url));

/** A superuser's pool. */
export const admin = new pg.Pool({ connectionString: process.env.PG_ONCE_ADMIN_URL, max: 4 });

/** The rows, each an array. */
export const select = async (text, ...values) => (await admin.query({ text, values, rowMode: 'array' })).rows;
export const scalar = async (text, ...values) => (await select(text, ...values))[0][0];

/** Waits until look() returns a true value; returns that value. */
export async function until(what, look, ms = 30_000) {
  const end = Date.now() + ms;
  for (;;) {
    const found = await look();
    if (found) return found;
    assert.ok(Date.now() < end, `waited ${ms} ms for ${what}`);
    await sleep(20);
  }
}

/** One of the example programs in a process of its own; killed at the end of `test`, if that is given. */
export class Program {
  static async start(test, name, args, environment) {
    const program = new Program();
    program.process = spawn(process.execPath, [here(`../${name}`), ...args], {
      stdio: ['ignore', 'pipe', 'inherit'],
      env: { ...process.env, ...environment },
    });
    test?.after(() => program.process.kill('SIGKILL'));
    program.exit = once(program.process, 'exit');
    program.lines = createInterface({ input: program.process.stdout })[Symbol.asyncIterator]();
    program.port = Number((await program.line()).split(' ').at(-1));
    return program;
  }

  /** The next line that the program prints. */
  async line() {
    const { value, done } = await this.lines.next();
    assert.ok(!done, 'the program ended');
    return value;
  }

  /** The exit code of the process, or the signal that ended the process. */
  async ended() {
    const [code, signal] = await Promise.race([this.exit, sleep(30_000, ['still running'], { ref: false })]);
    return code ?? signal;
  }
}

export const order = ({ customer = 'ada', item = 'tea', amount_cents = 700 } = {}) => JSON.stringify({ customer, item, amount_cents });

/** The key of a user's header, as it is in the database. */
export const storedKey = (key, user = 'ada') => `${user}/${key}`;

/** Sends an order with the headers of the authenticating proxy; user null: without the user's header. */
export async function post(program, key, body, { signal, user = 'ada' } = {}) {
  const headers = { 'Content-Type': 'application/json', Connection: 'close' };
  if (key !== undefined) headers['Idempotency-Key'] = key;
  if (user !== null) headers['X-Forwarded-User'] = user;
  const response = await fetch(`http://127.0.0.1:${program.port}/orders`, { method: 'POST', headers, body, signal });
  return {
    status: response.status,
    retryAfter: response.headers.get('retry-after'),
    replayed: response.headers.get('idempotent-replayed') === 'true',
    body: await response.text(),
  };
}

/** Sends an order until its answer has no Retry-After. */
export const postUntilAnswered = (program, key, body) => until('an answer', async () => {
  const reply = await post(program, key, body);
  return reply.retryAfter === null && reply;
});

/** Waits until a backend of the services waits for a lock; returns its process id. */
export const waitForLock = () => until('a backend that waits for a lock', async () => {
  const look = `SELECT pid FROM pg_stat_activity
                 WHERE usename = 'shop' AND wait_event_type = 'Lock' AND datname = current_database()`;
  return (await select(look))[0]?.[0];
});
