"""The other side: a bank (POST /charges) and a receiver of webhooks (POST /webhook), in one small server.

It acts once for each Idempotency-Key and remembers its answer. Tests make it lose answers (it acts, and
hangs up), answer other things, or hold answers back. Alone: python test/outside.py 9000
"""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Seen:
    path: str
    key: str
    body: str
    at: float


class Outside(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.requests: list[Seen] = []
        self.effects: dict[str, Seen] = {}  # by key: the request that was acted on
        self.lose = 0  # how many of the next answers get lost
        # Text, status and headers: the next request with the text gets this answer, and is not acted on.
        self.say: list[tuple[str, int, dict[str, str]]] = []
        self.hold_after: float = float("inf")  # how many requests are answered; the answers to later ones are held back
        self.change = threading.Condition()
        self.open = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def about(self, text: str) -> list[Seen]:
        """The requests whose body has this text."""
        with self.change:
            return [seen for seen in self.requests if text in seen.body]

    def done(self, text: str) -> list[Seen]:
        """The requests with this text in the body that the server has acted on."""
        with self.change:
            return [seen for seen in self.effects.values() if text in seen.body]

    @contextmanager
    def holding(self, after: int = 0) -> Iterator[None]:
        """Answers `after` more requests. Later requests are acted on at once, but answered when the block ends."""
        self.open.clear()
        self.hold_after = len(self.requests) + after
        try:
            yield
        finally:
            self.hold_after = float("inf")
            self.open.set()

    def wait_for(self, requests: int, text: str) -> None:
        with self.change:
            came = self.change.wait_for(lambda: len([s for s in self.requests if text in s.body]) >= requests, 30)
        assert came, f"no {requests} requests about {text} within 30 s"

    def serve(self, seen: Seen) -> tuple[int, dict[str, str], dict | None]:
        """Status, headers, body; no body: hang up."""
        with self.change:
            self.requests.append(seen)
            self.change.notify_all()
            held = len(self.requests) > self.hold_after
            for saying in self.say:
                if saying[0] in seen.body:
                    self.say.remove(saying)
                    return *saying[1:], {}
            order = json.loads(seen.body)
            if max(order.get("amount_cents", 0), order.get("cents", 0)) > 1_000_000:
                return 402, {}, {"title": "too much"}
            self.effects.setdefault(seen.key, seen)
            number = list(self.effects).index(seen.key)
            lost, self.lose = self.lose > 0, max(0, self.lose - 1)
        if held:
            self.open.wait()
        return 201, {}, None if lost else {"charge_id": f"ch_{number}"}


class Handler(BaseHTTPRequestHandler):
    server: Outside

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        status, headers, answer = self.server.serve(
            Seen(self.path, self.headers["Idempotency-Key"], body, time.monotonic())
        )
        if answer is None:
            return
        try:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())
        except OSError:
            pass  # whoever asked has died

    def do_GET(self) -> None:
        """Answers a client that has followed a redirect."""
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    print(Outside(int(sys.argv[1])).url)
    threading.Event().wait()
