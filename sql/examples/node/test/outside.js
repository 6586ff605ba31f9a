// The other side: a bank (POST /charges) and a receiver of webhooks (POST /webhook), in one small server.
//
// It acts once for each Idempotency-Key and repeats its answer. Tests make it lose answers (it acts, and
// hangs up), answer other things, or hold answers back. Alone: node test/outside.js 9000

import { once } from 'node:events';
import { createServer } from 'node:http';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';

export class Outside {
  requests = [];
  effects = new Map(); // by key: what was done once
  lose = 0; // how many of the next answers get lost
  say = []; // [text, status, headers]: answers to requests with this text, without acting
  #holdAfter = Infinity; // answers to requests after this many are held back
  #opened = Promise.resolve();

  static async start(port = 0) {
    const outside = new Outside();
    outside.server = createServer((request, response) => outside.#serve(request, response));
    outside.server.listen(port, '127.0.0.1');
    await once(outside.server, 'listening');
    outside.url = `http://127.0.0.1:${outside.server.address().port}`;
    return outside;
  }

  stop() {
    this.server.close();
    this.server.closeAllConnections();
  }

  about(text) { return this.requests.filter((seen) => seen.body.includes(text)); }

  done(text) { return [...this.effects.values()].filter((seen) => seen.body.includes(text)); }

  /** Runs work; until its end, holds back all answers but the next `after`. Held requests are carried out at once. */
  async holding(work, after = 0) {
    let open;
    this.#opened = new Promise((resolve) => { open = resolve; });
    this.#holdAfter = this.requests.length + after;
    try {
      return await work();
    } finally {
      this.#holdAfter = Infinity;
      open();
    }
  }

  async #serve(request, response) {
    if (request.method === 'GET') return response.end(); // where a client that follows a redirect ends
    const seen = { path: request.url, key: request.headers['idempotency-key'], body: await text(request), at: Date.now() };
    this.requests.push(seen);
    const held = this.requests.length > this.#holdAfter;
    const saying = this.say.findIndex(([about]) => seen.body.includes(about));
    if (saying >= 0) {
      const [[, status, headers]] = this.say.splice(saying, 1);
      return response.writeHead(status, headers).end('{}');
    }
    if (JSON.parse(seen.body).amount_cents > 1_000_000) return response.writeHead(402).end('{"title": "too much"}');
    if (!this.effects.has(seen.key)) this.effects.set(seen.key, seen);
    const number = [...this.effects.keys()].indexOf(seen.key);
    const lost = this.lose > 0;
    if (lost) this.lose -= 1;
    if (held) await this.#opened;
    if (lost) return request.socket.destroy();
    return response.writeHead(201).end(JSON.stringify({ charge_id: `ch_${number}` }));
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) console.log((await Outside.start(Number(process.argv[2]))).url);
