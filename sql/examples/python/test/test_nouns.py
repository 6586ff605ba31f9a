"""The calls of every noun answer the same in a sync and in an async program."""

import asyncio
import itertools
import json
import logging
import os
import threading
import time
import unittest
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import psycopg
from harness import admin, create_tables, new_key, scalar, until
from proxy import Proxy
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from pg_once import (
    Answer,
    AsyncConnections,
    Cancelling,
    Connections,
    Lease,
    Never,
    NotDelivered,
    Refused,
    Retry,
    Row,
    Shards,
    Subscriber,
    Unknown,
    act,
    action,
    cancel,
    claim,
    complete_abandoned,
    consume,
    emit,
    errors,
    idempotent,
    inbox,
    key,
    run,
    run_failing_open,
    shard,
    shard_of,
    teardown,
    transaction,
    work,
)

URL = os.environ["PG_ONCE_ADMIN_URL"]
NOBODY = "postgresql://nobody@127.0.0.1:1/nothing"
db, adb = Connections(URL), AsyncConnections(URL)


def both(call: Callable[[Any], Any]) -> list[Any]:
    """The results of call(pool) with a sync pool and with an async pool."""

    async def awaited() -> Any:
        return await call(adb)

    return [call(db), asyncio.run(awaited())]


def setUpModule() -> None:
    create_tables("billing")
    create_tables("batch_job")
    with admin() as conn:
        conn.execute("""SELECT once.scope_set('nouns', '{"keep_request": true, "lease": "10 s"}')""")
        conn.execute("SELECT once.topic_set('nouns'), once.topic_set('handled')")
        conn.execute(
            """SELECT once.subscriber_set('nouns', 'default', '{"backoff_base": "1 ms", "max_attempts": 2}')"""
        )
        conn.execute("CREATE TABLE noted (what text NOT NULL, alone text UNIQUE)")


def note(conn: Any, what: str, unique: bool = False) -> Any:
    return conn.execute("INSERT INTO noted VALUES (%s, %s)", (what, what if unique else None))


def noted(what: str) -> int:
    return scalar("SELECT count(*) FROM noted WHERE what = %s", what)


class Keys(unittest.TestCase):
    def test_a_claim_tells_each_outcome(self) -> None:
        for on in (db, adb):
            with self.subTest(on):
                ask = self.asker(on)
                name, outcomes = new_key(), []
                lease = ask(claim, "nouns", name, {"a": 1})
                outcomes += [lease, ask(claim, "nouns", name, {"a": 1}), ask(claim, "nouns", name, {"a": 2})]
                ask(lease.release, "an error")
                again = ask(claim, "nouns", name, {"a": 1.0})
                self.assertTrue(again.resumed)
                ask(again.park, "nobody knows")
                outcomes.append(ask(claim, "nouns", name, {"a": 1}))
                ask(key.resolve, "nouns", name, 2, "complete", Answer(201, "[1.0]", {"Location": "/1"}))
                outcomes.append(ask(claim, "nouns", name, {"a": 1}))
                kinds = [key.Lease, key.InProgress, key.Mismatched, key.Parked, key.Replayed]
                self.assertEqual([type(outcome) for outcome in outcomes], kinds)
                self.assertEqual(outcomes[-1].answer, Answer(201, "[1.0]", {"Location": "/1"}))
                self.assertLessEqual(outcomes[1].retry_after, 1)
                with self.assertRaises(errors.LeaseLost):
                    ask(lease.complete, 200)

    def asker(self, on: Any) -> Callable[..., Any]:
        if on is db:
            return lambda face, *args, **kwargs: face(on, *args, **kwargs)
        return lambda face, *args, **kwargs: asyncio.run(face(on, *args, **kwargs))

    def test_a_lease_advances_extends_and_remembers_its_steps(self) -> None:
        for on in (db, adb):
            with self.subTest(on):
                ask, name = self.asker(on), new_key()
                lease = ask(claim, "nouns", name)
                self.assertGreater(ask(lease.advance, "half", {"n": 1}, lease=60), 50)
                self.assertGreater(ask(lease.extend, 120), 110)
                step = ask(lease.step, "mail", on_abort={"topic": "nouns", "payload": {"undo": name}})
                self.assertEqual((step.done, step.derived_key), (False, ask(key.derive, "nouns", name, "mail")))
                self.assertEqual(ask(lease.rotate, "mail", 1), 2)
                self.assertEqual(ask(lease.step_done, "mail", {"sent": True}).result, '{"sent": true}')
                self.assertEqual(ask(lease.step, "mail").value, {"sent": True})
                self.assertEqual(ask(lease.abort, 409, {"title": "no"}, {"X": "y"}).status, 409)
                self.assertEqual(ask(claim, "nouns", name).answer.headers, {"X": "y"})

    def test_a_fingerprint_stands_for_a_request(self) -> None:
        name = new_key()
        lease = claim(db, "nouns", name, fingerprint=b"x" * 32, lease=5, ttl=60)
        self.assertIsInstance(lease, Lease)
        self.assertIsInstance(claim(db, "nouns", name, fingerprint=b"y" * 32), key.Mismatched)

    def test_run_does_what_the_work_raises(self) -> None:
        for error, status, stored in [
            (Retry("later", 0.01), 503, "released"),
            (Refused("no", 402), 402, "finished"),
            (Unknown("lost"), 409, "parked"),
            (errors.LeaseLost("of an action"), 409, "released"),
            (ZeroDivisionError(), None, "released"),
        ]:
            for on in (db, adb):
                with self.subTest(repr(error), on=on):
                    name = new_key()

                    def fails(_: Lease) -> Answer:
                        raise error

                    try:
                        answer = self.asker(on)(run, "nouns", name, {}, fails)
                    except ZeroDivisionError:
                        answer = Answer(None, "")
                    self.assertEqual(answer.status, status)
                    self.assertEqual(scalar("SELECT status FROM once.key_get('nouns', %s)", name), stored)

    def test_a_lease_that_is_lost_before_the_end_is_stored_is_a_request_in_progress(self) -> None:
        for error in (Refused("no"), Unknown("nobody knows")):

            def loses(lease: Lease) -> Answer:
                scalar("SELECT once.key_expire('nouns', %s)", lease.key)
                claim(db, "nouns", lease.key, {})
                raise error

            answer = run(db, "nouns", new_key(), {}, loses)
            self.assertEqual((answer.status, answer.headers.get("Retry-After")), (409, "1"), error)

    def test_a_transaction_that_cannot_commit_is_an_error_whatever_was_caught(self) -> None:
        def writes(conn: Any) -> None:
            note(conn, what)
            with suppress(psycopg.errors.DivisionByZero):
                conn.execute("SELECT 1 / 0")

        async def writes_async(conn: Any) -> None:
            await note(conn, what)
            with suppress(psycopg.errors.DivisionByZero):
                await conn.execute("SELECT 1 / 0")

        for on, does in ((db, writes), (adb, writes_async)):
            name, what = new_key(), new_key()
            lease = claim(db, "nouns", name)
            with self.assertRaisesRegex(errors.OnceError, "rolled back"):
                self.asker(on)(lease.phase, "half", {}, does)
            lease.release(db, "an error")
            self.assertEqual((claim(db, "nouns", name).recovery_point, noted(what)), ("started", 0))
        with self.assertRaises(errors.Unavailable):
            transaction(db, lambda conn: conn.close())

    def test_work_that_forgets_its_answer_is_told_so(self) -> None:
        with self.assertRaisesRegex(TypeError, "lease.complete"):
            run(db, "nouns", new_key(), {}, lambda lease: None)

    def test_a_duplicate_that_waits_gets_the_first_answer(self) -> None:
        async def crowd() -> list[Answer]:
            name, ran = new_key(), []

            async def once(lease: Lease) -> Answer:
                ran.append(lease)
                await asyncio.sleep(0.3)
                return await lease.complete(adb, 201, '{"n":  1.0}')

            answers = await asyncio.gather(*(run(adb, "nouns", name, {}, once, wait=10) for _ in range(12)))
            self.assertEqual(len(ran), 1)
            return answers

        answers = asyncio.run(crowd())
        self.assertEqual({(answer.status, answer.body) for answer in answers}, {(201, '{"n":  1.0}')})
        self.assertEqual(sum("Idempotent-Replayed" in answer.headers for answer in answers), 11)

    def test_a_heart_beats_while_the_work_runs(self) -> None:
        async def slow(lease: Lease) -> Answer:
            await asyncio.sleep(1.5)
            return await lease.complete(adb, 200)

        def slow_sync(lease: Lease) -> Answer:
            time.sleep(1.5)
            return lease.complete(db, 200)

        scalar("""SELECT once.scope_set('beating', '{"lease": "500 ms"}')""")
        for call in (
            lambda name: run(db, "beating", name, {}, slow_sync),
            lambda name: asyncio.run(run(adb, "beating", name, {}, slow)),
        ):
            name, ended = new_key(), []
            thread = threading.Thread(target=lambda: ended.append(call(name).status))
            thread.start()
            until("the claim", lambda: scalar("SELECT count(*) FROM once.key_get('beating', %s)", name))
            end = time.monotonic() + 1.2
            while time.monotonic() < end:
                self.assertIsInstance(claim(db, "beating", name, {}), key.InProgress)
                time.sleep(0.05)
            thread.join()
            self.assertEqual(ended, [200])

    def test_a_heartbeat_extends_by_the_lease_that_was_asked_for(self) -> None:
        left = []

        def beats(lease: Lease) -> Answer:
            time.sleep(1.5)
            left.append(claim(db, "nouns", lease.key, {}).lease_left)  # the scope's lease is 10 s
            return lease.complete(db, 200)

        run(db, "nouns", new_key(), {}, beats, lease=3)
        row = Row("billing", scalar("INSERT INTO billing (customer, total) VALUES ('ada', 70) RETURNING id"))

        def acts(_: Any) -> None:
            time.sleep(1.5)
            left.append(row.claim(db, "close", "clerk").lease_left)  # billing.json gives close a lease of 2 min

        act(db, row, "close", acts, requester="clerk", lease=3)
        self.assertEqual(len(left), 2)
        for seconds in left:
            self.assertTrue(1.6 < seconds <= 3, left)

    def test_a_completer_finishes_what_no_client_comes_back_for_and_holds_one_key_at_a_time(self) -> None:
        running = "SELECT count(*) FROM once.key_list('left', in_status => 'running')"

        async def finish_async(lease: Lease) -> Answer:
            return await finish(lease)

        def finish(lease: Lease) -> Any:
            seen.append((json.loads(lease.request or "{}").get("for"), scalar(running)))
            return lease.complete(on, 200)

        for on, does in ((db, finish), (adb, finish_async)):
            names, seen = self.abandoned(3, "left"), []
            done = complete_abandoned(on, "left", does)
            self.assertEqual(done if on is db else asyncio.run(done), 3)
            self.assertEqual(seen, [(name, 1) for name in names])
            self.assertIsInstance(claim(db, "left", names[0], {"for": names[0]}), key.Replayed)

    def abandoned(self, number: int, scope: str, attempts: int = 1) -> list[str]:
        """Keys that clients claimed `attempts` times and then abandoned. Turns logging off for the test."""
        logging.disable()
        self.addCleanup(logging.disable, logging.NOTSET)
        scalar("""SELECT once.scope_set(%s, '{"keep_request": true}')""", scope)
        names = [new_key() for _ in range(number)]
        with admin() as conn:
            for name in names * attempts:
                claim(conn, scope, name, {"for": name}).release(conn, "died")
        return names

    def test_a_completer_leaves_a_key_that_keeps_failing_for_longer_each_time(self) -> None:
        for failure in (
            Retry("the bank is away"),
            Retry("the bank is away", 0.01),
            ZeroDivisionError(),
            errors.Unavailable("the database is away"),
        ):

            def fails(_: Lease) -> Answer:
                raise failure

            for attempt, longest in ((2, 1), (3, 2), (10, 256), (11, 300)):
                (name,) = self.abandoned(1, "failing", attempts=attempt - 1)
                begin = scalar("SELECT clock_timestamp()")
                self.assertEqual(complete_abandoned(db, "failing", fails), 0)
                due = scalar("SELECT look_at FROM once.key WHERE key = %s", name)
                least, most = due - timedelta(seconds=longest), due - timedelta(seconds=longest / 2)
                self.assertTrue(begin <= most and least <= scalar("SELECT clock_timestamp()"), (failure, attempt, due))
                scalar("SELECT once.key_forget('failing', %s)", name)

    def test_a_client_waits_longer_after_each_failure(self) -> None:
        (name,) = self.abandoned(1, "failing", attempts=6)

        def fails(_: Lease) -> Answer:
            raise Retry("the bank is away")

        wait = int(run(db, "failing", name, {"for": name}, fails).headers["Retry-After"])
        self.assertTrue(32 <= wait <= 64, wait)

    def test_a_client_waits_at_most_a_day(self) -> None:
        def fails(_: Lease) -> Answer:
            raise Retry("the bank is away", 1e9)

        self.assertEqual(run(db, "nouns", new_key(), {}, fails).headers["Retry-After"], "86400")

    def test_an_error_after_the_answer_was_committed_is_logged(self) -> None:
        def fails_after_the_answer(lease: Lease) -> Answer:
            lease.complete(db, 201)
            return transaction(db, lambda conn: conn.execute("SELECT 1 / 0"))

        with self.assertLogs("pg_once", "WARNING") as logs:
            self.assertEqual(run(db, "nouns", new_key(), {}, fails_after_the_answer).status, 201)
        self.assertIn("division by zero", logs.output[-1])

    def test_a_completer_counts_the_keys_that_have_their_answer(self) -> None:
        ends: list[Any] = [Retry("later", 60), Refused("no"), Unknown("lost"), ZeroDivisionError(), 200]
        names = dict(zip(self.abandoned(5, "counted"), ends, strict=True))

        def end(lease: Lease) -> Answer:
            if isinstance(names[lease.key], Exception):
                raise names[lease.key]
            return lease.complete(db, names[lease.key])

        self.assertEqual(complete_abandoned(db, "counted", end), 2)
        with Proxy(URL) as proxy:
            self.abandoned(1, "unanswered")
            proxy.cut("COMMIT")
            through = Connections(proxy.url)
            finish = lambda lease: lease.last_phase(through, lambda conn: lease.complete(conn, 201))
            self.assertEqual((complete_abandoned(db, "unanswered", finish), proxy.struck.is_set()), (1, True))

    def test_the_work_goes_on_without_the_database_only_where_it_is_asked_to(self) -> None:
        def ran(lease: Lease | None) -> Answer:
            return Answer(200, '"open"') if lease is None else lease.complete(db, 200, '"kept"')

        told: list[errors.OnceError] = []
        with self.assertRaises(errors.Unavailable):
            run(Connections(NOBODY), "nouns", new_key(), {}, ran)
        self.assertEqual(run_failing_open(Connections(NOBODY), "nouns", new_key(), {}, ran, told.append).body, '"open"')
        self.assertEqual([type(error) for error in told], [errors.Unavailable])
        self.assertEqual(run_failing_open(db, "nouns", new_key(), {}, ran, told.append).body, '"kept"')
        self.assertEqual(len(told), 1)

    def test_a_decorated_function_runs_once_for_each_key(self) -> None:
        @idempotent(db, "nouns", status=201)
        def make(conn: Any, what: str, times: int = 1) -> dict:
            note(conn, what)
            return {"what": what, "times": times}

        @idempotent(adb, "nouns")
        async def make_async(conn: Any, what: str) -> Answer:
            await note(conn, what)
            return Answer(202, json.dumps(what))

        name, what = new_key(), new_key()
        first, again = make(name, what, times=2), make(name, what, 2)
        self.assertEqual((first.status, first.body, noted(what)), (201, again.body, 1))
        self.assertEqual(again.headers, {"Idempotent-Replayed": "true"})
        self.assertEqual(make(name, what).status, 422)
        name, what = new_key(), new_key()
        self.assertEqual([asyncio.run(make_async(name, what)).status for _ in range(2)], [202, 202])
        self.assertEqual(noted(what), 1)

    def test_a_decorated_function_whose_commit_is_not_answered_commits_once(self) -> None:
        # With a unique column the repeat gets 23505 before it is told that the key is finished.
        for nth, unique in itertools.product((1, 2), (False, True)):
            with self.subTest(nth, unique=unique), Proxy(URL) as proxy:
                through = [Connections(proxy.url), AsyncConnections(proxy.url)][nth - 1]
                what = new_key()

                def made(conn: Any) -> Any:
                    return note(conn, what, unique)

                async def made_async(conn: Any) -> None:
                    await note(conn, what, unique)

                function = idempotent(through, "nouns")([lambda conn: made(conn) and None, made_async][nth - 1])
                proxy.cut("COMMIT")
                answer = function(new_key())
                self.assertEqual((asyncio.run(answer) if nth == 2 else answer).status, 200)
                self.assertEqual((noted(what), proxy.struck.is_set()), (1, True))


class Alchemy(unittest.TestCase):
    engine = create_engine(URL.replace("postgresql:", "postgresql+psycopg:"))

    def test_an_answer_commits_with_what_a_session_wrote(self) -> None:
        for commits in (False, True):
            name, what = new_key(), new_key()
            lease = claim(db, "nouns", name)
            with Session(self.engine) as session:
                session.execute(text("INSERT INTO noted VALUES (:what)"), {"what": what})
                lease.complete(session, 201, {"what": what})
                emit(session, "nouns", {"what": what}, dedupe_key=what)
                if commits:
                    session.commit()
            found = claim(db, "nouns", name)
            self.assertEqual((noted(what), isinstance(found, key.Replayed)), (int(commits), commits))

    def test_what_opens_a_transaction_of_its_own_refuses_a_session(self) -> None:
        lease = claim(db, "nouns", new_key())
        with Session(self.engine) as session, self.assertRaises(TypeError):
            lease.phase(session, "half", {}, lambda conn: None)

    def test_a_second_answer_undoes_what_a_session_wrote(self) -> None:
        name, what = new_key(), new_key()
        lease = claim(db, "nouns", name)
        lease.complete(db, 200)
        with self.assertRaises(errors.AlreadyDone), Session(self.engine) as session, session.begin():
            session.execute(text("INSERT INTO noted VALUES (:what)"), {"what": what})
            lease.complete(session, 200)
        self.assertEqual(noted(what), 0)

    def test_a_commit_of_a_session_that_is_not_answered_is_gone_behind(self) -> None:
        with Proxy(URL) as proxy:
            engine = create_engine(proxy.url.replace("postgresql:", "postgresql+psycopg:"))
            name, what = new_key(), new_key()

            def made(lease: Lease) -> Answer:
                with Session(engine) as session, session.begin():
                    session.execute(text("INSERT INTO noted VALUES (:what)"), {"what": what})
                    return lease.complete(session, 201, '{"n":  1}')

            with engine.connect():
                proxy.cut("COMMIT")
                answer = run(db, "nouns", name, {}, made)
            engine.dispose()
        self.assertEqual((answer.status, answer.body, noted(what)), (201, '{"n":  1}', 1))
        self.assertTrue(proxy.struck.is_set())


class Outbox(unittest.TestCase):
    def test_all_arguments_of_emit_arrive(self) -> None:
        scalar("SELECT once.topic_set('arguments')")
        subscriber = Subscriber("arguments")
        first = emit(db, "arguments", '{"n":  1.0}', order_key="a", dedupe_key="d", headers={"h": 1})
        again = emit(db, "arguments", {"n": 2}, dedupe_key="d")
        self.assertEqual((again.event_id, first.emitted, again.emitted), (first.event_id, True, False))
        emit(db, "arguments", {"n": 3}, delay=3600)
        (event,) = subscriber.take(db, 10, 30)
        self.assertEqual((event.payload, event.order_key, event.headers), ('{"n":  1.0}', "a", '{"h": 1}'))
        self.assertGreater(subscriber.extend(db, event.token, 60), 50)
        (failed,) = subscriber.nack(db, event.token, [event.event_id], "no", "never")
        self.assertTrue(failed.dead)
        (dead,) = subscriber.dead(db)
        self.assertEqual((dead.event_id, dead.kind, dead.payload), (event.event_id, "never", '{"n":  1.0}'))
        self.assertEqual(subscriber.redrive(db, [event.event_id]), 1)
        (event,) = subscriber.take(db)
        subscriber.nack(db, event.token, None, "no", "never")
        self.assertEqual(subscriber.discard(db, [event.event_id]), 1)
        self.assertEqual(subscriber.dead(db), [])

    def test_a_worker_delivers_retries_and_gives_up(self) -> None:
        for kind in ("sync", "async"):
            topic = f"worker {kind}"
            scalar("SELECT once.topic_set(%s)", topic)
            scalar(
                """SELECT once.subscriber_set(%s, 'default', '{"backoff_base": "1 ms", "max_attempts": 2}')""", topic
            )
            for n in range(7):
                emit(db, topic, n)
            came: list[int] = []

            def deliver(event: Any) -> None:
                came.append(event.value)
                if event.value == 1:
                    raise NotDelivered("later", after=0.01)
                if event.value == 2:
                    raise Never("no")
                if event.value == 3 and event.attempt == 1:
                    raise ZeroDivisionError
                # The exceptions of a foreign call.
                if event.value == 4:
                    raise Refused("no")
                if event.value == 5:
                    raise Unknown("nobody knows")
                if event.value == 6 and event.attempt == 1:
                    raise Retry("later", 0.01)

            async def deliver_async(event: Any) -> None:
                await asyncio.sleep(0)
                deliver(event)

            def deliver_all() -> bool:
                if kind == "sync":
                    work(db, Subscriber(topic), deliver)
                else:
                    asyncio.run(work(adb, Subscriber(topic), deliver_async))
                return len(came) == 10

            until("the events", deliver_all)
            self.assertEqual(sorted(came), [0, 1, 1, 2, 3, 3, 4, 5, 6, 6])
            self.assertEqual(len(Subscriber(topic).dead(db)), 4)

    def test_a_handler_in_the_acks_transaction_writes_once(self) -> None:
        """The COMMIT is carried out and not answered: the repeated transaction gets ON006 and is rolled back."""
        for kind in ("sync", "async"):
            with self.subTest(kind), Proxy(URL) as proxy:
                what = new_key()
                emit(db, "handled", {"what": what})

                def handle(conn: Any, event: Any) -> Any:
                    return note(conn, event.value["what"])

                proxy.cut("COMMIT")
                if kind == "sync":
                    work(Connections(proxy.url), Subscriber("handled"), handle, here=True)
                else:
                    asyncio.run(work(AsyncConnections(proxy.url), Subscriber("handled"), handle, here=True))
                self.assertEqual((noted(what), proxy.refusals), (1, ["ON006"]))

    def test_an_error_of_a_handler_in_the_acks_transaction_is_that_events_alone(self) -> None:
        for on in (db, adb):
            topic = f"own errors {on is db}"
            scalar("SELECT once.topic_set(%s)", topic)
            scalar("""SELECT once.subscriber_set(%s, 'default', '{"max_attempts": 1}')""", topic)
            for state in ("ON001", "ON006"):
                emit(db, topic, {"state": state})

            def handle(conn: Any, event: Any) -> Any:
                return conn.execute(f"DO $$ BEGIN RAISE SQLSTATE '{event.value['state']}'; END $$")

            done = work(on, Subscriber(topic), handle, here=True)
            if on is adb:
                asyncio.run(done)
            dead = sorted((one.kind, one.error) for one in Subscriber(topic).dead(db))
            self.assertEqual(dead, [("exception", "AlreadyDone('ON006')"), ("exception", "LeaseLost('ON001')")])

    def test_a_handler_may_ack_its_event_itself(self) -> None:
        scalar("SELECT once.topic_set('own acks')")
        subscriber, came = Subscriber("own acks"), []
        for n, order_key in ((1, "a"), (2, "a"), (3, None)):
            emit(db, "own acks", n, order_key=order_key)

        def deliver(event: Any) -> None:
            came.append(event.value)
            self.assertEqual(subscriber.ack(db, event.token, [event.event_id]), 1)
            if event.value == 1:
                raise ZeroDivisionError

        work(db, subscriber, deliver)
        self.assertEqual((sorted(came), subscriber.dead(db), subscriber.take(db)), ([1, 2, 3], [], []))

    def test_a_worker_outlives_a_database_in_trouble_but_no_missing_topic(self) -> None:
        class Full(Connections):
            def connection(self) -> Any:
                if failures:
                    raise failures.pop()
                return super().connection()

        failures, stop = [psycopg.errors.DiskFull("no space left")], threading.Event()
        scalar("SELECT once.topic_set('in trouble')")
        emit(db, "in trouble", 1)
        work(Full(URL), Subscriber("in trouble"), lambda event: stop.set(), stop)
        self.assertEqual((failures, Subscriber("in trouble").take(db)), ([], []))
        with self.assertRaises(errors.OnceError):
            work(db, Subscriber("no such topic"), print, threading.Event())

    def test_an_async_worker_stops_when_it_is_told(self) -> None:
        async def stopped() -> None:
            stop = asyncio.Event()
            task = asyncio.create_task(work(adb, Subscriber("nouns"), lambda event: None, stop))
            await asyncio.sleep(0.2)
            stop.set()
            await asyncio.wait_for(task, 5)

        asyncio.run(stopped())


class Inbox(unittest.TestCase):
    def test_a_message_is_handled_once(self) -> None:
        message, what = new_key(), new_key()

        def handle(conn: Any) -> dict:
            note(conn, what)
            return {"left": 7}

        async def handle_async(conn: Any) -> None:
            raise AssertionError("a duplicate is not handled")

        self.assertEqual([consume(db, "nouns", message, handle) for _ in range(2)], [{"left": 7}] * 2)
        self.assertEqual(asyncio.run(consume(adb, "nouns", message, handle_async)), {"left": 7})
        self.assertEqual(noted(what), 1)

    def test_a_handler_that_fails_leaves_the_message_to_the_next_delivery(self) -> None:
        message = new_key()
        with self.assertRaises(ZeroDivisionError):
            consume(db, "nouns", message, lambda conn: 1 / 0)
        self.assertIsNone(consume(db, "nouns", message, lambda conn: None, ttl=60))
        accepted = transaction(db, lambda conn: inbox.accept(conn, "nouns", message))
        self.assertEqual((accepted.accepted, accepted.verdict), (False, "null"))

    def test_a_compensation_before_its_action_is_skipped_and_refuses_it(self) -> None:
        saga = new_key()
        asked = [inbox.barrier(db, "nouns", saga, "pay", which) for which in ("compensation", "action")]
        self.assertEqual(asked, ["skipped", "refused"])


class Actions(unittest.TestCase):
    def billing(self, status: str = "open") -> Row:
        insert = "INSERT INTO billing (customer, total) VALUES ('ada', 70) RETURNING id"
        row = Row("billing", scalar(insert))
        if status == "closed":
            self.assertEqual(act(db, row, "close", lambda _: None, requester="clerk").outcome, "finished")
        return row

    def test_an_action_finishes_with_its_writes(self) -> None:
        for on in (db, adb):
            row, what = self.billing(), new_key()

            async def write_async(conn: Any, result: str) -> None:
                await note(conn, result)

            options = {"requester": "clerk", "patch": lambda result: {"invoices": len(result[:1])}}
            write = note if on is db else write_async
            acted = act(on, row, "close", lambda _: what, write, **options)
            acted = acted if on is db else asyncio.run(acted)
            self.assertEqual((acted.outcome, acted.status, acted.result, noted(what)), ("finished", "closed", what, 1))

    def test_an_action_that_is_not_granted_says_why(self) -> None:
        row, asked = self.billing(), []

        def other(_: Any) -> None:
            asked.append(act(db, row, "close", other, requester="clerk"))

        act(db, row, "close", other, requester="clerk")
        self.assertEqual((asked[0].outcome, asked[0].retry_after is not None), ("in_progress", True))
        self.assertEqual(act(db, row, "close", other, requester="clerk").outcome, "refused")
        missing = Row("billing", "00000000-0000-0000-0000-000000000000")
        self.assertEqual(act(db, missing, "close", other, requester="clerk").outcome, "not_found")

    def test_a_failure_puts_the_row_back(self) -> None:
        row, what = self.billing(), new_key()

        def fails(conn: Any, _: Any) -> None:
            note(conn, what)
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            act(db, row, "close", lambda _: None, fails, requester="clerk")
        status = "SELECT status::text FROM billing WHERE id = %s"
        self.assertEqual((scalar(status, row.id), noted(what)), ("open", 0))
        self.assertEqual(scalar("SELECT last_error FROM once.action_get('billing', %s)", row.id), "ZeroDivisionError()")

    def test_a_requester_without_a_claim_state_moves_in_the_transaction_of_its_writes(self) -> None:
        row, what = self.billing("closed"), new_key()
        asked = [
            act(db, row, "apply_payment", lambda _: what, note, requester="bank_import", to=to)
            for to in (None, "paid", "paid")
        ]
        self.assertEqual([one.outcome for one in asked], ["unclaimed", "finished", "refused"])
        self.assertEqual(noted(what), 1)

    def test_an_action_whose_commit_is_not_answered_is_finished_once(self) -> None:
        with Proxy(URL) as proxy:
            row, what, patched = self.billing(), new_key(), []

            def patch(_: Any) -> None:
                patched.append(what)
                # The first release does not arrive, either.
                proxy.cut(*(("COMMIT",) if len(patched) == 1 else ("action_release", 1, False)))

            on = Connections(proxy.url)
            acted = act(on, row, "close", lambda _: what, note, requester="clerk", patch=patch)
            self.assertEqual((acted.outcome, acted.result, noted(what)), ("finished", what, 1))
            # The repeated finish gets ON006. So does the release, which shows that this action has finished.
            self.assertEqual((proxy.refusals, len(patched)), (["ON006", "ON006"], 2))

    def test_what_something_else_has_done_already_is_no_end_of_the_action(self) -> None:
        row, states = self.billing(), ["40001", "ON006"]

        def elsewhere(conn: Any, _: Any) -> None:
            conn.execute(f"DO $$ BEGIN RAISE SQLSTATE '{states.pop(0)}'; END $$")

        with self.assertRaises(errors.AlreadyDone):
            act(db, row, "close", lambda _: None, elsewhere, requester="clerk")
        self.assertEqual((scalar("SELECT status::text FROM billing WHERE id = %s", row.id), states), ("open", []))

    def test_a_lost_lease_goes_to_the_caller_and_writes_nothing(self) -> None:
        row, what = self.billing(), new_key()

        def loses(_: Any) -> str:
            scalar("SELECT once.action_expire('billing', %s)", row.id)
            scalar("SELECT count(*) FROM once.sweep(task => 'action_release')")
            return what

        with self.assertRaises(errors.LeaseLost):
            act(db, row, "close", loses, note, requester="clerk")
        self.assertEqual(noted(what), 0)

    def test_a_transition_tells_why_it_did_not_move(self) -> None:
        row = self.billing()
        moved = both(lambda on: row.transition(on, "void", from_status=["open"]))
        self.assertEqual([(one.moved, one.reason) for one in moved], [(True, None), (False, "status")])
        with self.assertRaises(errors.IllegalTransition):
            row.transition(db, "closing")

    def test_a_service_asks_whether_its_claim_states_are_swept(self) -> None:
        scalar("SELECT count(*) FROM once.sweep(task => 'action_release')")
        action.assert_covered(db)

    def test_a_row_that_is_cancelled_is_torn_down_once(self) -> None:
        for on in (db, adb):
            customer = new_key()
            scalar("INSERT INTO wallet VALUES (%s, 100) RETURNING points", customer)
            job = scalar("INSERT INTO batch_job (customer) VALUES (%s) RETURNING id", customer)
            items = """INSERT INTO batch_item (job_id, input, points, artifact, state)
                       SELECT %s, 'p', 10, 'x', 'succeeded' FROM generate_series(1, 3) RETURNING id"""
            scalar(items, job)
            row, deleted = Row("batch_job", job), []

            def cancelled_while_it_runs(lease: action.Action) -> None:
                self.assertEqual(cancel.request(db, row).outcome, "accepted")
                self.assertTrue(lease.extend(db))
                with self.assertRaises(Cancelling):
                    lease.go_on(db)

            acted = act(db, row, "run", cancelled_while_it_runs, requester="worker")
            self.assertEqual((acted.outcome, acted.status), ("cancelling", "queued"))
            self.assertIn(str(job), [str(one.id) for one in cancel.pending(db, "batch_job", 1000)])
            first, again = (self.torn_down(on, row, deleted.append) for _ in range(2))
            self.assertEqual((first.outcome, first.items_total, first.amount_total), ("cancelled", 3, 30))
            self.assertEqual((again.outcome, len(deleted[:3])), ("done", 3))
            self.assertEqual(deleted[0]["artifact"], "x")
            self.assertEqual(scalar("SELECT points FROM wallet WHERE customer = %s", customer), 130)

    def torn_down(self, on: Any, row: Row, delete: Callable[[Any], None]) -> cancel.Cancelled:
        return teardown(db, row, delete, page=2) if on is db else asyncio.run(teardown(adb, row, delete, page=2))


class Routing(unittest.TestCase):
    VECTORS = {"acme": 1, "globex": 4, "käse": 2, "": 12}  # docs/reference/shard.md

    def test_a_shard_is_the_one_that_the_server_says(self) -> None:
        for routing, number in self.VECTORS.items():
            self.assertEqual(shard_of(routing, 16), number, routing)
        for shards in (1, 16, 61, 65536):
            for routing in (*self.VECTORS, "a b", "\U0001f40c", "x" * 1000):
                self.assertEqual(shard_of(routing, shards), scalar("SELECT once.shard_of(%s, %s)", routing, shards))
        for shards in (0, 65537):
            with self.assertRaises(ValueError):
                shard_of("a", shards)

    def test_a_key_goes_to_the_pool_of_its_tenant(self) -> None:
        shards = Shards(range(16))
        self.assertEqual([shards.of(name) for name in ("acme/ada/k-1", "acme", "globex/k")], [1, 1, 4])
        self.assertEqual(shard.routing_of("acme:ada", ":"), "acme")


class Pools(unittest.IsolatedAsyncioTestCase):
    async def test_a_pool_serves_as_it_is(self) -> None:
        async with AsyncConnectionPool(URL, kwargs={"autocommit": True}, min_size=1) as pool:
            lease = await claim(pool, "nouns", new_key())
            what = new_key()

            async def write(conn: Any) -> Answer:
                await note(conn, what)
                return await lease.complete(conn, 200, what and "1")

            self.assertEqual((await lease.last_phase(pool, write)).status, 200)
            self.assertEqual(noted(what), 1)

    async def test_a_cancelled_task_gives_its_key_back(self) -> None:
        name = new_key()
        began = asyncio.Event()

        async def hangs(_: Lease) -> Answer:
            began.set()
            await asyncio.sleep(60)
            return Answer(200, "")

        task = asyncio.create_task(run(adb, "nouns", name, {}, hangs))
        await began.wait()
        task.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await task
        self.assertEqual(scalar("SELECT status FROM once.key_get('nouns', %s)", name), "released")


if __name__ == "__main__":
    unittest.main()
