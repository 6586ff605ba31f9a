// A worker that posts a topic's events to a webhook, each with its delivery key as the Idempotency-Key.
//
//     PG_ONCE_URL=postgresql://shop@127.0.0.1/shop WEBHOOK_URL=http://127.0.0.1:9000/webhook \
//         node relay.js orders webhooks
//
// SIGTERM: finishes the present event, and gives the rest of the batch back with no attempt counted.

import pg from 'pg';
import { retryAfter } from './pg_once/key.js';
import { Never, NotDelivered, Worker } from './pg_once/outbox.js';

async function post(event) {
  let response;
  try {
    response = await fetch(process.env.WEBHOOK_URL, {
      method: 'POST',
      headers: { 'Idempotency-Key': event.deliveryKey, 'Content-Type': 'application/json' },
      body: event.payload,
      redirect: 'manual', // a redirected POST becomes a GET without the event
      signal: AbortSignal.timeout(10_000),
    });
    await response.arrayBuffer();
  } catch (error) {
    throw new NotDelivered(`the receiver did not answer: ${error.cause ?? error}`, { kind: 'transport', cause: error });
  }
  if (response.ok) return;
  if (response.status === 410) throw new Never('the receiver says 410: never again');
  const after = retryAfter(response.headers.get('retry-after'));
  throw new NotDelivered(`the receiver says ${response.status}`, { kind: `http ${response.status}`, after });
}

const stop = new AbortController();
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, () => {
    stop.abort();
    console.log('stopping');
  });
}

const [topic, subscriber] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: process.env.PG_ONCE_URL, max: 4, connectionTimeoutMillis: 10_000 });
pool.on('error', (error) => console.warn(`an idle connection was lost: ${error.message}`));
console.log('working');
await new Worker(pool, topic, subscriber, post, { lease: Number(process.env.RELAY_LEASE_SECONDS ?? 60) }).run(stop.signal);
await pool.end();
