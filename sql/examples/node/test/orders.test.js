// One order and one charge, whatever dies or gets lost.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { admin, newKey, order, POOLER_URL, post, postUntilAnswered, Program, scalar, select, storedKey, until, waitForLock } from './harness.js';
import { Outside } from './outside.js';

// What the library or orders.js says that it has just done.
const POINTS = ['claimed', 'advanced created', 'step charge begun', 'bank answered', 'step charge done',
  'advanced charged', 'completed', 'answered'];

let outside;
let a;
let b;
const events = [];
const service = (test, killAt, environment) => Program.start(test, 'orders.js', [], { BANK_URL: outside.url, ...environment }, killAt);

before(async () => {
  await scalar(`SELECT once.scope_set('orders.create', '{"lease": "1 s"}')`);
  await scalar(`SELECT once.subscriber_set('orders', 'test')`);
  outside = await Outside.start();
  [a, b] = [await service(), await service()];
});

after(async () => {
  for (const program of [a, b]) program.process.kill('SIGKILL');
  outside.stop();
  await admin.end();
});

/** One order, one charge, one event. */
async function assertDoneOnce(key, user) {
  const orders = await select('SELECT order_id, status FROM orders WHERE idempotency_key = $1', storedKey(key, user));
  assert.deepEqual(orders.map(([, status]) => status), ['paid']);
  const take = `SELECT token, payload::text FROM once.outbox_take('orders', 'test', 1000)`;
  for (let taken = await select(take); taken.length > 0; taken = await select(take)) {
    events.push(...taken.map(([, payload]) => payload));
    await scalar(`SELECT once.outbox_ack('orders', 'test', $1)`, taken[0][0]);
  }
  const [[orderId]] = orders;
  assert.equal(outside.done(orderId).length, 1);
  assert.equal(events.filter((event) => event.includes(orderId)).length, 1);
}

/** Sends an order to a service and waits until the bank has been asked. */
async function sendUntilBankAsked(program, key, body, signal) {
  const asked = outside.requests.length;
  const reply = post(program, key, body, { signal });
  reply.catch(() => {});
  await until('the bank to be asked', () => outside.requests.length > asked);
  return { reply };
}

test('a retry gets the stored answer', async () => {
  const key = newKey();
  const first = await post(a, key, order());
  const second = await post(b, key, order());
  assert.deepEqual([first.status, first.replayed], [201, false]);
  assert.deepEqual([second.status, second.replayed, second.body], [201, true, first.body]);
  await assertDoneOnce(key);
});

test('an answer that the bank lost is asked for again with the same key', async () => {
  const key = newKey();
  outside.lose = 1;
  const first = await post(a, key, order());
  assert.deepEqual([first.status, first.retryAfter], [503, '1']);
  assert.equal((await postUntilAnswered(b, key, order())).status, 201);
  const asked = outside.about(await scalar('SELECT order_id FROM orders WHERE idempotency_key = $1', storedKey(key)));
  assert.deepEqual([asked.length, new Set(asked.map((seen) => seen.key)).size], [2, 1]);
  await assertDoneOnce(key);
});

test('a client that hangs up gets the answer when it comes back', async () => {
  const key = newKey();
  await outside.holding(async () => {
    const hangUp = new AbortController();
    const { reply } = await sendUntilBankAsked(a, key, order(), hangUp.signal);
    hangUp.abort();
    await assert.rejects(reply);
  });
  assert.equal((await postUntilAnswered(b, key, order())).status, 201);
  await assertDoneOnce(key);
});

test('of two processes with one key at once one works', async () => {
  const key = newKey();
  const { reply } = await outside.holding(async () => {
    const first = await sendUntilBankAsked(a, key, order());
    const busy = await post(b, key, order());
    assert.deepEqual([busy.status, busy.retryAfter !== null], [409, true]);
    return first;
  });
  const first = await reply;
  assert.equal(first.status, 201);
  assert.equal((await post(b, key, order())).body, first.body);
  await assertDoneOnce(key);
});

test('a crowd with one key gets one answer', async () => {
  const key = newKey();
  const crowd = Array.from({ length: 12 }, (_, n) => postUntilAnswered(n % 2 ? a : b, key, order()));
  const replies = await Promise.all(crowd);
  assert.deepEqual(new Set(replies.map((reply) => `${reply.status} ${reply.body}`)), new Set([`201 ${replies[0].body}`]));
  assert.equal(replies.filter((reply) => !reply.replayed).length, 1);
  await assertDoneOnce(key);
});

for (const point of POINTS) {
  test(`a process killed after "${point}" is resumed by another`, async (t) => {
    const key = newKey();
    const doomed = await service(t, point);
    await assert.rejects(post(doomed, key, order()));
    assert.equal(await doomed.ended(), 'SIGKILL');
    const reply = await postUntilAnswered(a, key, order());
    // Only after the commit was there an answer to replay.
    assert.deepEqual([reply.status, reply.replayed], [201, point === 'answered']);
    assert.equal((await post(b, key, order())).body, reply.body);
    await assertDoneOnce(key);
  });
}

test('a bank slower than the lease is waited for', async () => {
  const key = newKey();
  const { reply } = await outside.holding(async () => {
    const first = await sendUntilBankAsked(a, key, order());
    const asked = outside.requests.length;
    for (const end = Date.now() + 2500; Date.now() < end; await sleep(100)) { // of a lease of 1 s
      assert.equal((await post(b, key, order())).status, 409);
    }
    assert.equal(outside.requests.length, asked);
    return first;
  });
  assert.equal((await reply).status, 201);
  await assertDoneOnce(key);
});

test('a transaction whose backend dies is begun again', async () => {
  const key = newKey();
  const client = await admin.connect();
  await client.query('BEGIN; LOCK TABLE orders IN SHARE MODE');
  const reply = post(a, key, order());
  await scalar('SELECT pg_terminate_backend($1)', await waitForLock());
  await client.query('ROLLBACK');
  client.release();
  assert.equal((await reply).status, 201);
  await assertDoneOnce(key);
});

test('a transaction whose commit was not answered is not done twice', async (t) => {
  if (await scalar('SHOW synchronous_standby_names') !== 'nobody') {
    return t.skip("needs synchronous_standby_names = 'nobody', synchronous_commit = 'local'");
  }
  // These commits wait for a standby that is not there. Whoever is stopped then has committed.
  await admin.query(`
    CREATE OR REPLACE FUNCTION wait_after_commit() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM set_config('synchronous_commit', 'on', true); RETURN NULL; END $$;
    CREATE OR REPLACE TRIGGER waits AFTER INSERT OR UPDATE ON orders FOR EACH ROW
      WHEN (NEW.item = 'lost commit') EXECUTE FUNCTION wait_after_commit()`);
  const [key, body] = [newKey(), order({ item: 'lost commit' })];
  const reply = post(a, key, body);
  const look = `SELECT pid FROM pg_stat_activity
                 WHERE wait_event = 'SyncRep' AND datname = current_database() AND pid <> ALL ($1)`;
  const stopped = [];
  for (const phase of ['created', 'charged']) {
    stopped.push(await until(`the commit of ${phase}`, async () => (await select(look, stopped))[0]?.[0]));
    await scalar('SELECT pg_terminate_backend($1)', stopped.at(-1));
  }
  assert.equal((await reply).status, 201);
  return assertDoneOnce(key);
});

test('another request under the same key is 422 and learns nothing', async () => {
  const key = newKey();
  const stored = JSON.parse((await post(a, key, order())).body);
  const other = await post(b, key, order({ amount_cents: 1 }));
  assert.equal(other.status, 422);
  assert.ok(!other.body.includes(stored.order_id));
  // Spaces and the order of members are no difference.
  const respelled = JSON.stringify(Object.fromEntries(Object.entries(JSON.parse(order())).reverse()), null, 2);
  assert.equal((await post(b, key, respelled)).status, 201);
});

test("bob with ada's key and body runs his own request and never sees her answer", async () => {
  const key = newKey();
  const adas = await post(a, key, order());
  const bobs = await post(b, key, order(), { user: 'bob' });
  assert.deepEqual([adas, bobs].map((reply) => [reply.status, reply.replayed]), [[201, false], [201, false]]);
  assert.notEqual(JSON.parse(adas.body).order_id, JSON.parse(bobs.body).order_id);
  for (const [user, first] of [['ada', adas], ['bob', bobs]]) {
    const again = await post(b, key, order(), { user });
    assert.deepEqual([again.replayed, again.body], [true, first.body]);
    await assertDoneOnce(key, user);
  }
});

test('a user whose name has a slash cannot reach the key of another', async () => {
  const key = newKey();
  await post(a, `x/${key}`, order());
  for (const user of ['ada/x', 'ada%2Fx']) {
    const reply = await post(a, key, order(), { user });
    assert.deepEqual([reply.status, reply.replayed], [201, false]);
  }
  await assertDoneOnce(`x/${key}`);
});

test('a request without a user is 401', async () => {
  for (const user of [null, '']) assert.equal((await post(a, newKey(), order(), { user })).status, 401);
});

test('an answer past its ttl is 410', async () => {
  const key = newKey();
  await scalar(`SELECT once.scope_set('orders.create', '{"ttl": "500 ms"}')`);
  try {
    assert.equal((await post(a, key, order())).status, 201);
    await until('the answer to expire', async () => (await post(b, key, order())).status === 410);
  } finally {
    await scalar(`SELECT once.scope_set('orders.create', '{"ttl": null}')`);
  }
  await assertDoneOnce(key);
});

test('a request without a key or an order is 400', async () => {
  const bad = [[undefined, order()], ['', order()], ['"open', order()], ['k'.repeat(252), order()], [newKey(), '{'], [newKey(), '{}'], [newKey(), order({ item: '\0' })]];
  for (const [key, body] of bad) assert.equal((await post(a, key, body)).status, 400, `${key} ${body}`);
});

test('a charge that the bank refuses ends the key', async () => {
  const [key, body] = [newKey(), order({ amount_cents: 2_000_000 })];
  const first = await post(a, key, body);
  const second = await post(b, key, body);
  assert.deepEqual([first.status, second.status, second.replayed], [402, 402, true]);
  assert.equal(await scalar('SELECT status FROM orders WHERE idempotency_key = $1', storedKey(key)), 'refused');
});

test('a charge that the bank has forgotten waits for a person', async (t) => {
  const key = newKey();
  const forgetful = await service(t, undefined, { BANK_REMEMBERS: '0' });
  outside.lose = 1;
  assert.equal((await post(forgetful, key, order())).status, 503);
  const parked = await postUntilAnswered(forgetful, key, order());
  assert.deepEqual([parked.status, (await post(a, key, order())).status], [409, 409]);
  const [[status, attempt]] = await select(`SELECT status, attempt FROM once.key_get('orders.create', $1)`, storedKey(key));
  assert.equal(status, 'parked');
  // A person asked the bank: it may be asked again.
  await scalar(`SELECT once.key_resolve('orders.create', $1, $2, 'retry')`, storedKey(key), attempt);
  assert.equal((await post(a, key, order())).status, 201);
  await assertDoneOnce(key);
});

test('SIGTERM finishes the request at hand', async (t) => {
  const key = newKey();
  const leaving = await service(t);
  const { reply } = await outside.holding(async () => {
    const first = await sendUntilBankAsked(leaving, key, order());
    leaving.process.kill('SIGTERM');
    return first;
  });
  assert.deepEqual([(await reply).status, await leaving.ended()], [201, 0]);
  await assertDoneOnce(key);
});

test('all of it works through PgBouncer', { skip: !POOLER_URL && 'PG_ONCE_POOLER_URL is not set' }, async (t) => {
  const keys = Array.from({ length: 20 }, newKey);
  const pooled = await service(t, undefined, { PG_ONCE_URL: POOLER_URL });
  for (const replayed of [false, true]) {
    const replies = await Promise.all(keys.map((key) => post(pooled, key, order({ customer: key }))));
    assert.ok(replies.every((reply) => reply.status === 201 && reply.replayed === replayed), JSON.stringify(replies));
  }
  for (const key of keys) await assertDoneOnce(key);
});
