// The library (pg_once/) by itself: errors by SQLSTATE, transactions, bytes.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { after, test } from 'node:test';
import pg from 'pg';
import { call, transaction } from '../pg_once/database.js';
import * as errors from '../pg_once/errors.js';
import { claim, keyOfHeader, Retry, run } from '../pg_once/key.js';
import { admin, newKey, scalar, select, URL_ } from './harness.js';
import { Proxy } from './proxy.js';

const pool = new pg.Pool({ connectionString: URL_, max: 2 });
after(async () => {
  await pool.end();
  await admin.end();
});

test('each SQLSTATE is a class of its own', async () => {
  const expected = {
    ON001: errors.LeaseLost, ON002: errors.IllegalTransition, ON003: errors.InvalidDefinition,
    ON004: errors.UncoveredClaimState, ON005: errors.TeardownIncomplete, ON006: errors.AlreadyDone,
    ON007: errors.WrongShard,
    40001: errors.Conflict, '40P01': errors.Conflict, '55P03': errors.Conflict, '57P01': errors.Unavailable,
    '08006': errors.Unavailable, 22023: errors.InvalidArgument, 23505: errors.OnceError,
  };
  for (const [state, known] of Object.entries(expected)) {
    const raise = `DO $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '${state}', HINT = 'do this'; END$$`;
    const error = await transaction(pool, (client) => client.query(raise), 1).catch((raised) => raised);
    assert.deepEqual([error.constructor, error.sqlstate, error.hint], [known, state, 'do this']);
  }
});

test('the server raises them', async () => {
  let { lease } = await claim(pool, 'test', newKey(), '{}');
  const complete = (body) => call(pool, (client) => lease.complete(client, 200, body));
  await complete('{}');
  await assert.rejects(complete('{}'), errors.AlreadyDone);
  await assert.rejects(complete('[]'), errors.AlreadyDone);
  ({ lease } = await claim(pool, 'test', newKey(), '{}'));
  await call(pool, (client) => lease.release(client, 'an error'));
  await assert.rejects(transaction(pool, (client) => lease.advance(client, 'paid')), errors.LeaseLost);
  await assert.rejects(claim(pool, 'test', newKey(), 'no json'), errors.InvalidArgument);
});

test('a database that is away is Unavailable', async () => {
  const nobody = new pg.Pool({ connectionString: 'postgresql://shop@127.0.0.1:1/shop' });
  await assert.rejects(call(nobody, (client) => client.query('SELECT 1'), 2), errors.Unavailable);
  await nobody.end();
});

test('a transaction that lost a race is run again', async () => {
  const key = newKey();
  await admin.query(`INSERT INTO orders (idempotency_key, customer, item, amount_cents) VALUES ($1, 'ada', 'tea', 1)`, [key]);
  let runs = 0;
  await transaction(pool, async (client) => {
    await client.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ');
    await client.query('SELECT FROM orders'); // the snapshot
    if (runs === 0) await admin.query(`UPDATE orders SET item = 'milk' WHERE idempotency_key = $1`, [key]);
    runs += 1;
    await client.query('UPDATE orders SET amount_cents = amount_cents + 1 WHERE idempotency_key = $1', [key]);
  });
  assert.equal(runs, 2);
  assert.equal(await scalar('SELECT amount_cents FROM orders WHERE idempotency_key = $1', key), '2');
});

test('a transaction whose failed statement was caught is an error', async () => {
  const key = newKey();
  const { lease } = await claim(pool, 'test', key, '{}');
  const caught = (client) => client.query('SELECT 1 / 0').catch(() => {});
  await assert.rejects(lease.phase(pool, 'paid', '{}', caught), /rolled back/);
  await call(pool, (client) => lease.release(client, 'an error', 0)); // the library passes 1 µs: the server refuses 0
  assert.equal((await claim(pool, 'test', key, '{}')).lease.recoveryPoint, 'started');
});

// Each run of the phase inserts another uuid, so that no constraint of the table would refuse a second row.
for (const [end, runs] of [['phase', 1], ['advance', 2], ['complete', 2], ['abort', 2]]) {
  test(`a phase whose COMMIT was not answered is run again and commits once: ${end}`, async (t) => {
    const proxy = await Proxy.start(t, URL_);
    const through = new pg.Pool({ connectionString: proxy.url, max: 2 });
    t.after(() => through.end());
    const key = newKey();
    const { lease } = await claim(pool, 'test', key, '{}');
    const ids = [];
    const insert = `INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents) VALUES ($1, $2, 'ada', 'tea', 1)`;
    const writes = (client) => client.query(insert, [ids[ids.push(randomUUID()) - 1], key]);
    const writesAndEnd = async (client) => {
      await writes(client);
      return end === 'advance' ? lease.advance(client, 'created', '{}') : lease[end](client, 201, '{}');
    };
    proxy.cut({ text: 'COMMIT' });
    const done = end === 'phase' ? lease.phase(through, 'created', '{}', writes) : lease.lastPhase(through, writesAndEnd);
    await assert.rejects(done, errors.AlreadyDone);
    assert.deepEqual([proxy.struck, ids.length], [true, runs]);
    assert.deepEqual(await select('SELECT order_id FROM orders WHERE idempotency_key = $1', key), [[ids[0]]]);
  });
}

test('a request that finds another lease lost gives its own key back', async () => {
  const key = newKey();
  const { lease: other } = await claim(pool, 'test', newKey(), '{}');
  await call(pool, (client) => other.release(client, 'an error'));
  const { status } = await run(pool, 'test', key, '{}', () => call(pool, (client) => other.advance(client, 'paid')));
  assert.deepEqual([status, await scalar("SELECT status FROM once.key_get('test', $1)", key)], [409, 'released']);
});

test('a request whose COMMIT was not answered is answered although its repeat meets a row of its own', async (t) => {
  const proxy = await Proxy.start(t, URL_);
  const through = new pg.Pool({ connectionString: proxy.url, max: 2 });
  t.after(() => through.end());
  const key = newKey();
  const insert = `INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents) VALUES ($1, 'own row', 'ada', 'tea', 1)`;
  proxy.cut({ text: 'COMMIT' });
  const { status } = await run(pool, 'test', key, '{}', (lease) => lease.lastPhase(through, async (client) => {
    await client.query(insert, [key]);
    return lease.complete(client, 201, '{}');
  }));
  assert.deepEqual([status, proxy.struck], [201, true]);
});

test('a client waits longer after each failure', async () => {
  const key = newKey();
  for (let attempt = 1; attempt <= 6; attempt += 1) {
    const { lease } = await claim(pool, 'test', key, '{}');
    await call(pool, (client) => lease.release(client, 'died'));
  }
  const { headers } = await run(pool, 'test', key, '{}', () => { throw new Retry('the bank is away'); });
  assert.ok(headers['Retry-After'] >= 32 && headers['Retry-After'] <= 64, headers['Retry-After']);
});

test('a client waits at most a day', async () => {
  const key = newKey();
  const { headers } = await run(pool, 'test', key, '{}', () => { throw new Retry('the bank is away', { after: 1e9 }); });
  const withinADay = "SELECT look_at <= clock_timestamp() + interval '1 day' FROM once.key WHERE key = $1";
  assert.deepEqual([headers['Retry-After'], await scalar(withinADay, key)], ['86400', true]);
});

test('an error after the answer was committed is logged, and the answer is returned in the last round, too', async (t) => {
  const warn = t.mock.method(console, 'warn', () => {});
  let rounds = 0;
  const { status } = await run(pool, 'test', newKey(), '{}', async (lease) => {
    rounds += 1;
    if (rounds < 3) throw new errors.Unavailable(new Error('the database is away'));
    await call(pool, (client) => lease.complete(client, 201, '{}'));
    await call(pool, (client) => client.query('SELECT 1 / 0'));
  });
  assert.deepEqual([rounds, status], [3, 201]);
  assert.match(warn.mock.calls.at(-1).arguments[1].message, /division by zero/);
});

test('what was stored comes back byte for byte', async () => {
  const stored = '{"b": 1.0,  "a": 12345678901234567890.10, "b":"\\u00e9"}';
  const key = newKey();
  let { lease } = await claim(pool, 'test', key, '{}');
  await call(pool, (client) => lease.advance(client, 'paid', stored));
  await call(pool, (client) => lease.release(client, 'an error'));
  ({ lease } = await claim(pool, 'test', key, '{}'));
  assert.deepEqual([lease.recoveryPoint, lease.state, lease.attempt], ['paid', stored, 2]);
  const first = await call(pool, (client) => lease.complete(client, 201, stored, '{"Location":  "/orders/1"}'));
  assert.deepEqual(first, { status: 201, body: stored, headers: { Location: '/orders/1' } });
  const { answer } = await claim(pool, 'test', key, '{}');
  assert.deepEqual(answer, { ...first, headers: { Location: '/orders/1', 'Idempotent-Replayed': 'true' } });
});

test('the key of a header may be quoted or bare', () => {
  const pairs = [['"a b"', 'a b'], [' a-b ', 'a-b'], [String.raw`"a\"\\"`, 'a"\\'], ['"open', undefined], ['"a" b', undefined],
    [String.raw`"a\b"`, undefined], ['""', undefined], ['', undefined], [undefined, undefined], ['a"b', undefined], ['k'.repeat(256), undefined]];
  for (const [value, sent] of pairs) {
    const { key, answer } = keyOfHeader('ada', value);
    assert.deepEqual([key, answer?.status], sent === undefined ? [undefined, 400] : [`ada/${sent}`, undefined], value);
  }
});

test('no two users share a key', () => {
  const pairs = [['ada', 'x/k'], ['ada/x', 'k'], ['ada%2Fx', 'k'], ['ada%', '2Fx/k']];
  assert.equal(new Set(pairs.map(([user, value]) => keyOfHeader(user, value).key)).size, pairs.length);
  for (const user of [undefined, '', ' ']) assert.equal(keyOfHeader(user, 'k').answer.status, 401);
  // 1 to 255 characters, the user's name included.
  assert.equal(keyOfHeader('ada', 'k'.repeat(251)).key, `ada/${'k'.repeat(251)}`);
  assert.equal(keyOfHeader('ada', 'k'.repeat(252)).answer.status, 400);
});
