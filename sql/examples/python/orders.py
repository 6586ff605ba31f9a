"""An HTTP service that handles each POST /orders once, whichever process or connection dies.

    PG_ONCE_URL=postgresql://shop@127.0.0.1/shop BANK_URL=http://127.0.0.1:9000 python orders.py [port]

The phases of an order, by the recovery point that each starts from:
  started   advance to `created`, insert the order: one transaction
  created   charge it at the bank (a step, with the step's derived key), advance to `charged`
  charged   mark it paid, emit the event, store the answer: one transaction
"""

import json
import logging
import os
import signal
import sys
import threading
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
from psycopg_pool import ConnectionPool

from pg_once import Answer, Lease, Refused, emit, foreign_call, key_of_header, run
from pg_once.errors import InvalidArgument, Unavailable
from pg_once.http import problem

log = logging.getLogger("orders")

# The header with the authenticated user. The proxy in front of this service must set it, and drop a client's value.
USER = "X-Forwarded-User"
# How long the bank remembers a key, in seconds. After that, asking again could charge twice.
BANK_REMEMBERS = float(os.environ.get("BANK_REMEMBERS", 24 * 3600))


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET, whose answer says nothing about the charge, so a redirect is a failure."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirect)


class Shop:
    def __init__(self, db: ConnectionPool, bank_url: str) -> None:
        self.db = db
        self.bank_url = bank_url

    def order(self, key: str, request: str) -> Answer:
        order = json.loads(request)
        return run(self.db, "orders.create", key, request, lambda lease: self.make(lease, order))

    def make(self, lease: Lease, order: dict) -> Answer:
        """Continues from the recovery point, whichever attempt reached that."""
        point, state = lease.recovery_point, lease.value
        if point == "started":
            state = {"order_id": str(uuid.uuid4())}
            point = "created"
            lease.phase(self.db, point, state, lambda conn: self.create(conn, lease, order, state["order_id"]))
        if point == "created":
            try:
                state = self.charge(lease, order, state)
            except Refused as refusal:
                title = str(refusal)
                return lease.last_phase(self.db, lambda conn: self.refuse(conn, lease, state, title))
        return lease.last_phase(self.db, lambda conn: self.finish(conn, lease, order, state))

    def create(self, conn: psycopg.Connection, lease: Lease, order: dict, order_id: str) -> None:
        insert = (
            "INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents) VALUES (%s, %s, %s, %s, %s)"
        )
        conn.execute(insert, (order_id, lease.key, order["customer"], order["item"], order["amount_cents"]))

    def charge(self, lease: Lease, order: dict, state: dict) -> dict:
        def send(derived_key: str) -> str:
            return self.ask_bank(derived_key, state["order_id"], order["amount_cents"])

        charged = lease.foreign(self.db, "charge", send, remembers=BANK_REMEMBERS)
        state = {**state, "charge_id": charged["charge_id"]}
        lease.advance(self.db, "charged", state)
        return state

    @foreign_call(dedupes=True)
    def ask_bank(self, derived_key: str, order_id: str, amount_cents: int) -> str:
        """Returns the bank's answer as it came."""
        body = json.dumps({"reference": order_id, "amount_cents": amount_cents}).encode()
        headers = {"Idempotency-Key": derived_key, "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.bank_url}/charges", body, headers)
        with OPENER.open(request, timeout=10) as response:
            answer = response.read().decode()
        json.loads(answer)["charge_id"]  # an answer without it counts as no answer
        return answer

    def refuse(self, conn: psycopg.Connection, lease: Lease, state: dict, title: str) -> Answer:
        conn.execute("UPDATE orders SET status = 'refused' WHERE order_id = %s", (state["order_id"],))
        return lease.abort(conn, 402, {"title": title})

    def finish(self, conn: psycopg.Connection, lease: Lease, order: dict, state: dict) -> Answer:
        paid = "UPDATE orders SET status = 'paid', charge_id = %s WHERE order_id = %s"
        conn.execute(paid, (state["charge_id"], state["order_id"]))
        emit(conn, "orders", {"type": "order.paid", **state}, order_key=order["customer"])
        return lease.complete(conn, 201, state)


def is_order(body: str) -> bool:
    try:
        order = json.loads(body)
        return (
            isinstance(order["customer"], str)
            and 0 < len(order["customer"]) <= 255  # as emit demands of an order key
            and isinstance(order["item"], str)
            and type(order["amount_cents"]) is int
            and order["amount_cents"] > 0
        )
    except (ValueError, TypeError, KeyError):
        return False


def handler_for(shop: Shop) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode(errors="replace")
            answer = self.answer(key_of_header(self.headers[USER], self.headers["Idempotency-Key"]), body)
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body.encode())
            except ConnectionError:
                pass  # the client has hung up; a retry gets the answer

        def answer(self, key: str | Answer, body: str) -> Answer:
            if self.path != "/orders":
                return problem(404, "there is only /orders")
            if isinstance(key, Answer):
                return key
            if not is_order(body):
                return problem(400, "the body is not an order")
            try:
                return shop.order(key, body)
            except InvalidArgument as error:  # JSON that jsonb cannot hold, such as \u0000
                return problem(400, str(error))
            except Unavailable:
                return problem(503, "the database is away", 1)
            except Exception:
                log.exception("order %s failed", key)
                return problem(500, "internal error")

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def main() -> None:
    stop = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stop)  # in all threads; sigwait below receives the signals
    # prepare_threshold=None: no prepared statements, so PgBouncer in transaction mode may be in between.
    options = {"autocommit": True, "prepare_threshold": None}
    with ConnectionPool(os.environ["PG_ONCE_URL"], kwargs=options, min_size=1, max_size=16, timeout=10) as pool:
        shop = Shop(pool, os.environ["BANK_URL"])
        port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
        server = ThreadingHTTPServer(("127.0.0.1", port), handler_for(shop))
        server.daemon_threads = False  # server_close waits for the running requests
        threading.Thread(target=server.serve_forever).start()
        print(f"listening on {server.server_port}", flush=True)
        signal.sigwait(stop)
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    main()
