// Events: emitted in the transaction of the writes, delivered by a worker.
//
// Delivered at least once; handled once by a receiver that dedupes by the delivery key. Invariant: an event is acked
// only after `deliver` has succeeded. An event without an ack is delivered again, with the same key, until it is dead.

import { setTimeout as sleep } from 'node:timers/promises';
import { call, heartbeat, rows, storableWait, waitBefore } from './database.js';
import { AlreadyDone, LeaseLost, OnceError } from './errors.js';

const EMIT = `
  SELECT event_id AS "eventId", emitted
    FROM once.outbox_emit($1, $2::json, order_key => $3, dedupe_key => $4, headers => $5::json,
                          delay => make_interval(secs => $6))`;
const TAKE = `
  SELECT token, event_id AS "eventId", attempt, delivery_key AS "deliveryKey", order_key AS "orderKey", payload, headers
    FROM once.outbox_take($1, $2, $3, make_interval(secs => $4))`;
const ACK = 'SELECT acked FROM once.outbox_ack($1, $2, $3, $4::bigint[])';
const NACK = `
  SELECT event_id AS "eventId", attempt, dead
    FROM once.outbox_nack($1, $2, $3, $4::bigint[], error => $5, kind => $6, retry_after => make_interval(secs => $7))`;
const EXTEND = 'SELECT once.outbox_extend($1, $2, $3, make_interval(secs => $4))';
const DEAD = `
  SELECT event_id AS "eventId", attempts, kind, error, order_key AS "orderKey", payload, headers
    FROM once.outbox_dead($1, $2, $3)`;
const REDRIVE = 'SELECT redriven FROM once.outbox_redrive($1, $2, $3, $4::bigint[]) AS redriven';

/** The event is tried again, after the subscriber's backoff or `after` seconds (at most a day). kind: a word to count failures by. */
export class NotDelivered extends Error {
  constructor(message, { kind = 'error', after = null, cause } = {}) {
    super(message, { cause });
    this.kind = kind !== 'expired' && /^[^\0]{1,100}$/.test(kind) ? kind : 'error'; // the server refuses other kinds
    this.after = after;
  }
}

/** The event cannot be delivered, however often it is tried: it is dead at once. */
export class Never extends NotDelivered {
  constructor(message) { super(message, { kind: 'never' }); }
}

/**
 * Call it in the transaction of the writes that the event reports. payload and headers: JSON text; delay: seconds.
 * → eventId, and emitted: false if eventId is an earlier event with this dedupeKey, within the topic's dedupe_for.
 */
export async function emit(client, topic, payload, { orderKey = null, dedupeKey = null, headers = null, delay = null } = {}) {
  const [row] = await rows(client, EMIT, [topic, payload, orderKey, dedupeKey, headers, delay]);
  return row;
}

/** Each method is one call. The events of one take are a batch, with one token. dead and redrive: for operators. */
export class Subscriber {
  constructor(topic, name = 'default') {
    this.topic = topic;
    this.name = name;
  }

  /** Not to be repeated: if the answer is lost, its events wait until the lease expires, and a repeat takes others. */
  take(client, max = 10, lease = null) { return this.#ask(client, TAKE, max, lease); }

  /** eventIds: null for all events that are left in the batch. → how many were acked. */
  async ack(client, token, eventIds = null) {
    const [row] = await this.#ask(client, ACK, token, eventIds);
    return row.acked;
  }

  /** kind: `released` counts no attempt, `never` makes events dead at once. → eventId, attempt, dead of each event. */
  nack(client, token, eventIds = null, { error = null, kind = 'error', after = null } = {}) {
    return this.#ask(client, NACK, token, eventIds, error, kind, storableWait(after));
  }

  extend(client, token, lease = null) { return this.#ask(client, EXTEND, token, lease); }
  dead(client, max = 100) { return this.#ask(client, DEAD, max); }

  /** eventIds: null for the oldest `max` dead letters. → how many are due again. */
  async redrive(client, max = 100, eventIds = null) {
    const [row] = await this.#ask(client, REDRIVE, max, eventIds);
    return row.redriven;
  }

  #ask(client, text, ...values) { return rows(client, text, [this.topic, this.name, ...values]); }
}

/** Takes batches and delivers their events one after another; several processes may run. */
export class Worker {
  /**
   * deliver(event, lost): event.payload is the emitted text; lost is aborted when a heartbeat gets ON001.
   * lease: seconds after which another worker continues if this one died. poll: the most ms that an idle worker waits.
   */
  constructor(pool, topic, subscriber, deliver, { lease = 60, batch = 10, poll = 1000 } = {}) {
    Object.assign(this, { pool, subscriber: new Subscriber(topic, subscriber), deliver, lease, batch, poll });
  }

  /**
   * Works until stop (an AbortSignal) aborts; then finishes the present event and gives the rest of the batch back.
   * Of the database's errors, only `lasting` errors end the worker.
   */
  async run(stop) {
    const pause = (ms) => sleep(ms, undefined, { signal: stop }).catch(() => {});
    let failures = 0;
    let idle = 50;
    while (!stop.aborted) {
      try {
        const events = await call(this.pool, (client) => this.subscriber.take(client, this.batch, this.lease), 1);
        failures = 0;
        if (events.length > 0) {
          idle = 50;
          await this.#deliverBatch(events, stop);
        } else {
          await pause(idle * (0.5 + Math.random() / 2));
          idle = Math.min(2 * idle, this.poll);
        }
      } catch (error) {
        if (error instanceof LeaseLost) {
          console.warn(`somebody else has the rest of the batch: ${error.message}`);
        } else if (error instanceof OnceError && !error.lasting) {
          // Events that were taken and not acked are due again when their lease has expired.
          failures += 1;
          console.warn(`the worker waits for the database: ${error.message}`);
          await pause(waitBefore(failures));
        } else {
          throw error;
        }
      }
    }
  }

  async #deliverBatch(events, stop) {
    const { token } = events[0];
    const extend = (client) => this.subscriber.extend(client, token, this.lease);
    await heartbeat(this.pool, this.lease, extend, async (lost) => {
      const stuck = new Set(); // order keys with a failed event: their later events left the batch with it
      for (const [place, event] of events.entries()) {
        if (stuck.has(event.orderKey)) continue;
        if (stop.aborted) {
          const rest = events.slice(place).filter((other) => !stuck.has(other.orderKey));
          await this.#nack(token, rest, new NotDelivered('the worker was stopped', { kind: 'released' }));
          return;
        }
        try {
          await this.deliver(event, lost);
        } catch (error) {
          // A fault of the handler is a failure of this event alone.
          const failure = error instanceof NotDelivered ? error : new NotDelivered(String(error), { kind: 'exception' });
          const nacked = await this.#nack(token, [event], failure);
          if (nacked && event.orderKey !== null) stuck.add(event.orderKey);
          continue;
        }
        await this.#ack(token, event);
      }
    });
  }

  async #ack(token, event) {
    try {
      await call(this.pool, (client) => this.subscriber.ack(client, token, [event.eventId]));
    } catch (error) {
      if (!(error instanceof AlreadyDone)) throw error; // an earlier try, or `deliver` itself, has acked it
    }
  }

  /** → false if the events had left the batch by another call, such as an ack of the handler's own. */
  async #nack(token, events, { message, kind, after }) {
    const ids = events.map((event) => event.eventId);
    const said = message.replaceAll('\0', '').slice(0, 1000);
    const options = { error: said, kind, after };
    try {
      const nacked = await call(this.pool, (client) => this.subscriber.nack(client, token, ids, options));
      for (const row of nacked) {
        console.warn(`event ${row.eventId}, attempt ${row.attempt}: ${said}${row.dead ? ', dead' : ''}`);
      }
      return true;
    } catch (error) {
      if (!(error instanceof AlreadyDone)) throw error;
      return error.repeated;
    }
  }
}
