"""The programs of examples/ are killed at every statement (api.py: at four); a second run ends with the same result."""

import ast
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from harness import HERE, admin, block, create_tables, new_key, scalar, until
from outside import Outside
from play import Player, play
from proxy import Proxy

EXAMPLES = HERE.parent / "examples"
ADMIN_URL = os.environ["PG_ONCE_ADMIN_URL"]
# Processes that start with the libraries imported: the import takes longer than an example.
WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(["pg_once", "sqlalchemy", "fastapi", "httpx"])
# A program may have at most this many lines, without its docstring and empty lines.
MOST_LINES = {"ride": 30, "debit": 24, "signup": 40, "billing": 20, "batch_job": 40, "fundings": 36}
# Idempotency may add at most this many lines; they are marked with `# once`.
MOST_MARKED = {"api": 3, "billing": 5, "debit": 3}


def lines(name: str) -> list[str]:
    """The lines of a program, without its docstring and empty lines."""
    text = (EXAMPLES / f"{name}.py").read_text()
    head = ast.parse(text).body[0]
    return [line for line in text.splitlines()[head.end_lineno :] if line.strip()]


class Length(unittest.TestCase):
    def test_each_program_is_at_most_as_long_as_the_practice_writes_it(self) -> None:
        for name, most in MOST_LINES.items():
            self.assertLessEqual(len(lines(name)), most, name)

    def test_once_ness_costs_a_caller_few_lines(self) -> None:
        for name, most in MOST_MARKED.items():
            marked = sum(line.endswith("# once") for line in lines(name))
            self.assertTrue(0 < marked <= most, f"{name}: {marked}")

    def test_the_book_prints_the_programs_as_they_are(self) -> None:
        for name, page in (("fundings", "workflow"), ("debit", "consume")):
            program = (EXAMPLES / f"{name}.py").read_text().split('"""\n\n', 1)[1]
            self.assertEqual(block(f"how-to/{page}.md", "python"), program)


class Killed(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        for name in ("examples", "workflow", "billing", "batch_job"):
            create_tables(name)
        cls.outside = cls.enterClassContext(Outside())
        cls.store = cls.enterClassContext(tempfile.TemporaryDirectory())
        os.environ.update(OUTSIDE=cls.outside.url, STORE=cls.store)
        cls.player = Player(ADMIN_URL)

    at: tuple[Any, ...] = ()

    def shortDescription(self) -> str:
        return f"killed last at {self.at}"

    def killed_at(self, name: str, key: str, arrives: bool, nth: int = 1, statement: str = "") -> bool:
        """Runs the example in a process that is killed at the nth statement with this text. False: it sent fewer."""
        self.at = (statement or nth, "done" if arrives else "not sent")
        with Proxy(ADMIN_URL) as proxy:
            proxy.cut(statement, nth=nth, arrives=arrives, hold=True)
            doomed = WARM.Process(target=play, args=(name, key, {**os.environ, "PG_ONCE_URL": proxy.url}))
            doomed.start()
            until("the statement", lambda: proxy.struck.is_set() or not doomed.is_alive())
            doomed.kill()
            doomed.join()
            self.assertTrue(proxy.struck.is_set() or doomed.exitcode == 0, f"{name} failed by itself")
            return proxy.struck.is_set()

    def every_statement(self, name: str, least: int) -> Any:
        """Kills a run at each statement in turn, and yields its key; the test then runs the example again."""
        for arrives in (False, True):
            for nth in itertools.count(1):
                key = self.make(name)
                if not self.killed_at(name, key, arrives, nth):
                    break
                yield key
            self.assertGreater(nth, least)

    def make(self, name: str) -> str:
        """Inserts what the example needs; returns the key of its run."""
        key = new_key()
        with admin() as conn:
            if name == "debit":
                conn.execute("INSERT INTO account VALUES (%s, 100)", (key,))
                message = json.dumps({"id": key, "account": key, "cents": 30})
                conn.execute("SELECT once.outbox_emit('transfers', %s)", (message,))
            if name == "billing":
                conn.execute("INSERT INTO billing (id, customer, total) VALUES (%s, 'ada', 70)", (key,))
            if name in ("batch_job", "cancelled"):
                conn.execute("INSERT INTO wallet VALUES (%s, 100)", (key,))
                job = "INSERT INTO batch_job (customer) VALUES (%s) RETURNING id"
                job = conn.execute(job, (key,)).fetchone()[0]
                items = """INSERT INTO batch_item (job_id, input, points, artifact)
                           SELECT %s, 'page', 10, %s || '/' || n FROM generate_series(1, 2) AS n"""
                conn.execute(items, (job, job))
                return str(job)
        return key

    def expire(self, scope: str, key: str) -> None:
        scalar("SELECT once.key_expire(%s, %s)", scope, key)

    def revert(self, machine: str, row: str) -> None:
        """Ends the lease and reverts the row, instead of waiting for both."""
        scalar("SELECT once.action_expire(%s, %s)", machine, row)
        scalar("SELECT count(*) FROM once.sweep(task => 'action_release')")

    def test_a_ride(self) -> None:
        for key in self.every_statement("ride", least=12):
            self.expire("rides.create", f"ada/{key}")
            answer = self.player.ride(key)
            self.assertEqual((answer.status, self.player.ride(key).body), (201, answer.body))
            self.assertEqual(len(self.outside.done(key)), 1)
            charge = "SELECT array_agg(charge_id) FROM ride WHERE ride = %s"
            self.assertEqual(scalar(charge, answer.value["ride"]), [answer.value["charge"]])
            self.assertEqual(self.events("receipts", answer.value["ride"]), 1)
        self.assertEqual(scalar("SELECT count(*) FROM ride WHERE charge_id IS NULL"), 0)

    def test_a_debit(self) -> None:
        for key in self.every_statement("debit", least=8):
            until("the queue to be empty", lambda key=key: self.player.debit(key) and self.pending("transfers") == 0)
            self.assertEqual(scalar("SELECT cents FROM account WHERE account = %s", key), 70)
            self.assertEqual(self.player.debit(key), {"debited": True, "left": 70})
            self.assertEqual(self.events("debits", key), 1)

    def test_a_signup(self) -> None:
        for key in self.every_statement("signup", least=10):
            self.expire("signups.create", f"session 1/{key}")
            answer = self.player.signup(key)
            self.assertEqual(answer.status, 201)
            mail = "SELECT mail FROM member WHERE email = %s"
            until("the mail", lambda key=key: self.player.signup(key) and scalar(mail, f"{key}@example.org") == "sent")
            self.assertEqual(len(self.outside.done(key)), 1)
        taken = self.player.signup(new_key())
        self.assertEqual(taken.status, 201)

    def test_a_billing_that_is_closed(self) -> None:
        for key in self.every_statement("billing", least=5):
            self.revert("billing", key)
            self.assertIn(self.player.billing(key).outcome, ("finished", "refused"))
            row = "SELECT status::text || ' ' || invoices FROM billing WHERE id = %s"
            self.assertEqual(scalar(row, key), "closed 1")
            self.assertEqual(scalar("SELECT count(*) FROM invoice WHERE billing_id = %s", key), 1)
            self.assertEqual(len(self.outside.done(key)), 1)

    def test_a_batch_job_that_ends(self) -> None:
        for job in self.every_statement("batch_job", least=9):
            self.revert("batch_job", job)
            self.assertIn(self.player.batch_job(job).outcome, ("finished", "refused"))
            self.assertEqual(self.job(job), ("done", 80, ["kept", "kept"]))
            self.assertTrue(all(list(self.artifacts(job, n)) for n in (1, 2)))

    def test_a_batch_job_that_is_cancelled_while_it_runs(self) -> None:
        for job in self.every_statement("cancelled", least=12):
            self.revert("batch_job", job)
            until("its end", lambda job=job: self.player.cancelled(job).outcome in ("cancelled", "done", "finished"))
            self.assertEqual(self.job(job), ("cancelled", 100, ["returned", "returned"]))
            self.assertFalse(any(list(self.artifacts(job, n)) for n in (1, 2)))
        with admin() as conn:
            self.assertEqual(conn.execute("SELECT * FROM once.cancel_audit('batch_job')").fetchall(), [])

    def test_a_payment_of_the_api(self) -> None:
        """Killed at these four statements only: SQLAlchemy sends others to ask for the version and settings."""
        statements = ("key_claim(", "INSERT INTO payment_made", "key_complete(", "COMMIT")
        for statement, arrives in itertools.product(statements, (False, True)):
            key, before = new_key(), scalar("SELECT count(*) FROM payment_made")
            self.assertTrue(self.killed_at("api", key, arrives, statement=statement))
            self.expire("http", f"ada/{key}")
            answer = self.played("api", key)
            self.assertEqual(scalar("SELECT count(*) FROM payment_made") - before, 1)
            stored = "SELECT response_body::text FROM once.key_get('http', %s)"
            self.assertEqual(json.loads(scalar(stored, f"ada/{key}")), json.loads(answer))

    def played(self, name: str, key: str) -> str:
        """What the example prints in a process of its own, undisturbed."""
        command = [sys.executable, str(HERE / "play.py"), name, key]
        return subprocess.check_output(command, env={**os.environ, "PG_ONCE_URL": ADMIN_URL}, text=True).split("\n")[0]

    def test_a_funding(self) -> None:
        for key in self.every_statement("fundings", least=14):
            self.expire("contracts.fund", key)
            answer = self.player.fundings(key)
            self.assertEqual((answer.status, self.player.fundings(key).body), (201, answer.body))
            self.assertEqual(len(self.outside.done(key)), 2)  # the account, the transfer
            entries = "SELECT string_agg(DISTINCT status, ' ') || count(*) FROM entry WHERE contract = %s"
            self.assertEqual(scalar(entries, key), "posted2")
        self.assertEqual(scalar("SELECT count(*) FROM entry WHERE status <> 'posted' AND contract !~ '^c-'"), 0)

    def test_a_funding_that_is_refused_is_undone(self) -> None:
        for key in self.every_statement("refused", least=10):
            self.expire("contracts.fund", key)
            refused = self.player.refused(key)
            self.assertEqual((refused.status, refused.value["status"]), (409, "archived"))
            self.assertEqual(self.player.refused(key).body, refused.body)
            self.assertEqual([seen.path for seen in self.outside.done(key)], ["/accounts"])
            self.assertEqual(self.undone(key), ["fund", "account", "entries"])

    def undone(self, contract: str) -> list[str]:
        """What is to be undone, the newest first."""
        peek = """SELECT array_agg(payload ->> 'undo' ORDER BY event_id)
                    FROM once.outbox_peek('undo', max => 10000) WHERE payload ->> 'contract' = %s"""
        return scalar(peek, contract)

    def events(self, topic: str, text: str) -> int:
        peek = "SELECT count(*) FROM once.outbox_peek(%s, max => 10000) WHERE payload::text LIKE %s"
        return scalar(peek, topic, f"%{text}%")

    def pending(self, topic: str) -> int:
        return scalar("SELECT count(*) FROM once.outbox_peek(%s, max => 10000)", topic)

    def job(self, job: str) -> tuple[str, int, list[str]]:
        look = """SELECT status, points, (SELECT array_agg(settled) FROM batch_item WHERE job_id = batch_job.id)
                    FROM batch_job JOIN wallet USING (customer) WHERE id = %s"""
        with admin() as conn:
            return conn.execute(look, (job,)).fetchone()

    def artifacts(self, job: str, item: int) -> Any:
        return Path(self.store, job, str(item)).glob("*")


if __name__ == "__main__":
    unittest.main()
