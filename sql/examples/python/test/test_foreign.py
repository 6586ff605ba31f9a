"""A call to another service is retried while that can help; else it raises Retry, Refused or Unknown."""

import asyncio
import email.utils
import json
import os
import time
import unittest
import urllib.request
from datetime import timedelta
from typing import Any

import httpx
import psycopg
from harness import create_tables, new_key, scalar
from outside import Outside
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from pg_once import Refused, Retry, Unknown, claim, errors, foreign_call, idempotent, run
from pg_once.http import retry_after

URL = os.environ["PG_ONCE_ADMIN_URL"].replace("postgresql:", "postgresql+psycopg:")
ARGUMENTS = {"prepare_threshold": None}


class ForeignCall(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.outside = cls.enterClassContext(Outside())

    def setUp(self) -> None:
        self.key = new_key()

    def body(self) -> bytes:
        return json.dumps({"for": self.key}).encode()

    def say(self, *answers: tuple[int, dict[str, str]]) -> None:
        self.outside.say = [(self.key, status, headers) for status, headers in answers]

    def calls(self, dedupes: bool = True, **options: Any) -> list[Any]:
        """How the call ends through urllib, and through httpx in an async program."""
        headers = {"Idempotency-Key": self.key}

        @foreign_call(dedupes=dedupes, **options)
        def call() -> Any:
            request = urllib.request.Request(self.outside.url, self.body(), headers)
            with urllib.request.urlopen(request, timeout=10) as reply:
                return json.loads(reply.read())["charge_id"]

        @foreign_call(dedupes=dedupes, **options)
        async def acall() -> Any:
            async with httpx.AsyncClient() as client:
                reply = await client.post(self.outside.url, content=self.body(), headers=headers)
                reply.raise_for_status()
                return reply.json()["charge_id"]

        said, ends = list(self.outside.say), []
        for each in (call, lambda: asyncio.run(acall())):
            self.outside.say = list(said)
            try:
                ends.append(each())
            except (Retry, Refused, Unknown) as end:
                ends.append(end)
        return ends

    def asked(self) -> int:
        return len(self.outside.about(self.key))

    def test_a_failure_that_may_pass_is_tried_again_with_the_same_key(self) -> None:
        self.say((503, {}), (429, {"Retry-After": "0"}), (409, {}))
        first, second = self.calls()
        self.assertEqual((first, self.asked()), (second, 8))
        self.assertEqual(len(self.outside.done(self.key)), 1)

    def test_tries_that_are_used_up_are_left_to_the_next_attempt(self) -> None:
        self.say(*[(503, {})] * 3)
        for end in self.calls(tries=3):
            self.assertEqual((type(end), str(end), end.after), (Retry, "the other side says 503", None))
        self.assertEqual(self.asked(), 6)

    def test_a_final_no_is_final(self) -> None:
        self.say((402, {}))
        self.assertEqual([type(end) for end in self.calls()], [Refused, Refused])
        self.assertEqual(self.asked(), 2)

    def test_a_token_that_has_expired_refuses_no_order(self) -> None:
        self.say((401, {}), (401, {}))
        self.assertEqual([type(end) for end in self.calls(tries=2)], [Retry, Retry])

    def test_a_gateway_without_its_service_refuses_no_order(self) -> None:
        self.say((404, {}), (405, {}))
        for dedupes in (True, False):
            self.assertEqual(len(set(self.calls(dedupes))), 1)

    def test_it_waits_as_long_as_the_other_side_says_by_seconds_or_by_a_date(self) -> None:
        for value in ("1", None):
            date = email.utils.formatdate(time.time() + 2, usegmt=True)
            self.say((503, {"Retry-After": value or date}))
            began, asked = time.monotonic(), self.asked()
            self.calls(cap=3)
            self.assertGreater(time.monotonic() - began, 0.9, value or date)
            self.assertEqual(self.asked() - asked, 4)

    def test_a_long_wait_is_left_to_the_next_attempt(self) -> None:
        date = email.utils.formatdate(time.time() + 60, usegmt=True)
        self.say((429, {"Retry-After": date}))
        for end in self.calls():
            self.assertTrue(57 < end.after <= 60, end.after)
        self.assertEqual(self.asked(), 2)

    def test_without_an_answer_only_a_side_that_dedupes_is_asked_again(self) -> None:
        self.outside.lose = 1
        self.assertEqual(len(set(self.calls())), 1)
        self.assertEqual(self.asked(), 3)
        self.outside.lose = 2
        self.assertEqual([type(end) for end in self.calls(dedupes=False)], [Unknown, Unknown])
        self.say((500, {}))
        self.assertEqual([type(end) for end in self.calls(dedupes=False)], [Unknown, Unknown])
        self.assertEqual(self.asked(), 7)
        self.say((429, {}))  # nothing was done
        self.assertEqual(len(set(self.calls(dedupes=False))), 1)
        self.assertEqual(self.asked(), 11)

    def test_what_the_function_says_itself_stands(self) -> None:
        for said in (Refused("no"), Unknown("who knows"), errors.LeaseLost("lost")):

            @foreign_call(dedupes=True)
            def call(said: Exception = said) -> None:
                raise said

            with self.assertRaises(type(said)) as raised:
                call()
            self.assertIs(raised.exception, said)

    def test_a_value_that_is_no_wait_is_none(self) -> None:
        for value in ("", None, "soon", "-1", "Sun, 06 Nov 1994 08:49:37 GMT"):
            self.assertIsNone(retry_after(value), value)


class Waits(unittest.TestCase):
    def test_a_wait_of_nothing_or_beyond_all_measure_is_at_most_a_day(self) -> None:
        with psycopg.connect(os.environ["PG_ONCE_ADMIN_URL"], autocommit=True) as conn:
            for after in (0, -1, 1e14, timedelta(days=3_000_000)):
                lease = claim(conn, "waits", new_key(), {})
                lease.release(conn, "busy", after)
                within = "SELECT look_at <= clock_timestamp() + interval '1 day' FROM once.key WHERE key = %s"
                self.assertTrue(scalar(within, lease.key), after)


class Engines(unittest.TestCase):
    """An SQLAlchemy engine is usable wherever a pool is."""

    @classmethod
    def setUpClass(cls) -> None:
        create_tables("examples")

    def test_a_request_and_a_function_run_once(self) -> None:
        engine = create_engine(URL, connect_args=ARGUMENTS)
        self.addCleanup(engine.dispose)
        key, insert = new_key(), "INSERT INTO payment_made (customer, cents) VALUES (%s, 1) RETURNING cents"

        @idempotent(engine, "engines")
        def pay(conn: Any, customer: str) -> Any:
            return conn.execute(insert, (customer,)).fetchone()[0]

        self.assertEqual([pay(key, customer=key).body for _ in range(2)], ["1", "1"])
        self.assertEqual(scalar("SELECT count(*) FROM payment_made WHERE customer = %s", key), 1)
        self.assertEqual(engine.pool.checkedout(), 0)
        # The connections that other users of the engine get are not in autocommit mode.
        with engine.connect() as held:
            self.assertFalse(held.connection.driver_connection.autocommit)

    def test_a_connection_that_broke_is_replaced(self) -> None:
        engine = create_engine(URL, connect_args=ARGUMENTS, pool_size=1)
        self.addCleanup(engine.dispose)
        with engine.connect() as held:
            pid = held.connection.driver_connection.info.backend_pid
        scalar("SELECT pg_terminate_backend(%s, 10000)", pid)
        self.assertEqual(claim(engine, "engines", new_key(), {}).attempt, 1)

    def test_an_async_one_too(self) -> None:
        async def both() -> list[str]:
            engine = create_async_engine(URL, connect_args=ARGUMENTS)
            key = new_key()
            answers = [
                await run(engine, "engines", key, {}, lambda lease: lease.complete(engine, 201, {"n": lease.attempt}))
                for _ in range(2)
            ]
            await engine.dispose()
            return [answer.body for answer in answers]

        self.assertEqual(asyncio.run(both()), ['{"n": 1}'] * 2)

    def test_a_pool_without_a_connection_left_is_unavailable(self) -> None:
        engine = create_engine(URL, connect_args=ARGUMENTS, pool_size=1, max_overflow=0, pool_timeout=0.01)
        self.addCleanup(engine.dispose)
        with engine.connect() as held, self.assertRaises(errors.Unavailable):
            held.exec_driver_sql("SELECT 1")
            claim(engine, "engines", new_key(), {})


if __name__ == "__main__":
    unittest.main()
