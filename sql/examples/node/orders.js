// An HTTP service that handles each POST /orders once, whichever process or connection dies.
//
//     PG_ONCE_URL=postgresql://shop@127.0.0.1/shop BANK_URL=http://127.0.0.1:9000 node orders.js [port]
//
// The phases of an order, by the recovery point that each starts from:
//   started   advance to `created`, insert the order: one transaction
//   created   charge it at the bank (a step, with the step's derived key), advance to `charged`
//   charged   mark it paid, emit the event, store the answer: one transaction

import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import pg from 'pg';
import { call } from './pg_once/database.js';
import { InvalidArgument, Unavailable } from './pg_once/errors.js';
import { keyOfHeader, problem, Retry, retryAfter, run, Unknown } from './pg_once/key.js';
import { emit } from './pg_once/outbox.js';

// The header with the authenticated user. The proxy in front of this service must set it, and drop a client's value.
const USER = 'x-forwarded-user';
// How long the bank remembers a key, in seconds. After that, asking again could charge twice.
const BANK_REMEMBERS = Number(process.env.BANK_REMEMBERS ?? 24 * 3600);
// Statuses 4xx that are no refusal. A gateway's 404 or 405 does not tell whether an earlier call has charged.
const NOT_FINAL = [401, 403, 404, 405, 408, 409, 425, 429];
const BANK_URL = process.env.BANK_URL;

const pool = new pg.Pool({ connectionString: process.env.PG_ONCE_URL, max: 16, connectionTimeoutMillis: 10_000 });
pool.on('error', (error) => console.warn(`an idle connection was lost: ${error.message}`));

/** The bank refused: it did not charge and will not. */
class Refused extends Error {}

/** Continues from the recovery point, whichever attempt reached it. */
async function make(lease, lost, order) {
  let point = lease.recoveryPoint;
  let state = JSON.parse(lease.state ?? '{}');
  if (point === 'started') {
    point = 'created';
    state = { order_id: randomUUID() };
    await lease.phase(pool, point, JSON.stringify(state), (client) => create(client, lease, order, state.order_id));
  }
  if (point === 'created') {
    try {
      state = await charge(lease, lost, order, state);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      return lease.lastPhase(pool, (client) => refuse(client, lease, state, error.message));
    }
  }
  return lease.lastPhase(pool, (client) => finish(client, lease, order, state));
}

async function create(client, lease, order, orderId) {
  const insert = 'INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents) VALUES ($1, $2, $3, $4, $5)';
  await client.query(insert, [orderId, lease.key, order.customer, order.item, order.amount_cents]);
}

async function charge(lease, lost, order, state) {
  const step = await call(pool, (client) => lease.step(client, 'charge')); // committed before the call
  let { result } = step;
  if (!step.done) {
    if (step.attempted > 0 && step.age > BANK_REMEMBERS) {
      throw new Unknown('an earlier attempt may have charged, and the bank has forgotten its key by now');
    }
    const answer = await askBank(step.derivedKey, state.order_id, order.amount_cents, lost);
    ({ result } = await call(pool, (client) => lease.stepDone(client, 'charge', answer)));
  }
  const charged = { ...state, charge_id: JSON.parse(result).charge_id };
  await call(pool, (client) => lease.advance(client, 'charged', JSON.stringify(charged)));
  return charged;
}

/** Returns the bank's answer as it came. A missing answer is never taken for a refusal. */
async function askBank(derivedKey, orderId, amountCents, lost) {
  let response;
  let body;
  try {
    response = await fetch(`${BANK_URL}/charges`, {
      method: 'POST',
      headers: { 'Idempotency-Key': derivedKey, 'Content-Type': 'application/json' },
      body: JSON.stringify({ reference: orderId, amount_cents: amountCents }),
      redirect: 'manual', // a redirected POST becomes a GET, whose answer says nothing about the charge
      signal: AbortSignal.any([lost, AbortSignal.timeout(10_000)]),
    });
    body = await response.text();
  } catch (error) {
    throw new Retry(`the bank did not answer: ${error.cause ?? error}`, { cause: error });
  }
  const { status } = response;
  if (response.ok && isCharge(body)) return body;
  if (response.ok) throw new Retry("the bank's answer is not understood");
  if (status >= 400 && status < 500 && !NOT_FINAL.includes(status)) throw new Refused(`the bank says ${status}`);
  throw new Retry(`the bank says ${status}`, { after: retryAfter(response.headers.get('retry-after')) });
}

function isCharge(body) {
  try {
    return typeof JSON.parse(body).charge_id === 'string';
  } catch {
    return false;
  }
}

async function refuse(client, lease, state, reason) {
  await client.query("UPDATE orders SET status = 'refused' WHERE order_id = $1", [state.order_id]);
  return lease.abort(client, 402, JSON.stringify({ title: reason }));
}

async function finish(client, lease, order, state) {
  const paid = "UPDATE orders SET status = 'paid', charge_id = $1 WHERE order_id = $2";
  await client.query(paid, [state.charge_id, state.order_id]);
  await emit(client, 'orders', JSON.stringify({ type: 'order.paid', ...state }), { orderKey: order.customer });
  return lease.complete(client, 201, JSON.stringify(state));
}

function orderOf(body) {
  try {
    const order = JSON.parse(body);
    // The customer becomes an order key: what the server refuses there is refused here, before the charge.
    const good = typeof order.customer === 'string' && order.customer.length > 0 && order.customer.length <= 255 &&
      typeof order.item === 'string' &&
      Number.isSafeInteger(order.amount_cents) && order.amount_cents > 0;
    return good ? order : undefined;
  } catch {
    return undefined;
  }
}

async function answerTo(request) {
  const body = await text(request);
  if (request.method !== 'POST' || request.url !== '/orders') return problem(404, 'there is only POST /orders');
  const { key, answer } = keyOfHeader(request.headers[USER], request.headers['idempotency-key']);
  if (answer) return answer;
  const order = orderOf(body);
  if (!order) return problem(400, 'the body is not an order');
  try {
    return await run(pool, 'orders.create', key, body, (lease, lost) => make(lease, lost, order));
  } catch (error) {
    if (error instanceof InvalidArgument) return problem(400, error.message); // such as \u0000, which jsonb cannot hold
    if (error instanceof Unavailable) return problem(503, 'the database is away', 1);
    console.error(`order ${key} failed`, error);
    return problem(500, 'internal error');
  }
}

const server = createServer(async (request, response) => {
  // If the client hangs up, the work goes on, and a retry gets the answer.
  const answer = await answerTo(request).catch((error) => problem(400, String(error)));
  if (!server.listening) response.setHeader('Connection', 'close');
  response.writeHead(answer.status, { 'Content-Type': 'application/json', ...answer.headers });
  response.end(answer.body);
});

server.listen(Number(process.argv[2] ?? 0), '127.0.0.1', () => console.log(`listening on ${server.address().port}`));

// Finishes the running requests; then the process ends.
for (const signal of ['SIGTERM', 'SIGINT']) {
  process.once(signal, () => {
    server.close(() => pool.end());
    server.closeIdleConnections();
  });
}
