"""The package by itself: errors by SQLSTATE, transactions, bytes."""

import unittest
import uuid
from decimal import Decimal

import psycopg
from harness import URL, admin, new_key, scalar
from proxy import Proxy

from pg_once import Connections, claim, errors, key_of_header, transaction
from pg_once.document import storable
from pg_once.http import Answer, wait_of_header
from pg_once.key import Replayed
from pg_once.outbox import NotDelivered

db = Connections(URL)


class Library(unittest.TestCase):
    def test_each_sqlstate_is_a_class_of_its_own(self) -> None:
        for state, expected in {
            "ON001": errors.LeaseLost,
            "ON002": errors.IllegalTransition,
            "ON003": errors.InvalidDefinition,
            "ON004": errors.UncoveredClaimState,
            "ON005": errors.TeardownIncomplete,
            "ON006": errors.AlreadyDone,
            "ON007": errors.WrongShard,
            "40001": errors.Conflict,
            "40P01": errors.Conflict,
            "55P03": errors.Conflict,
            "57P01": errors.Unavailable,
            "08006": errors.Unavailable,
            "22023": errors.InvalidArgument,
            "23505": errors.OnceError,
        }.items():
            with self.subTest(state), self.assertRaises(errors.OnceError) as raised:
                raise_it = f"DO $$BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{state}', HINT = 'do this'; END$$"
                transaction(db, lambda conn: conn.execute(raise_it))
            self.assertIs(type(raised.exception), expected)
            self.assertEqual((raised.exception.sqlstate, raised.exception.hint), (state, "do this"))

    def test_the_server_raises_them(self) -> None:
        lease = claim(db, "test", new_key(), "{}")
        lease.complete(db, 200, "{}")
        for body in ("{}", "[]"):
            with self.assertRaises(errors.AlreadyDone):
                lease.complete(db, 200, body)
        lease = claim(db, "test", new_key(), "{}")
        lease.release(db, "an error")
        with self.assertRaises(errors.LeaseLost):
            transaction(db, lambda conn: lease.advance(conn, "paid"))
        with self.assertRaises(errors.InvalidArgument):
            claim(db, "test", new_key(), "no json")

    def test_a_database_that_is_away_is_unavailable(self) -> None:
        nobody = Connections("postgresql://shop@127.0.0.1:1/shop")
        with self.assertRaises(errors.Unavailable) as raised:
            transaction(nobody, lambda conn: conn.execute("SELECT 1"))
        self.assertTrue(raised.exception.retryable)

    def test_a_transaction_that_lost_a_race_is_run_again(self) -> None:
        key, runs = new_key(), []
        insert = "INSERT INTO orders (idempotency_key, customer, item, amount_cents) VALUES (%s, 'ada', 'tea', 1)"
        with admin() as conn:
            conn.execute(insert, (key,))

        def work(conn: psycopg.Connection) -> None:
            conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            conn.execute("SELECT FROM orders")  # the snapshot
            if not runs:
                scalar("UPDATE orders SET item = 'milk' WHERE idempotency_key = %s RETURNING item", key)
            runs.append(len(runs))
            conn.execute("UPDATE orders SET amount_cents = amount_cents + 1 WHERE idempotency_key = %s", (key,))

        transaction(db, work)
        self.assertEqual(runs, [0, 1])
        self.assertEqual(scalar("SELECT amount_cents FROM orders WHERE idempotency_key = %s", key), 2)

    def test_a_phase_whose_commit_was_not_answered_is_run_again_and_commits_once(self) -> None:
        """Each run of the phase inserts another uuid, so that no constraint of the table would refuse a second row."""
        insert = """INSERT INTO orders (order_id, idempotency_key, customer, item, amount_cents)
                    VALUES (%s, %s, 'ada', 'tea', 1)"""
        for end, runs in [("phase", 1), ("advance", 2), ("complete", 2), ("abort", 2)]:
            with self.subTest(end), Proxy(URL) as proxy:
                through = Connections(proxy.url)
                key, ids = new_key(), []
                lease = claim(db, "test", key, "{}")

                def writes(conn: psycopg.Connection) -> None:
                    ids.append(uuid.uuid4())
                    conn.execute(insert, (ids[-1], key))

                def writes_and_end(conn: psycopg.Connection) -> None:
                    writes(conn)
                    if end == "advance":
                        lease.advance(conn, "created", "{}")
                    else:
                        getattr(lease, end)(conn, 201, "{}")

                proxy.cut("COMMIT")
                with self.assertRaises(errors.AlreadyDone):
                    if end == "phase":
                        lease.phase(through, "created", "{}", writes)
                    else:
                        lease.last_phase(through, writes_and_end)
                self.assertTrue(proxy.struck.is_set())
                self.assertEqual(len(ids), runs)
                with admin() as conn:
                    stored = conn.execute("SELECT order_id FROM orders WHERE idempotency_key = %s", (key,)).fetchall()
                self.assertEqual(stored, [(ids[0],)])

    def test_what_was_stored_comes_back_byte_for_byte(self) -> None:
        stored = '{"b": 1.0,  "a": 12345678901234567890.10, "b":"\\u00e9"}'
        key = new_key()
        lease = claim(db, "test", key, "{}")
        lease.advance(db, "paid", stored)
        lease.release(db, "an error")
        lease = claim(db, "test", key, "{}")
        self.assertEqual((lease.recovery_point, lease.state, lease.attempt), ("paid", stored, 2))
        lease.complete(db, 200, stored)
        self.assertEqual(claim(db, "test", key, "{}"), Replayed(Answer(200, stored)))

    def test_an_id_of_a_row_goes_in_as_what_it_is(self) -> None:
        number = uuid.uuid4()
        for column, stored, ids in [
            ("bigint", 4711, [4711, Decimal(4711), "4711"]),
            ("uuid", number, [number, str(number)]),
        ]:
            table = f"row_{column}"
            definition = {
                "machine": table,
                "table": table,
                "id": "id",
                "status": "status",
                "status_types": ["open", "paid"],
                "transitions": [{"from": ["open"], "to": "paid"}, {"from": ["paid"], "to": "open"}],
            }
            with admin() as conn, conn.transaction(force_rollback=True):
                conn.execute(f"CREATE TABLE {table} (id {column} PRIMARY KEY, status text NOT NULL DEFAULT 'open')")
                conn.execute(f"INSERT INTO {table} VALUES (%s)", (stored,))
                conn.execute("SELECT once.machine_define(%s)", (psycopg.types.json.Json(definition),))
                for n, row in enumerate(ids):
                    to = ["paid", "open"][n % 2]
                    moved = conn.execute("SELECT moved FROM once.transition(%s, %s, %s)", (table, row, to)).fetchone()
                    self.assertEqual(moved, (True,), repr(row))

    def test_the_key_of_a_header_may_be_quoted_or_bare(self) -> None:
        for value, key in [
            ('"a b"', "a b"),
            (" a-b ", "a-b"),
            (r'"a\"\\"', 'a"\\'),
            ('"open', None),
            ('"a" b', None),
            (r'"a\b"', None),
            ('""', None),
            ("", None),
            (None, None),
            ('a"b', None),
            ("k" * 256, None),
        ]:
            read = key_of_header("ada", value)
            self.assertEqual(read if key else read.status, f"ada/{key}" if key else 400, value)

    def test_a_kind_that_the_server_refuses_is_counted_as_an_error(self) -> None:
        for kind in ("expired", "", "x" * 101, "a\0", "\ud83d"):
            self.assertEqual(NotDelivered("no", kind).kind, "error")
        self.assertEqual(NotDelivered("no", "timeout").kind, "timeout")
        self.assertEqual(storable("half an emoji: \ud83d\0"), "half an emoji: ?")

    def test_a_wait_of_a_header_is_bounded(self) -> None:
        for value, seconds in [
            ("wait=3", 3),
            ('return=minimal; wait=1, WAIT = "4"; x=y', 4),
            ("wait=2, wait=9", 2),
            ("respond-async, wait=60", 10),
            ("wait=soon", 0),
            ("wait", 0),
            ("", 0),
            (None, 0),
        ]:
            self.assertEqual(wait_of_header(value, 10), seconds, value)

    def test_no_two_users_share_a_key(self) -> None:
        pairs = [("ada", "x/k"), ("ada/x", "k"), ("ada%2Fx", "k"), ("ada%", "2Fx/k")]
        self.assertEqual(len({key_of_header(user, value) for user, value in pairs}), len(pairs))
        self.assertEqual([key_of_header(user, "k").status for user in (None, "", " ")], [401] * 3)
        # 1 to 255 characters, the user's name included.
        self.assertEqual(key_of_header("ada", "k" * 251), "ada/" + "k" * 251)
        self.assertEqual(key_of_header("ada", "k" * 252).status, 400)


if __name__ == "__main__":
    unittest.main()
