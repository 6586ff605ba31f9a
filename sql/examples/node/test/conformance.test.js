// The cases that every language's client has to pass: sql/examples/conformance.json, which says how to read them.
//
// PG_ONCE_CASES names that file if this folder was copied elsewhere.

import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import pg from 'pg';
import * as action from '../pg_once/action.js';
import { rows } from '../pg_once/database.js';
import * as inbox from '../pg_once/inbox.js';
import { claimOnce } from '../pg_once/key.js';
import { emit, Subscriber } from '../pg_once/outbox.js';
import { shardOf } from '../pg_once/shard.js';

const FILE = process.env.PG_ONCE_CASES ?? fileURLToPath(new URL('../../conformance.json', import.meta.url));
const { shard_of: vectors, sql, cases } = JSON.parse(readFileSync(FILE, 'utf8'));

const subscriber = (w) => new Subscriber(w.topic);
const idsOf = (batch, { events }) => events?.split(',').map((place) => batch[place].eventId) ?? null;

/** The calls of the cases, by name: (client, the earlier answer that `of` names, arguments) → rows. */
const CALLS = {
  sql: (client, _, { text }) => rows(client, text),
  'key.claim': (client, _, { scope, key, request, ...options }) => claimOnce(client, scope, key, request, options),
  'key.advance': (client, { lease }, w) => lease.advance(client, w.recovery_point, w.state),
  'key.step': (client, { lease }, w) => lease.step(client, w.step, w.on_abort),
  'key.step_done': (client, { lease }, w) => lease.stepDone(client, w.step, w.result, { onComplete: w.on_complete, onAbort: w.on_abort }),
  'key.complete': (client, { lease }, w) => lease.complete(client, w.code, w.body, w.headers),
  'key.abort': (client, { lease }, w) => lease.abort(client, w.code, w.body, w.headers),
  'key.release': (client, { lease }, w) => lease.release(client, w.error, w.retry_after),
  'key.park': (client, { lease }, w) => lease.park(client, w.reason),
  'key.extend': (client, { lease }, w) => lease.extend(client, w.lease),
  'action.claim': (client, _, { machine, id, step, ...options }) => action.claim(client, machine, id, step, options),
  'action.extend': (client, claimed, w) => claimed.action.extend(client, w.lease),
  'action.finish': (client, claimed, w) => claimed.action.finish(client, w.patch),
  'action.release': (client, claimed, w) => claimed.action.release(client, w.error),
  'outbox.emit': (client, _, w) => emit(client, w.topic, w.payload, {
    orderKey: w.order_key, dedupeKey: w.dedupe_key, headers: w.headers, delay: w.delay,
  }),
  'outbox.take': (client, _, w) => subscriber(w).take(client, w.max, w.lease),
  'outbox.ack': async (client, batch, w) => ({ acked: await batch.subscriber.ack(client, batch[0].token, idsOf(batch, w)) }),
  'outbox.nack': (client, batch, w) => batch.subscriber.nack(client, batch[0].token, idsOf(batch, w), {
    error: w.error, kind: w.kind, after: w.retry_after,
  }),
  'outbox.extend': (client, batch, w) => batch.subscriber.extend(client, batch[0].token, w.lease),
  'outbox.dead': (client, _, w) => subscriber(w).dead(client, w.max),
  'outbox.redrive': async (client, _, w) => ({ redriven: await subscriber(w).redrive(client, w.max) }),
  'inbox.accept': (client, _, w) => inbox.accept(client, w.scope, w.message_id, w.ttl),
  'inbox.record': (client, _, w) => inbox.record(client, w.scope, w.message_id, w.verdict),
};

const camel = (name) => name.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
const array = (value) => (Array.isArray(value) ? value : [value]);

/** One case: the answers by name (`as`), and the calls of each session's last transaction. */
class Run {
  id = randomUUID();
  answers = {};
  sent = {};
  open = new Set();

  /** Replaces `$id` and `$name.field` in a text. */
  filled(value) {
    if (typeof value !== 'string') return value;
    const put = (_, name, field) => (field ? array(this.answers[name])[0][camel(field)] : this.id);
    return value.replace(/\$(\w+)(?:\.(\w+))?/g, put);
  }

  async call({ by = 'a', call, of, with: given = {}, as, gives, raises }) {
    const values = Object.fromEntries(Object.entries(given).map(([name, value]) => [name, this.filled(value)]));
    let answer;
    try {
      answer = await this.#send(by, call, of, values);
    } catch (error) {
      if (raises === undefined || error.sqlstate !== raises) throw error;
      return;
    }
    assert.equal(undefined, raises, 'it was not refused');
    if (call === 'outbox.take') answer.subscriber = subscriber(values);
    if (as) this.answers[as] = answer;
    if (gives) this.#compare(answer, gives);
  }

  #send(by, call, of, values) {
    const client = sessions[by];
    if (call === 'begin') {
      this.sent[by] = [];
      this.open.add(by);
      return client.query(call);
    }
    if (call === 'commit' || call === 'rollback') {
      this.open.delete(by);
      return client.query(call);
    }
    if (call === 'again') return this.#again(client, this.sent[by]);
    assert.ok(call in sql || call in CALLS, `no such call: ${call}`);
    const work = call in sql ? () => CALLS.sql(client, undefined, { text: this.filled(sql[call]) })
      : () => CALLS[call](client, this.answers[of], values);
    if (this.open.has(by)) this.sent[by].push(work);
    return work();
  }

  async #again(client, calls) {
    let answer;
    await client.query('BEGIN');
    try {
      for (const call of calls) answer = await call();
      await client.query('COMMIT');
      return answer;
    } catch (error) {
      await client.query('ROLLBACK');
      throw error;
    }
  }

  #compare(answer, gives) {
    const found = array(answer);
    assert.equal(found.length, array(gives).length, `rows: ${JSON.stringify(found)}`);
    array(gives).forEach((row, place) => {
      for (const [name, value] of Object.entries(row)) {
        const is = found[place][camel(name)] ?? null;
        if (value === '*') assert.notEqual(is, null, name);
        else assert.equal(is === null ? null : String(is), value === null ? null : String(this.filled(value)), name);
      }
    });
  }
}

const sessions = {};

before(async () => {
  for (const name of ['a', 'b', 'operator', 'later']) {
    const connectionString = name.length === 1 ? process.env.PG_ONCE_URL : process.env.PG_ONCE_ADMIN_URL;
    sessions[name] = new pg.Client({ connectionString });
    await sessions[name].connect();
  }
  await sessions.operator.query(readFileSync(FILE.replace(/json$/, 'sql'), 'utf8'));
  await sessions.later.query(`SELECT set_config('once.fake_now', (clock_timestamp() + '1 year')::text, false)`);
});
after(() => Promise.all(Object.values(sessions).map((client) => client.end())));

test('the shard of a routing value', async () => {
  for (const { routing, shards, shard } of vectors) {
    const [there] = await rows(sessions.a, 'SELECT once.shard_of($1, $2) AS shard', [routing, shards]);
    assert.deepEqual([shardOf(routing, shards), there.shard], [shard, shard], routing);
  }
});

for (const { case: name, calls } of cases) {
  test(name, async () => {
    const run = new Run();
    try {
      for (const call of calls) {
        run.at = call;
        await run.call(call);
      }
    } catch (error) {
      throw new Error(`in ${JSON.stringify(run.at)}`, { cause: error });
    } finally {
      for (const by of run.open) await sessions[by].query('ROLLBACK');
    }
  });
}
