"""A network that fails: a TCP proxy between a program and PostgreSQL."""

import re
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

READY = tuple(b"Z\0\0\0\5" + status for status in (b"I", b"T", b"E"))  # ReadyForQuery: the end of an answer


@dataclass
class Cut:
    text: bytes
    left: int
    arrives: bool
    hold: bool


class Proxy:
    def __init__(self, url: str) -> None:
        server = urlsplit(url)
        self.server = (server.hostname, server.port or 5432)
        self.listener = socket.create_server(("127.0.0.1", 0))
        user = server.netloc.rpartition("@")[0]
        netloc = f"{user}@127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = server._replace(netloc=netloc, query="sslmode=disable").geturl()
        self.statements: list[bytes] = []  # without heartbeats, which come at any time
        self.refusals: list[str] = []  # each ON001 to ON007 among the server's errors
        self.struck = threading.Event()  # set once `cut` has taken effect
        self.next_cut: Cut | None = None
        self.lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def cut(self, text: str = "", nth: int = 1, arrives: bool = True, hold: bool = False) -> None:
        """Cuts the connection at the nth statement from now that has this text.

        arrives: the server executes it, and the answer is lost. hold: stays connected, so the client waits.
        """
        with self.lock:
            self.struck.clear()
            self.next_cut = Cut(text.encode(), nth, arrives, hold)

    def count(self, text: str) -> int:
        """How many statements had this text."""
        with self.lock:
            return sum(text.encode() in statement for statement in self.statements)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client,), daemon=True).start()

    def _carry(self, client: socket.socket) -> None:
        cuts: list[Cut] = []  # one at most
        with client, socket.create_connection(self.server) as server:
            threading.Thread(target=self._carry_answers, args=(server, client, cuts), daemon=True).start()
            try:
                while request := client.recv(65536):
                    cuts += self._cut_of(request)
                    if not cuts or cuts[0].arrives:
                        server.sendall(request)
                    else:
                        self.struck.set()
                        if not cuts[0].hold:
                            break
            except OSError:
                pass
            _hang_up(client, server)

    def _carry_answers(self, server: socket.socket, client: socket.socket, cuts: list[Cut]) -> None:
        try:
            while answer := server.recv(65536):
                with self.lock:
                    self.refusals += [state.decode() for state in re.findall(rb"C(ON00\d)\0", answer)]
                if not cuts:
                    client.sendall(answer)
                elif answer.endswith(READY):
                    self.struck.set()
                    if not cuts[0].hold:
                        break
        except OSError:
            pass
        if not (cuts and cuts[0].hold):
            _hang_up(client, server)

    def _cut_of(self, request: bytes) -> list[Cut]:
        with self.lock:
            if request[:1] not in (b"Q", b"P") or b"_extend(" in request:  # Query or Parse
                return []
            self.statements.append(request)
            cut = self.next_cut
            if cut is None or cut.text not in request:
                return []
            cut.left -= 1
            if cut.left > 0:
                return []
            self.next_cut = None
            return [cut]


def _hang_up(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):  # closed already
            one.shutdown(socket.SHUT_RDWR)
