"""One order and one charge, whichever process dies, whichever statement or answer is lost."""

import http.client
import itertools
import json
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from harness import (
    POOLER_URL,
    URL,
    Program,
    admin,
    new_key,
    order,
    post,
    post_until_answered,
    scalar,
    stored,
    until,
    wait_for_lock,
)
from outside import Outside
from proxy import Proxy

# The number of an order's statements, from the claim to the COMMIT with the answer. The tests check it.
STATEMENTS = 13
# How often an attempt asks the bank.
TRIES = 4


class Orders(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        scalar("""SELECT once.scope_set('orders.create', '{"lease": "1 s"}')""")
        scalar("SELECT once.subscriber_set('orders', 'test')")
        cls.outside = Outside()
        cls.enterClassContext(cls.outside)
        cls.a = cls.enterClassContext(cls.service())
        cls.b = cls.enterClassContext(cls.service())

    @classmethod
    def service(cls, **environment: str) -> Program:
        return Program("orders.py", BANK_URL=cls.outside.url, **environment)

    def assert_done_once(self, key: str, user: str = "ada") -> None:
        """Asserts one order, one charge, one event."""
        with admin() as conn:
            orders = conn.execute(
                "SELECT order_id::text, status FROM orders WHERE idempotency_key = %s", (stored(key, user),)
            ).fetchall()
            self.assertEqual([status for _, status in orders], ["paid"])
            take = "SELECT token, payload::text FROM once.outbox_take('orders', 'test', 1000)"
            while taken := conn.execute(take).fetchall():
                self.events.extend(payload for _, payload in taken)
                conn.execute("SELECT once.outbox_ack('orders', 'test', %s)", (taken[0][0],))
        ((order_id, _),) = orders
        self.assertEqual(len(self.outside.done(order_id)), 1)
        self.assertEqual(len([event for event in self.events if order_id in event]), 1)

    events: list[str] = []

    def test_a_retry_gets_the_stored_answer(self) -> None:
        key = new_key()
        first, second = post(self.a, key, order()), post(self.b, key, order())
        self.assertEqual((first.status, first.replayed), (201, False))
        self.assertEqual((second.status, second.replayed, second.body), (201, True, first.body))
        self.assert_done_once(key)

    def test_an_answer_that_the_bank_lost_is_asked_for_again_with_the_same_key(self) -> None:
        key = new_key()
        self.outside.lose = TRIES + 2
        first = post(self.a, key, order())
        self.assertEqual((first.status, first.headers["Retry-After"]), (503, "1"))
        self.assertEqual(post_until_answered(self.b, key, order()).status, 201)
        order_id = scalar("SELECT order_id::text FROM orders WHERE idempotency_key = %s", stored(key))
        asked = self.outside.about(order_id)
        self.assertEqual((len(asked), len({seen.key for seen in asked})), (TRIES + 3, 1))
        self.assert_done_once(key)

    def test_a_client_that_hangs_up_gets_the_answer_when_it_comes_back(self) -> None:
        key, body = new_key(), order(item="hangs up")
        with self.outside.holding():
            asked = len(self.outside.requests)
            conn = http.client.HTTPConnection("127.0.0.1", self.a.port)
            conn.request("POST", "/orders", body, {"Idempotency-Key": key, "X-Forwarded-User": "ada"})
            until("the bank to be asked", lambda: len(self.outside.requests) > asked)
            conn.close()
        self.assertEqual(post_until_answered(self.b, key, body).status, 201)
        self.assert_done_once(key)

    def test_of_two_processes_with_one_key_at_once_one_works(self) -> None:
        key = new_key()
        with ThreadPoolExecutor() as threads:
            with self.outside.holding():
                asked = len(self.outside.requests)
                first = threads.submit(post, self.a, key, order())
                until("the bank to be asked", lambda: len(self.outside.requests) > asked)
                busy = post(self.b, key, order())
                self.assertEqual((busy.status, "Retry-After" in busy.headers), (409, True))
            self.assertEqual(first.result().status, 201)
        self.assertEqual(post(self.b, key, order()).body, first.result().body)
        self.assert_done_once(key)

    def test_a_crowd_with_one_key_gets_one_answer(self) -> None:
        key = new_key()
        with ThreadPoolExecutor(12) as threads:
            replies = list(threads.map(lambda n: post_until_answered([self.a, self.b][n % 2], key, order()), range(12)))
        self.assertEqual({(reply.status, reply.body) for reply in replies}, {(201, replies[0].body)})
        self.assertEqual(sum(not reply.replayed for reply in replies), 1)
        self.assert_done_once(key)

    def test_a_process_killed_at_any_statement_is_resumed_by_another(self) -> None:
        for arrives in (False, True):
            with self.subTest(arrives=arrives):
                keys = []
                while self.killed_at(len(keys) + 1, arrives, key := new_key()):
                    keys.append(key)
                self.assertEqual(len(keys), STATEMENTS)
                replies = [post_until_answered(self.a, key, order()) for key in keys]
                self.assertEqual({reply.status for reply in replies}, {201})
                # An answer to replay exists only if the last COMMIT was carried out.
                self.assertEqual([reply.replayed for reply in replies], [False] * (STATEMENTS - 1) + [arrives])
                for key, reply in zip(keys, replies, strict=True):
                    self.assertEqual(post(self.b, key, order()).body, reply.body)
                    self.assert_done_once(key)

    def killed_at(self, nth: int, arrives: bool, key: str) -> bool:
        """Sends an order to a process that is killed at its nth statement. False: it sent fewer statements."""
        with Proxy(URL) as proxy, ThreadPoolExecutor() as threads, self.service(PG_ONCE_URL=proxy.url) as doomed:
            proxy.cut(nth=nth, arrives=arrives, hold=True)
            reply = threads.submit(post, doomed, key, order())
            until("the statement", lambda: proxy.struck.is_set() or reply.done())
            doomed.process.kill()
            return proxy.struck.is_set()

    def test_any_statement_or_its_answer_may_be_lost(self) -> None:
        with Proxy(URL) as proxy, self.service(PG_ONCE_URL=proxy.url) as service:
            for arrives in (False, True):
                for nth in itertools.count(1):
                    key = new_key()
                    proxy.cut(nth=nth, arrives=arrives)
                    self.assertEqual(post(service, key, order()).status, 201, proxy.statements[-3:])
                    self.assert_done_once(key)
                    if not proxy.struck.is_set():  # the order has no nth statement
                        break
                self.assertEqual(nth, STATEMENTS + 1)

    def test_a_phase_whose_commit_was_not_answered_is_run_again_and_commits_once(self) -> None:
        for nth, call, times, claims in [(1, "key_advance(", 3, 2), (2, "key_complete(", 2, 1)]:
            with self.subTest(call), Proxy(URL) as proxy, self.service(PG_ONCE_URL=proxy.url) as service:
                key = new_key()
                proxy.cut("COMMIT", nth)
                self.assertEqual(post(service, key, order()).status, 201)
                # The first COMMIT ends the phase `started`. Its key_advance is sent again and gets ON006. Then `run`
                # claims the key again, and the work sends the third key_advance, to `charged`.
                # The second COMMIT ends the request. Its key_complete is sent again and gets ON006. The key is finished
                # by then. A release and a late heartbeat get ON006, too.
                self.assertEqual((proxy.count(call), set(proxy.refusals)), (times, {"ON006"}))
                self.assertEqual(proxy.count("key_claim("), claims)
                self.assert_done_once(key)

    def test_a_bank_slower_than_the_lease_is_waited_for(self) -> None:
        key = new_key()
        with ThreadPoolExecutor() as threads:
            with self.outside.holding():
                asked = len(self.outside.requests)
                first = threads.submit(post, self.a, key, order())
                until("the bank to be asked", lambda: len(self.outside.requests) > asked)
                end = time.monotonic() + 2.5  # longer than the lease of 1 s
                while time.monotonic() < end:
                    self.assertEqual(post(self.b, key, order()).status, 409)
                    time.sleep(0.1)
                self.assertEqual(len(self.outside.requests), asked + 1)
            self.assertEqual(first.result().status, 201)
        self.assert_done_once(key)

    def test_a_transaction_whose_backend_dies_is_begun_again(self) -> None:
        key = new_key()
        with ThreadPoolExecutor() as threads, admin() as conn:
            with conn.transaction():
                conn.execute("LOCK TABLE orders IN SHARE MODE")
                first = threads.submit(post, self.a, key, order())
                scalar("SELECT pg_terminate_backend(%s)", wait_for_lock())
            self.assertEqual(first.result().status, 201)
        self.assert_done_once(key)

    def test_another_request_under_the_same_key_is_422_and_learns_nothing(self) -> None:
        key = new_key()
        first = json.loads(post(self.a, key, order()).body)
        other = post(self.b, key, order(amount_cents=1))
        self.assertEqual(other.status, 422)
        self.assertNotIn(first["order_id"].encode(), other.body)
        # Spaces and the order of members do not matter.
        respelled = json.dumps(dict(reversed(json.loads(order()).items())), indent=2)
        self.assertEqual(post(self.b, key, respelled).status, 201)

    def test_bob_with_adas_key_and_body_runs_his_own_request_and_never_sees_her_answer(self) -> None:
        key = new_key()
        adas, bobs = post(self.a, key, order()), post(self.b, key, order(), user="bob")
        self.assertEqual([(reply.status, reply.replayed) for reply in (adas, bobs)], [(201, False)] * 2)
        self.assertNotEqual(json.loads(adas.body)["order_id"], json.loads(bobs.body)["order_id"])
        for user, first in [("ada", adas), ("bob", bobs)]:
            again = post(self.b, key, order(), user=user)
            self.assertEqual((again.replayed, again.body), (True, first.body))
            self.assert_done_once(key, user)

    def test_a_user_whose_name_has_a_slash_cannot_reach_the_key_of_another(self) -> None:
        key = new_key()
        post(self.a, f"x/{key}", order())
        for user in ("ada/x", "ada%2Fx"):
            reply = post(self.a, key, order(), user=user)
            self.assertEqual((reply.status, reply.replayed), (201, False))
        self.assert_done_once(f"x/{key}")

    def test_a_request_without_a_user_is_401(self) -> None:
        for user in (None, ""):
            self.assertEqual(post(self.a, new_key(), order(), user=user).status, 401)

    def test_an_answer_past_its_ttl_is_410(self) -> None:
        key = new_key()
        scalar("""SELECT once.scope_set('orders.create', '{"ttl": "500 ms"}')""")
        try:
            self.assertEqual(post(self.a, key, order()).status, 201)
            until("the answer to expire", lambda: post(self.b, key, order()).status == 410)
        finally:
            scalar("""SELECT once.scope_set('orders.create', '{"ttl": null}')""")
        self.assert_done_once(key)

    def test_a_request_without_a_key_or_an_order_is_400(self) -> None:
        asked = len(self.outside.requests)
        for key, body in [
            (None, order()),
            ("", order()),
            ('"open', order()),
            ("k" * 252, order()),
            (new_key(), "{"),
            (new_key(), "{}"),
            (new_key(), order(item="\0")),
            (new_key(), order(customer="")),
            (new_key(), order(customer="c" * 256)),
        ]:
            self.assertEqual(post(self.a, key, body).status, 400, (key, body))
        self.assertEqual(len(self.outside.requests), asked)

    def test_a_charge_that_the_bank_refuses_ends_the_key(self) -> None:
        key, body = new_key(), order(amount_cents=2_000_000)
        first, second = post(self.a, key, body), post(self.b, key, body)
        self.assertEqual((first.status, second.status, second.replayed), (402, 402, True))
        self.assertEqual(scalar("SELECT status FROM orders WHERE idempotency_key = %s", stored(key)), "refused")

    def test_a_redirect_is_no_answer_of_the_bank(self) -> None:
        key = new_key()
        self.outside.say = [("amount_cents", 302, {"Location": self.outside.url})] * TRIES
        self.assertEqual(post(self.a, key, order()).status, 503)
        error = scalar("SELECT last_error FROM once.key_get('orders.create', %s)", stored(key))
        self.assertEqual(error, "the other side says 302")
        self.assertEqual(post_until_answered(self.a, key, order()).status, 201)
        self.assert_done_once(key)

    def test_a_charge_that_the_bank_has_forgotten_waits_for_a_person(self) -> None:
        key = new_key()
        with self.service(BANK_REMEMBERS="0") as forgetful:
            self.outside.lose = TRIES
            self.assertEqual(post(forgetful, key, order()).status, 503)
            parked = post_until_answered(forgetful, key, order())
        self.assertEqual((parked.status, post(self.a, key, order()).status), (409, 409))
        status = "SELECT status FROM once.key_get('orders.create', %s)"
        self.assertEqual(scalar(status, stored(key)), "parked")
        # A person found out that the bank still knows the key, so a retry is safe.
        attempt = scalar("SELECT attempt FROM once.key_get('orders.create', %s)", stored(key))
        scalar("SELECT once.key_resolve('orders.create', %s, %s, 'retry')", stored(key), attempt)
        self.assertEqual(post(self.a, key, order()).status, 201)
        self.assert_done_once(key)

    def test_sigterm_finishes_the_request_at_hand(self) -> None:
        key = new_key()
        with ThreadPoolExecutor() as threads, self.service() as service:
            with self.outside.holding():
                asked = len(self.outside.requests)
                reply = threads.submit(post, service, key, order())
                until("the bank to be asked", lambda: len(self.outside.requests) > asked)
                service.process.terminate()
            self.assertEqual((reply.result().status, service.ended()), (201, 0))
        self.assert_done_once(key)

    @unittest.skipUnless(POOLER_URL, "PG_ONCE_POOLER_URL is not set")
    def test_all_of_it_works_through_pgbouncer(self) -> None:
        keys = [new_key() for _ in range(20)]
        with ThreadPoolExecutor(8) as threads, self.service(PG_ONCE_URL=POOLER_URL) as pooled:
            for replayed in (False, True):
                replies = list(threads.map(lambda key: post(pooled, key, order(customer=key)), keys))
                self.assertEqual({(reply.status, reply.replayed) for reply in replies}, {(201, replayed)})
        for key in keys:
            self.assert_done_once(key)


if __name__ == "__main__":
    unittest.main()
