// Each event takes effect once at a receiver that dedupes, whichever process dies; dead letters can be listed.

import assert from 'node:assert/strict';
import { after, afterEach, beforeEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { admin, newKey, order, POOLER_URL, post, Program, scalar, select, until, URL_ } from './harness.js';
import { Outside } from './outside.js';
import { Proxy } from './proxy.js';
import { Worker } from '../pg_once/outbox.js';

let outside;
let topic;

beforeEach(async () => {
  outside = await Outside.start();
  topic = `test ${newKey()}`;
  await scalar('SELECT once.topic_set($1, $2)', topic, '{"subscribers": ["webhooks"]}');
  const options = '{"backoff_base": "20 ms", "backoff_cap": "50 ms", "max_attempts": 4}';
  await scalar(`SELECT once.subscriber_set($1, 'webhooks', $2)`, topic, options);
});

afterEach(() => outside.stop());
after(() => admin.end());

const payload = (n) => `{"n":  "<${n}>", "x": 1.0}`;

async function emit(numbers, orderKey = null) {
  const ids = [];
  for (const n of numbers) ids.push(await scalar('SELECT event_id FROM once.outbox_emit($1, $2, order_key => $3)', topic, payload(n), orderKey));
  return ids;
}

const worker = (t, { lease = 60, ...environment } = {}) => Program.start(t, 'relay.js', [topic, 'webhooks'],
  { WEBHOOK_URL: `${outside.url}/webhook`, RELAY_LEASE_SECONDS: String(lease), ...environment });

const requests = (count, text = '<') => until(`${count} requests`, () => outside.about(text).length >= count);

async function done(numbers) {
  for (const n of numbers) await until(`event ${n}`, () => outside.done(`<${n}>`).length > 0);
}

const dead = async () => select(`SELECT event_id, kind FROM once.outbox_dead($1, 'webhooks')`, topic);
const failed = async (event) => (await select(`SELECT kind FROM once.outbox_deliveries($1, 'webhooks', $2)`, topic, event)).flat();
const theDeadLetter = () => until('the dead letter', async () => { const rows = await dead(); return rows.length > 0 && rows; });

test('events arrive byte for byte with their own keys', async (t) => {
  await emit([1, 2, 3]);
  await worker(t);
  await done([1, 2, 3]);
  assert.deepEqual(outside.requests.map((seen) => seen.body).sort(), [1, 2, 3].map(payload));
  assert.equal(outside.effects.size, 3);
});

test('an order that is paid is told to the webhook', async (t) => {
  topic = 'orders';
  const orders = await Program.start(t, 'orders.js', [], { BANK_URL: outside.url });
  const stored = JSON.parse((await post(orders, newKey(), order({ customer: newKey() }))).body);
  await worker(t);
  await until('the event', () => outside.done(stored.order_id).some((seen) => seen.path === '/webhook'));
});

test('a worker killed in the middle of a batch loses nothing', async (t) => {
  const numbers = [1, 2, 3, 4, 5, 6, 7];
  await emit(numbers);
  await outside.holding(async () => {
    const doomed = await worker(t, { lease: 1 });
    await requests(4); // the fourth is acted on, and not answered
    doomed.process.kill('SIGKILL');
    assert.equal(await doomed.ended(), 'SIGKILL');
  }, 3);
  await worker(t, { lease: 1 });
  await done(numbers);
  await requests(numbers.length + 1); // the event that was not acked comes again
  assert.equal(outside.effects.size, numbers.length);
});

test('a lost answer is delivered again with the same key', async (t) => {
  const [event] = await emit([1]);
  outside.lose = 1;
  await worker(t);
  await requests(2, '<1>');
  assert.deepEqual([outside.effects.size, await failed(event)], [1, ['transport']]);
});

/** How many events a take finds after the end of all leases, in a transaction that is rolled back. */
async function left() {
  const client = await admin.connect();
  await client.query('BEGIN');
  await client.query("SELECT set_config('once.fake_now', (clock_timestamp() + '1 h')::text, true)");
  const { rowCount } = await client.query("SELECT * FROM once.outbox_take($1, 'webhooks', 100)", [topic]);
  await client.query('ROLLBACK');
  client.release();
  return rowCount;
}

test('an ack whose answer was lost is sent again, and the event is handled once', async (t) => {
  await emit([1, 2]);
  const proxy = await Proxy.start(t, URL_);
  proxy.cut({ text: 'outbox_ack' });
  const program = await worker(t, { PG_ONCE_URL: proxy.url });
  await done([1, 2]);
  program.process.kill('SIGTERM');
  assert.equal(await program.ended(), 0);
  assert.deepEqual([proxy.count('outbox_ack'), proxy.refusals], [3, ['ON006']]);
  assert.deepEqual([outside.requests.length, await left()], [2, 0]);
});

test('a nack whose answer was lost is sent again, and counts one attempt', async (t) => {
  const [event] = await emit([1, 2], 'a');
  outside.say = [['<1>', 503, {}]];
  const proxy = await Proxy.start(t, URL_);
  proxy.cut({ text: 'outbox_nack' });
  const program = await worker(t, { PG_ONCE_URL: proxy.url });
  await done([1, 2]);
  program.process.kill('SIGTERM');
  assert.equal(await program.ended(), 0);
  assert.deepEqual([proxy.count('outbox_nack'), proxy.refusals], [2, ['ON006']]);
  assert.deepEqual([await failed(event), await left()], [['http 503'], 0]);
});

for (const statement of ['outbox_take', 'outbox_nack', 'outbox_ack']) {
  for (const arrives of [false, true]) {
    test(`a worker killed at ${statement}, which ${arrives ? 'arrives' : 'does not arrive'}, loses nothing`, async (t) => {
      await emit([1, 2]);
      outside.say = [['<1>', 503, {}]];
      const proxy = await Proxy.start(t, URL_);
      proxy.cut({ text: statement, arrives, hold: true });
      const doomed = await worker(t, { lease: 1, PG_ONCE_URL: proxy.url });
      await until('the statement', () => proxy.struck);
      doomed.process.kill('SIGKILL');
      assert.equal(await doomed.ended(), 'SIGKILL');
      await worker(t, { lease: 1 });
      await done([1, 2]);
      await until('both acks', async () => await left() === 0);
      assert.deepEqual([outside.effects.size, await dead()], [2, []]);
    });
  }
}

test('failures back off until the event is dead, and a redrive delivers it', async (t) => {
  const [event] = await emit([1]);
  outside.say = Array.from({ length: 4 }, () => ['<1>', 503, {}]);
  await worker(t);
  assert.deepEqual(await theDeadLetter(), [[event, 'http 503']]);
  assert.deepEqual(await failed(event), Array(4).fill('http 503'));
  assert.equal(await scalar(`SELECT once.outbox_redrive($1, 'webhooks')`, topic), 1);
  await done([1]);
  assert.equal(new Set(outside.requests.map((seen) => seen.key)).size, 1);
});

test('never is dead at once', async (t) => {
  const [event] = await emit([1]);
  outside.say = [['<1>', 410, {}]];
  await worker(t);
  assert.deepEqual(await theDeadLetter(), [[event, 'never']]);
  assert.equal(outside.requests.length, 1);
});

test('a redirect is no delivery', async (t) => {
  const [event] = await emit([1]);
  outside.say = [['<1>', 302, { Location: outside.url }]];
  await worker(t);
  await done([1]);
  assert.deepEqual(await failed(event), ['http 302']);
});

test('a handler may ack its event itself, and then fail', async () => {
  await emit([1, 2], 'a');
  const [stop, came] = [new AbortController(), []];
  const worker = new Worker(admin, topic, 'webhooks', async (event) => {
    came.push(event);
    if (came.length === 2) return stop.abort();
    await worker.subscriber.ack(admin, event.token, [event.eventId]);
    throw new Error('the answer to the COMMIT is lost');
  }, { lease: 5 });
  await worker.run(stop.signal);
  assert.deepEqual([came.map((event) => event.payload), await left()], [[payload(1), payload(2)], 0]);
  assert.equal(came[0].token, came[1].token); // the second did not wait for the lease
});

test('Retry-After is honoured', async (t) => {
  await worker(t);
  for (const [n, wait] of [[1, () => '1'], [2, () => new Date(Date.now() + 3000).toUTCString()], [3, () => '0'],
    [4, () => new Date(0).toUTCString()]]) {
    outside.say = [[`<${n}>`, 429, { 'Retry-After': wait() }]];
    await emit([n]);
    await done([n]);
    const [first, second] = outside.about(`<${n}>`);
    assert.equal(second.at - first.at >= 900, n < 3);
  }
});

test('a failed event holds back those behind it and no others', async (t) => {
  await emit([1, 2], 'a');
  await emit([3], 'b');
  outside.say = [['<1>', 503, {}]];
  await worker(t);
  await done([1, 2, 3]);
  const came = outside.requests.map((seen) => /<(\d)>/.exec(seen.body)[1]);
  assert.deepEqual([...came].sort(), ['1', '1', '2', '3']);
  assert.deepEqual(came.filter((n) => n !== '3'), ['1', '1', '2']);
});

test('a receiver slower than the lease is waited for', async (t) => {
  const workers = [await worker(t, { lease: 1 }), await worker(t, { lease: 1 })];
  await outside.holding(async () => {
    await emit([1]);
    await requests(1);
    await sleep(4000); // longer than the lease of 1 s; the other worker is idle
  });
  for (const one of workers) {
    one.process.kill('SIGTERM');
    assert.equal(await one.ended(), 0);
  }
  assert.equal(outside.requests.length, 1);
  assert.deepEqual(await select(`SELECT event_id FROM once.outbox_take($1, 'webhooks')`, topic), []);
});

test('SIGTERM finishes the event at hand and gives the others back', async (t) => {
  await emit([1, 2, 3, 4, 5]);
  const leaving = await outside.holding(async () => {
    const program = await worker(t);
    await requests(1);
    program.process.kill('SIGTERM');
    assert.equal(await program.line(), 'stopping');
    return program;
  });
  assert.equal(await leaving.ended(), 0);
  assert.equal(outside.requests.length, 1);
  const left = await select(`SELECT attempt FROM once.outbox_take($1, 'webhooks')`, topic);
  assert.deepEqual(left, [[1], [1], [1], [1]]); // due at once, no attempt counted
});

test('all of it works through PgBouncer', { skip: !POOLER_URL && 'PG_ONCE_POOLER_URL is not set' }, async (t) => {
  const numbers = Array.from({ length: 30 }, (_, n) => 100 + n);
  await emit(numbers);
  await Promise.all([worker(t, { PG_ONCE_URL: POOLER_URL }), worker(t, { PG_ONCE_URL: POOLER_URL })]);
  await done(numbers);
  assert.equal(outside.effects.size, numbers.length);
});
