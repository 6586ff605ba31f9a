// One order and one charge, whichever process dies, whichever statement or answer is lost.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { admin, newKey, order, POOLER_URL, post, postUntilAnswered, Program, scalar, select, storedKey, until, URL_, waitForLock } from './harness.js';
import { Outside } from './outside.js';
import { Proxy } from './proxy.js';

// The number of an order's statements, from the claim to the COMMIT with the answer. The tests check it.
const STATEMENTS = 13;

let outside;
let a;
let b;
const events = [];
const service = (test, environment) => Program.start(test, 'orders.js', [], { BANK_URL: outside.url, ...environment });

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

/** Asserts one order, one charge, one event. */
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

test('of two processes with one key at once one works, and the other may soon ask again', async (t) => {
  const lease = (wanted) => scalar(`SELECT once.scope_set('orders.create', '{"lease": "${wanted}"}')`);
  await lease('1 min');
  t.after(() => lease('1 s'));
  const key = newKey();
  const { reply } = await outside.holding(async () => {
    const first = await sendUntilBankAsked(a, key, order());
    const busy = await post(b, key, order());
    assert.deepEqual([busy.status, busy.retryAfter], [409, '1']);
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

/** Sends an order to a process that is killed at its nth statement. False: it sent fewer statements. */
async function killedAt(t, nth, arrives, key) {
  const proxy = await Proxy.start(t, URL_);
  const doomed = await service(t, { PG_ONCE_URL: proxy.url });
  proxy.cut({ nth, arrives, hold: true });
  let ended = false;
  const reply = post(doomed, key, order()).catch(() => {}).finally(() => { ended = true; });
  await until('the statement', () => proxy.struck || ended);
  doomed.process.kill('SIGKILL');
  await reply;
  return proxy.struck;
}

for (const arrives of [false, true]) {
  test(`a process killed at any statement that ${arrives ? 'arrives' : 'does not arrive'} is resumed by another`, async (t) => {
    const keys = [];
    for (let key = newKey(); await killedAt(t, keys.length + 1, arrives, key); key = newKey()) keys.push(key);
    assert.equal(keys.length, STATEMENTS);
    for (const [place, key] of keys.entries()) {
      const reply = await postUntilAnswered(a, key, order());
      // An answer to replay exists only if the last COMMIT was carried out.
      assert.deepEqual([reply.status, reply.replayed], [201, arrives && place + 1 === STATEMENTS]);
      assert.equal((await post(b, key, order())).body, reply.body);
      await assertDoneOnce(key);
    }
  });

  test(`${arrives ? 'the answer to any' : 'any'} statement may be lost`, async (t) => {
    const proxy = await Proxy.start(t, URL_);
    const program = await service(t, { PG_ONCE_URL: proxy.url });
    for (let nth = 1; nth <= STATEMENTS + 1; nth += 1) {
      const key = newKey();
      proxy.cut({ nth, arrives });
      assert.equal((await post(program, key, order())).status, 201);
      assert.equal(proxy.struck, nth <= STATEMENTS);
      await assertDoneOnce(key);
    }
  });
}

for (const [nth, call, times] of [[1, 'key_advance(', 3], [2, 'key_complete(', 2]]) {
  test(`a phase whose COMMIT was not answered is run again and commits once: ${call}...)`, async (t) => {
    const proxy = await Proxy.start(t, URL_);
    const program = await service(t, { PG_ONCE_URL: proxy.url });
    const key = newKey();
    proxy.cut({ text: 'COMMIT', nth });
    assert.equal((await post(program, key, order())).status, 201);
    // The call was sent twice with one token. The second got ON006; then another claim continued.
    // (A finished key refuses a release and a late heartbeat with ON006, too.)
    assert.deepEqual([proxy.count(call), new Set(proxy.refusals)], [times, new Set(['ON006'])]);
    assert.equal(proxy.count('key_claim('), 2);
    await assertDoneOnce(key);
  });
}

test('a bank slower than the lease is waited for', async () => {
  const key = newKey();
  const { reply } = await outside.holding(async () => {
    const first = await sendUntilBankAsked(a, key, order());
    const asked = outside.requests.length;
    for (const end = Date.now() + 2500; Date.now() < end; await sleep(100)) { // longer than the lease of 1 s
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

test('another request under the same key is 422 and learns nothing', async () => {
  const key = newKey();
  const stored = JSON.parse((await post(a, key, order())).body);
  const other = await post(b, key, order({ amount_cents: 1 }));
  assert.equal(other.status, 422);
  assert.ok(!other.body.includes(stored.order_id));
  // Spaces and the order of members do not matter.
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
  const asked = outside.requests.length;
  const bad = [[undefined, order()], ['', order()], ['"open', order()], ['k'.repeat(252), order()], [newKey(), '{'], [newKey(), '{}'], [newKey(), order({ item: '\0' })],
    [newKey(), order({ customer: '' })], [newKey(), order({ customer: 'c'.repeat(256) })]];
  for (const [key, body] of bad) assert.equal((await post(a, key, body)).status, 400, `${key} ${body}`);
  assert.equal(outside.requests.length, asked);
});

test('the time at which the bank wants to be asked again is passed on', async () => {
  for (const wait of ['60', new Date(Date.now() + 60_000).toUTCString()]) {
    outside.say = [['amount_cents', 429, { 'Retry-After': wait }]];
    const { status, retryAfter } = await post(a, newKey(), order());
    assert.deepEqual([status, retryAfter > 50 && retryAfter <= 60], [503, true], retryAfter);
  }
});

test('a charge that the bank refuses ends the key', async () => {
  const [key, body] = [newKey(), order({ amount_cents: 2_000_000 })];
  const first = await post(a, key, body);
  const second = await post(b, key, body);
  assert.deepEqual([first.status, second.status, second.replayed], [402, 402, true]);
  assert.equal(await scalar('SELECT status FROM orders WHERE idempotency_key = $1', storedKey(key)), 'refused');
});

test('a gateway without its service refuses no order', async () => {
  const key = newKey();
  outside.say = [['amount_cents', 404, {}], ['amount_cents', 405, {}]];
  assert.equal((await postUntilAnswered(a, key, order())).status, 201);
  await assertDoneOnce(key);
});

test('a redirect is no answer of the bank', async () => {
  const key = newKey();
  outside.say = [['amount_cents', 302, { Location: outside.url }]];
  assert.equal((await post(a, key, order())).status, 503);
  assert.equal(await scalar("SELECT last_error FROM once.key_get('orders.create', $1)", storedKey(key)), 'the bank says 302');
  assert.equal((await postUntilAnswered(a, key, order())).status, 201);
  await assertDoneOnce(key);
});

test('a charge that the bank has forgotten waits for a person', async (t) => {
  const key = newKey();
  const forgetful = await service(t, { BANK_REMEMBERS: '0' });
  outside.lose = 1;
  assert.equal((await post(forgetful, key, order())).status, 503);
  const parked = await postUntilAnswered(forgetful, key, order());
  assert.deepEqual([parked.status, (await post(a, key, order())).status], [409, 409]);
  const [[status, attempt]] = await select(`SELECT status, attempt FROM once.key_get('orders.create', $1)`, storedKey(key));
  assert.equal(status, 'parked');
  // A person found out that the bank still knows the key, so a retry is safe.
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
  const pooled = await service(t, { PG_ONCE_URL: POOLER_URL });
  for (const replayed of [false, true]) {
    const replies = await Promise.all(keys.map((key) => post(pooled, key, order({ customer: key }))));
    assert.ok(replies.every((reply) => reply.status === 201 && reply.replayed === replayed), JSON.stringify(replies));
  }
  for (const key of keys) await assertDoneOnce(key);
});
