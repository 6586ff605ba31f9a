"""Each event takes effect once at a receiver that dedupes, whichever process dies; dead letters can be listed."""

import email.utils
import itertools
import json
import signal
import time
import unittest

from harness import POOLER_URL, URL, Program, admin, new_key, order, post, scalar, until
from outside import Outside
from proxy import Proxy


class Relay(unittest.TestCase):
    def setUp(self) -> None:
        self.outside = Outside()
        self.enterContext(self.outside)
        self.topic = f"test {new_key()}"
        scalar("SELECT once.topic_set(%s, %s)", self.topic, '{"subscribers": ["webhooks"]}')
        self.options(backoff_base="20 ms", backoff_cap="50 ms", max_attempts=4)

    def options(self, **options: object) -> None:
        scalar("SELECT once.subscriber_set(%s, 'webhooks', %s)", self.topic, json.dumps(options))

    def emit(self, *numbers: int, order_key: str | None = None) -> list[int]:
        emit = "SELECT event_id FROM once.outbox_emit(%s, %s, order_key => %s)"
        return [scalar(emit, self.topic, f'{{"n":  "<{n}>", "x": 1.0}}', order_key) for n in numbers]

    def worker(self, lease: float = 60, **environment: str) -> Program:
        environment = {"WEBHOOK_URL": f"{self.outside.url}/webhook", "RELAY_LEASE_SECONDS": str(lease), **environment}
        return Program("relay.py", self.topic, "webhooks", **environment)

    def wait_until_done(self, *numbers: int) -> None:
        for n in numbers:
            until(f"event {n}", lambda: self.outside.done(f"<{n}>"))

    def left(self) -> int:
        """How many events a take finds an hour from now, after the end of all leases. The take is rolled back."""
        with admin() as conn, conn.transaction(force_rollback=True):
            conn.execute("SELECT set_config('once.fake_now', (clock_timestamp() + '1 h')::text, true)")
            return len(conn.execute("SELECT * FROM once.outbox_take(%s, 'webhooks', 100)", (self.topic,)).fetchall())

    def dead(self) -> list[tuple]:
        with admin() as conn:
            return conn.execute("SELECT event_id, kind FROM once.outbox_dead(%s, 'webhooks')", (self.topic,)).fetchall()

    def failed(self, event: int) -> list[str]:
        with admin() as conn:
            rows = conn.execute("SELECT kind FROM once.outbox_deliveries(%s, 'webhooks', %s)", (self.topic, event))
            return [kind for (kind,) in rows]

    def test_events_arrive_byte_for_byte_with_their_own_keys(self) -> None:
        self.emit(1, 2, 3)
        with self.worker():
            self.wait_until_done(1, 2, 3)
        self.assertEqual(
            {seen.body for seen in self.outside.requests}, {f'{{"n":  "<{n}>", "x": 1.0}}' for n in (1, 2, 3)}
        )
        self.assertEqual(len(self.outside.effects), 3)

    def test_an_order_that_is_paid_is_told_to_the_webhook(self) -> None:
        self.topic = "orders"
        with Program("orders.py", BANK_URL=self.outside.url) as orders:
            stored = json.loads(post(orders, new_key(), order(customer=new_key())).body)
        with self.worker():
            until(
                "the event", lambda: [seen for seen in self.outside.done(stored["order_id"]) if seen.path == "/webhook"]
            )

    def test_a_worker_killed_in_the_middle_of_a_batch_loses_nothing(self) -> None:
        numbers = range(1, 8)
        self.emit(*numbers)
        with self.outside.holding(after=3), self.worker(lease=1) as doomed:
            self.outside.wait_for(4, "<")  # the receiver acts on the fourth, and does not answer
            doomed.process.kill()
            self.assertEqual(doomed.ended(), -signal.SIGKILL)
        with self.worker(lease=1):
            self.wait_until_done(*numbers)
            self.outside.wait_for(len(numbers) + 1, "<")  # the fourth comes twice: it was not acked
        self.assertEqual(len(self.outside.effects), len(numbers))

    def test_a_lost_answer_is_delivered_again_with_the_same_key(self) -> None:
        (event,) = self.emit(1)
        self.outside.lose = 1
        with self.worker():
            self.outside.wait_for(2, "<1>")
        self.assertEqual((len(self.outside.effects), self.failed(event)), (1, ["transport"]))

    def test_an_ack_whose_answer_was_lost_is_sent_again_and_the_event_is_handled_once(self) -> None:
        self.emit(1, 2)
        with Proxy(URL) as proxy:
            proxy.cut("outbox_ack")
            with self.worker(PG_ONCE_URL=proxy.url) as worker:
                self.wait_until_done(1, 2)
                worker.process.terminate()
                self.assertEqual(worker.ended(), 0)
        self.assertEqual((proxy.count("outbox_ack"), proxy.refusals), (3, ["ON006"]))
        self.assertEqual((len(self.outside.requests), self.left()), (2, 0))

    def test_a_nack_whose_answer_was_lost_is_sent_again_and_counts_one_attempt(self) -> None:
        event, _ = self.emit(1, 2, order_key="a")
        self.outside.say = [("<1>", 503, {})]
        with Proxy(URL) as proxy:
            proxy.cut("outbox_nack")
            with self.worker(PG_ONCE_URL=proxy.url) as worker:
                self.wait_until_done(1, 2)
                worker.process.terminate()
                self.assertEqual(worker.ended(), 0)
        self.assertEqual((proxy.count("outbox_nack"), proxy.refusals), (2, ["ON006"]))
        self.assertEqual((self.failed(event), self.left()), (["http 503"], 0))

    def test_a_worker_killed_at_any_statement_loses_nothing(self) -> None:
        for statement, arrives in itertools.product(("outbox_take", "outbox_nack", "outbox_ack"), (False, True)):
            with self.subTest(statement, arrives=arrives), Proxy(URL) as proxy:
                self.setUp()
                self.emit(1, 2)
                self.outside.say = [("<1>", 503, {})]
                proxy.cut(statement, arrives=arrives, hold=True)
                with self.worker(lease=1, PG_ONCE_URL=proxy.url):
                    self.assertTrue(proxy.struck.wait(30))
                with self.worker(lease=1):
                    self.wait_until_done(1, 2)
                    until("both acks", lambda: self.left() == 0)
                self.assertEqual((len(self.outside.effects), self.dead()), (2, []))

    def test_failures_back_off_until_the_event_is_dead_and_a_redrive_delivers_it(self) -> None:
        (event,) = self.emit(1)
        self.outside.say = [("<1>", 503, {})] * 4
        with self.worker():
            self.assertEqual(until("the dead letter", self.dead), [(event, "http 503")])
            self.assertEqual(self.failed(event), ["http 503"] * 4)
            self.assertEqual(scalar("SELECT once.outbox_redrive(%s, 'webhooks')", self.topic), 1)
            self.wait_until_done(1)
        self.assertEqual(len({seen.key for seen in self.outside.requests}), 1)

    def test_never_is_dead_at_once(self) -> None:
        (event,) = self.emit(1)
        self.outside.say = [("<1>", 410, {})]
        with self.worker():
            self.assertEqual(until("the dead letter", self.dead), [(event, "never")])
        self.assertEqual(len(self.outside.requests), 1)

    def test_a_redirect_is_no_delivery(self) -> None:
        (event,) = self.emit(1)
        self.outside.say = [("<1>", 302, {"Location": self.outside.url})]
        with self.worker():
            self.wait_until_done(1)
        self.assertEqual(self.failed(event), ["http 302"])

    def test_retry_after_is_honoured(self) -> None:
        with self.worker():
            for n, (wait, ahead) in enumerate((("1", None), (None, 3), ("0", None), (None, -60))):
                wait = wait or email.utils.formatdate(time.time() + ahead, usegmt=True)
                self.outside.say = [(f"<{n}>", 429, {"Retry-After": wait})]
                self.emit(n)
                self.wait_until_done(n)
                first, second = (seen.at for seen in self.outside.requests if f"<{n}>" in seen.body)
                self.assertEqual(second - first >= 0.9, n < 2, wait)

    def test_a_failed_event_holds_back_those_behind_it_and_no_others(self) -> None:
        self.emit(1, 2, order_key="a")
        self.emit(3, order_key="b")
        self.outside.say = [("<1>", 503, {})]
        with self.worker():
            self.wait_until_done(1, 2, 3)
        came = [n for seen in self.outside.requests for n in "123" if f"<{n}>" in seen.body]
        self.assertEqual(sorted(came), ["1", "1", "2", "3"])
        self.assertEqual([n for n in came if n != "3"], ["1", "1", "2"])

    def test_a_receiver_slower_than_the_lease_is_waited_for(self) -> None:
        with self.worker(lease=1) as one, self.worker(lease=1) as other:
            with self.outside.holding():
                self.emit(1)
                self.outside.wait_for(1, "<1>")
                time.sleep(4)  # the lease is 1 s, and a second worker is idle
            for worker in (one, other):
                worker.process.terminate()
                self.assertEqual(worker.ended(), 0)
        self.assertEqual((len(self.outside.requests), self.left()), (1, 0))

    def test_sigterm_finishes_the_event_at_hand_and_gives_the_others_back(self) -> None:
        with self.worker() as worker:
            with self.outside.holding():
                emit = """SELECT count(once.outbox_emit(%s, '{"n": "<1>"}')) FROM generate_series(1, 5)"""
                scalar(emit, self.topic)
                self.outside.wait_for(1, "<")
                worker.process.terminate()
                self.assertEqual(worker.line(), "stopping")
            self.assertEqual(worker.ended(), 0)
        self.assertEqual(len(self.outside.requests), 1)
        with admin() as conn:
            left = conn.execute("SELECT attempt FROM once.outbox_take(%s, 'webhooks')", (self.topic,)).fetchall()
        self.assertEqual(left, [(1,)] * 4)  # due at once, and this take is attempt 1 again

    @unittest.skipUnless(POOLER_URL, "PG_ONCE_POOLER_URL is not set")
    def test_all_of_it_works_through_pgbouncer(self) -> None:
        numbers = range(100, 130)
        self.emit(*numbers)
        with self.worker(PG_ONCE_URL=POOLER_URL), self.worker(PG_ONCE_URL=POOLER_URL):
            self.wait_until_done(*numbers)
        self.assertEqual(len(self.outside.effects), len(numbers))


if __name__ == "__main__":
    unittest.main()
