"""The Python code of the book runs as printed: the tutorial's program, and those of the how-to pages."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import ModuleType

from harness import HERE, admin, block, create_tables, scalar

from pg_once import Connections, Retry

ADMIN_URL = os.environ["PG_ONCE_ADMIN_URL"]


class Tutorial(unittest.TestCase):
    ORDER = '{"item": "tea", "cents": 700}'

    @classmethod
    def setUpClass(cls) -> None:
        with admin() as conn:
            conn.execute(block("tutorial/python.md", "sql").encode())
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        bank, shop = (block("tutorial/python.md", "python", nth) for nth in range(2))
        Path(cls.directory.name, "bank.py").write_text(bank)
        Path(cls.directory.name, "shop.py").write_text(shop)

    def shop(self, *arguments: str) -> subprocess.CompletedProcess:
        environment = {**os.environ, "PG_ONCE_URL": ADMIN_URL}
        command = [sys.executable, "shop.py", *arguments]
        return subprocess.run(command, cwd=self.directory.name, env=environment, stdout=subprocess.PIPE, text=True)

    def test_it_is_killed_anywhere_and_charges_once(self) -> None:
        for place in ("before-charge", "after-charge", "before-sale"):
            with self.subTest(place):
                key = f"ada/{place}"
                self.assertEqual(self.shop(key, self.ORDER, place).returncode, -signal.SIGKILL)
                # Instead of waiting until the lease expires.
                scalar("SELECT once.key_expire('sales.create', %s)", key)
                first, again = (self.shop(key, self.ORDER).stdout for _ in range(2))
                self.assertIn("status=201", first)
                self.assertIn("Idempotent-Replayed", again)
                self.assertIn("status=422", self.shop(key, '{"item": "gold", "cents": 700}').stdout)
                charge = scalar("SELECT once.key_derive('sales.create', %s, 'charge')", key)
                self.assertEqual(Path(self.directory.name, "bank.txt").read_text().count(charge), 1)
                self.assertEqual(scalar("SELECT count(*) FROM sales WHERE sale = %s", key), 1)


class HowTo(unittest.TestCase):
    def test_the_request_and_the_function_run_as_they_are_printed(self) -> None:
        with admin() as conn:
            conn.execute("CREATE TABLE sold (key text, charge text)")
            conn.execute("CREATE TABLE joined (email text)")
            conn.execute("SELECT once.topic_set('sold')")
        program = "".join(block("how-to/python.md", "python", nth) for nth in range(2))
        told = subprocess.check_output(
            [sys.executable, "-c", program], env={**os.environ, "PG_ONCE_URL": ADMIN_URL}, text=True
        )
        first, again, joined = told.splitlines()
        self.assertEqual(first, '201 {"charge": "ch_1"} {}')
        self.assertEqual(again, "201 {\"charge\": \"ch_1\"} {'Idempotent-Replayed': 'true'}")
        self.assertIn('{"member": "ada@example.org"}', joined)

    def test_the_lines_of_the_middleware_are_those_of_the_example(self) -> None:
        api = (HERE.parent / "examples/api.py").read_text()
        for line in block("how-to/python.md", "text", 1).strip().splitlines():
            self.assertIn(line.rstrip(")"), api)


class Workflow(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        create_tables("workflow")
        cls.page = ModuleType("workflow")
        exec(block("how-to/workflow.md", "python"), cls.page.__dict__)

    def setUp(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.failure: Exception | None = None

    def fund(self, contract: str) -> tuple[int, str]:
        answer = self.page.fund(Connections(ADMIN_URL), self.post, contract, 5000)
        return answer.status, answer.body

    def post(self, path: str, derived_key: str, _: dict) -> str:
        self.calls.append((path, derived_key))
        if path == "/fundings" and self.failure:
            raise self.failure
        return json.dumps({path[1:-1]: f"{path} {derived_key}"})

    def entries(self, contract: str) -> list[str]:
        return scalar("SELECT array_agg(DISTINCT status) FROM entry WHERE contract = %s", contract)

    def test_a_funding_is_posted_once(self) -> None:
        first = self.fund("c-1")
        self.assertEqual((first[0], self.fund("c-1")), (201, first))
        self.assertEqual(
            ([path for path, _ in self.calls], self.entries("c-1")), (["/accounts", "/fundings"], ["posted"])
        )

    def test_an_attempt_after_a_failure_goes_on_with_the_same_key(self) -> None:
        self.failure = Retry("the bank says 503", 0.01)
        self.assertEqual(self.fund("c-2")[0], 503)
        self.failure = None
        while (status := self.fund("c-2")[0]) == 409:
            pass
        self.assertEqual(status, 201)
        self.assertEqual([path for path, _ in self.calls], ["/accounts", "/fundings", "/fundings"])
        self.assertEqual(self.calls[1], self.calls[2])

    def test_a_refusal_emits_what_undoes_it_the_newest_first(self) -> None:
        self.failure = self.page.Refused("no cover")
        refused = self.fund("c-3")
        self.assertEqual((refused[0], self.fund("c-3")), (409, refused))
        undone = """SELECT array_agg(payload ->> 'undo' ORDER BY event_id)
                      FROM once.outbox_take('undo', max => 1000) WHERE payload ->> 'contract' = 'c-3'"""
        self.assertEqual(scalar(undone), ["fund", "account", "entries"])


if __name__ == "__main__":
    unittest.main()
