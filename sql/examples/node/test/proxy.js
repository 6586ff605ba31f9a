// A network that fails: a TCP proxy between a program and PostgreSQL.

import { once } from 'node:events';
import { connect, createServer } from 'node:net';

const STATEMENT = /^[QP]/; // Query or Parse
const READY = /Z\0\0\0\x05[ITE]$/; // ReadyForQuery: the end of an answer

export class Proxy {
  statements = []; // without heartbeats, which come at any time
  refusals = []; // each ON001 to ON007 among the server's errors
  struck = false; // whether the statement of `cut` has come
  #next;

  static async start(test, url) {
    const proxy = new Proxy();
    const through = new URL(url);
    const { hostname, port } = through;
    const server = createServer((client) => proxy.#carry(client, connect(Number(port || 5432), hostname)));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    test.after(() => server.close());
    through.host = `127.0.0.1:${server.address().port}`;
    proxy.url = through.href;
    return proxy;
  }

  /**
   * Cuts the connection at the nth statement from now that has this text.
   * arrives: the server executes it, and the answer is lost. hold: the client stays connected, and waits.
   */
  cut({ text = '', nth = 1, arrives = true, hold = false } = {}) {
    this.struck = false;
    this.#next = { text, left: nth, arrives, hold };
  }

  /** How many statements had this text. */
  count(text) { return this.statements.filter((statement) => statement.includes(text)).length; }

  #carry(client, server) {
    let cut;
    const hangUp = () => { client.destroy(); server.destroy(); };
    const strike = () => {
      this.struck = true;
      if (!cut.hold) hangUp();
    };
    client.on('data', (request) => {
      cut ??= this.#cutOf(request.toString('latin1'));
      if (!cut || cut.arrives) server.write(request);
      else strike();
    });
    server.on('data', (answer) => {
      const text = answer.toString('latin1');
      this.refusals.push(...[...text.matchAll(/C(ON00\d)\0/g)].map(([, state]) => state));
      if (!cut) client.write(answer);
      else if (READY.test(text)) strike();
    });
    for (const socket of [client, server]) socket.on('close', hangUp).on('error', hangUp);
  }

  #cutOf(request) {
    if (!STATEMENT.test(request) || request.includes('_extend(')) return undefined;
    this.statements.push(request);
    if (!this.#next || !request.includes(this.#next.text)) return undefined;
    this.#next.left -= 1;
    if (this.#next.left > 0) return undefined;
    const cut = this.#next;
    this.#next = undefined;
    return cut;
  }
}
