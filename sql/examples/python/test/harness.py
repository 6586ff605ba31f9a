"""Shared by the tests: the programs as processes, an HTTP client, and a superuser's connections.

PG_ONCE_URL        the database as the role of the services
PG_ONCE_ADMIN_URL  that database as a superuser, for checks and for faults
PG_ONCE_POOLER_URL PG_ONCE_URL through PgBouncer in transaction mode; without it those tests are skipped
"""

import http.client
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

HERE = Path(__file__).parent
URL = os.environ["PG_ONCE_URL"]
POOLER_URL = os.environ.get("PG_ONCE_POOLER_URL")
sys.path.insert(0, str(HERE.parent))  # the folder of orders.py and relay.py


def admin() -> psycopg.Connection:
    return psycopg.connect(os.environ["PG_ONCE_ADMIN_URL"], autocommit=True)


def scalar(sql: str, *values: Any) -> Any:
    with admin() as conn:
        return conn.execute(sql, values).fetchone()[0]


def block(page: str, language: str, nth: int = 0) -> str:
    """The nth block of a language in a page of the book."""
    text = (HERE.parents[3] / "docs" / page).read_text()
    return text.split(f"```{language}\n")[1 + nth].split("```")[0]


def create_tables(name: str) -> None:
    """Creates tables unless they exist. name: `examples` (tables.sql), `workflow` or a machine of sql/examples."""
    first = {"examples": "ride", "workflow": "funding"}.get(name, name)
    with admin() as conn, conn.transaction():
        if conn.execute("SELECT to_regclass(%s)", (first,)).fetchone() != (None,):
            return
        if name == "workflow":
            conn.execute(block("how-to/workflow.md", "sql").encode())
        elif name == "examples":
            conn.execute((HERE / "tables.sql").read_bytes())
        else:
            files = HERE.parents[1] / name
            conn.execute(files.with_suffix(".sql").read_bytes())
            conn.execute("SELECT once.machine_define(%s)", (files.with_suffix(".json").read_text(),))
            conn.execute("SELECT once.machine_guard(%s, true)", (name,))


def until(what: str, look: Callable[[], Any], seconds: float = 30) -> Any:
    """Waits until look() returns a true value; returns that value."""
    end = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.02)
    return found


class Program:
    """One of the example programs in a process of its own, killed at the end of the with block."""

    def __init__(self, name: str, *arguments: str, **environment: str) -> None:
        command = [str(HERE.parent / name), *arguments]
        environment = {**os.environ, **environment}
        self.process = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=environment)
        self.first_line = self.process.stdout.readline()
        assert self.first_line, f"{name} did not start"

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def line(self) -> str:
        """The next line that the program prints."""
        return self.process.stdout.readline().strip()

    @property
    def port(self) -> int:
        return int(self.first_line.split()[-1])

    def ended(self) -> int:
        return self.process.wait(30)


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status, self.headers, self.body = response.status, response.headers, response.read()

    @property
    def replayed(self) -> bool:
        return self.headers.get("Idempotent-Replayed") == "true"


def order(customer: str = "ada", amount_cents: int = 700, item: str = "tea") -> str:
    return json.dumps({"customer": customer, "item": item, "amount_cents": amount_cents})


def new_key() -> str:
    return str(uuid.uuid4())


def stored(key: str, user: str = "ada") -> str:
    """The key in the database: the user's name, then the key that the user sends."""
    return f"{user}/{key}"


def post(program: Program, key: str | None, body: str, user: str | None = "ada") -> Reply:
    """Sends an order with the headers of the authenticating proxy; user None: without the user's header."""
    conn = http.client.HTTPConnection("127.0.0.1", program.port, timeout=60)
    headers = {"Content-Type": "application/json", "Idempotency-Key": key, "X-Forwarded-User": user}
    headers = {name: value for name, value in headers.items() if value is not None}
    try:
        conn.request("POST", "/orders", body, headers)
        return Reply(conn.getresponse())
    finally:
        conn.close()


def post_until_answered(program: Program, key: str, body: str) -> Reply:
    """Sends an order until its answer has no Retry-After."""

    def answer() -> Reply | None:
        reply = post(program, key, body)
        return None if "Retry-After" in reply.headers else reply

    return until("an answer", answer)


def wait_for_lock(role: str = "shop") -> int:
    """Waits until a backend of the services waits for a lock; returns its process id."""
    look = """SELECT pid FROM pg_stat_activity
               WHERE usename = %s AND wait_event_type = 'Lock' AND datname = current_database()"""

    def waiting() -> int | None:
        with admin() as conn:
            row = conn.execute(look, (role,)).fetchone()
        return row and row[0]

    return until("a backend that waits for a lock", waiting)
