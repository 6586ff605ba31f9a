"""The cases that every language's client has to pass: sql/examples/conformance.json, which says how to read them.

CALLS has a function for each call of that file: it makes the call with this package.
"""

import json
import os
import re
import unittest
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from pg_once import OnceError, action, inbox, key, outbox, shard_of

FILE = Path(os.environ.get("PG_ONCE_CASES", Path(__file__).parents[2] / "conformance.json"))
TABLE = json.loads(FILE.read_text(encoding="utf-8"))

Row = dict[str, Any]
Session = psycopg.Connection[Row]


class Answer(NamedTuple):
    given: Row  # the arguments of its call
    rows: list[Row]


def ask(session: Session, sql: str, arguments: Row | None = None) -> list[Row]:
    cursor = session.execute(sql, arguments)
    return cursor.fetchall() if cursor.description else []


def named(given: Row) -> Row:
    """Renames the arguments that have another name in the package than in the file."""
    return {{"retry_after": "after"}.get(name, name): value for name, value in given.items()}


def row(of: object, **more: object) -> list[Row]:
    """A row with the fields of an object, and the object itself as `it`. Later calls can use the object."""
    return [vars(of) | more | {"it": of}]


def it(of: Answer) -> Any:
    return of.rows[0]["it"]


def claim(session: Session, _: Any, given: Row) -> list[Row]:
    claimed = key.claim(session, **named(given))
    match claimed:
        case key.Lease():
            return row(claimed, outcome="resumed" if claimed.resumed else "claimed")
        case key.Replayed(answer):
            return row(claimed, outcome="replayed", code=answer.status, body=answer.body or None)
    names = {key.InProgress: "in_progress", key.Mismatched: "mismatched", key.Gone: "gone", key.Parked: "parked"}
    return row(claimed, outcome=names[type(claimed)])


def end(session: Session, call: Any, given: Row) -> list[Row]:
    call(session, int(given["code"]), given.get("body"), given.get("headers"))
    return []


def action_claim(session: Session, _: Any, given: Row) -> list[Row]:
    which = action.Row(given.pop("machine"), given.pop("id"))
    claimed = which.claim(session, **named(given))
    names = {key.InProgress: "in_progress", action.Action: "claimed"}
    return row(claimed, outcome=names.get(type(claimed)) or claimed.outcome)


def batch(of: Answer) -> outbox.Subscriber:
    return outbox.Subscriber(of.given["topic"], of.given.get("subscriber", "default"))


def events(of: Answer, given: Row) -> Row:
    token = {"token": of.rows[0]["token"]}
    if "events" not in given:
        return given | token
    places = given.pop("events").split(",")
    return given | token | {"event_ids": [of.rows[int(place)]["event_id"] for place in places]}


def subscriber(given: Row) -> outbox.Subscriber:
    return outbox.Subscriber(given.pop("topic"), given.pop("subscriber", "default"))


def advance(session: Session, of: Any, given: Row) -> list[Row]:
    return [{"lease_left": it(of).advance(session, given["recovery_point"], given.get("state"))}]


def void(_: object) -> list[Row]:
    return []


CALLS: dict[str, Callable[[Session, Any, Row], list[Row]]] = {
    "sql": lambda session, of, given: ask(session, given["text"]),
    "shard_of": lambda session, of, given: [{"of": shard_of(**given)}],
    "key.claim": claim,
    "key.advance": advance,
    "key.step": lambda session, of, given: row(it(of).step(session, given.pop("step"), **given)),
    "key.step_done": lambda session, of, given: row(it(of).step_done(session, given.pop("step"), **given)),
    "key.complete": lambda session, of, given: end(session, it(of).complete, given),
    "key.abort": lambda session, of, given: end(session, it(of).abort, given),
    "key.release": lambda session, of, given: void(it(of).release(session, **named(given))),
    "key.park": lambda session, of, given: void(it(of).park(session, **given)),
    "key.extend": lambda session, of, given: [{"lease_left": it(of).extend(session, **named(given))}],
    "action.claim": action_claim,
    "action.extend": lambda session, of, given: [{"cancelling": it(of).extend(session, **named(given))}],
    "action.finish": lambda session, of, given: row(it(of).finish(session, **given)),
    "action.release": lambda session, of, given: row(it(of).release(session, **given)),
    "outbox.emit": lambda session, of, given: row(outbox.emit(session, **named(given))),
    "outbox.take": lambda session, of, given: [
        vars(event) for event in subscriber(given).take(session, **named(given))
    ],
    "outbox.ack": lambda session, of, given: [{"acked": batch(of).ack(session, **events(of, given))}],
    "outbox.nack": lambda session, of, given: [
        vars(event) for event in batch(of).nack(session, **named(events(of, given)))
    ],
    "outbox.extend": lambda session, of, given: void(batch(of).extend(session, **named(events(of, given)))),
    "outbox.dead": lambda session, of, given: [vars(event) for event in subscriber(given).dead(session, **given)],
    "outbox.redrive": lambda session, of, given: [{"redriven": subscriber(given).redrive(session, **given)}],
    "inbox.accept": lambda session, of, given: row(inbox.accept(session, **named(given))),
    "inbox.record": lambda session, of, given: void(inbox.record(session, **given)),
}


def text(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


class Case:
    """Runs a case. Keeps the named answers. For `again`, keeps the calls of each session's last transaction."""

    def __init__(self, sessions: dict[str, Session]) -> None:
        self.sessions = sessions
        self.id = str(uuid.uuid4())
        self.answers: dict[str, Answer] = {}
        self.sent: dict[str, list[Callable[[], list[Row]]]] = {}
        self.open: set[str] = set()
        self.at: Row = {}

    def filled(self, value: Any) -> Any:
        """Replaces `$id` and `$name.field` in a text."""

        def put(found: re.Match[str]) -> str:
            name, field = found.groups()
            return str(self.answers[name].rows[0][field]) if field else self.id

        return re.sub(r"\$(\w+)(?:\.(\w+))?", put, value) if isinstance(value, str) else value

    def make(self, call: Row) -> None:
        given = {name: self.filled(value) for name, value in call.get("with", {}).items()}
        try:
            rows = self.send(call.get("by", "a"), call["call"], self.answers.get(call.get("of", "")), given)
        except (psycopg.Error, OnceError) as error:
            if error.sqlstate != call.get("raises"):
                raise
            return
        assert "raises" not in call, "it was not refused"
        if "as" in call:
            self.answers[call["as"]] = Answer(given, rows)
        if "gives" in call:
            self.compare(rows, call["gives"])

    def send(self, by: str, call: str, of: Answer | None, given: Row) -> list[Row]:
        session = self.sessions[by]
        if call == "begin":
            self.sent[by] = []
            self.open.add(by)
        if call in ("commit", "rollback"):
            self.open.discard(by)
        if call in ("begin", "commit", "rollback"):
            return ask(session, call)
        if call == "again":
            with session.transaction():
                return [work() for work in self.sent[by]][-1]
        if call in TABLE["sql"]:
            call, given = "sql", {"text": self.filled(TABLE["sql"][call])}
        work = lambda: CALLS[call](session, of, dict(given))
        if by in self.open:
            self.sent[by].append(work)
        return work()

    def compare(self, rows: list[Row], gives: Any) -> None:
        expected = gives if isinstance(gives, list) else [gives]
        assert len(rows) == len(expected), f"rows: {rows}"
        for row, fields in zip(rows, expected, strict=True):
            for name, value in fields.items():
                found = text(row.get(name))
                good = found is not None if value == "*" else found == text(self.filled(value))
                assert good, f"{name}: found {found!r}, expected {value!r}"

    def close(self) -> None:
        for by in self.open:
            self.sessions[by].rollback()


class Conformance(unittest.TestCase):
    sessions: dict[str, Session]

    @classmethod
    def setUpClass(cls) -> None:
        cls.sessions = {}
        for name in ("a", "b", "operator", "later"):
            url = os.environ["PG_ONCE_URL" if len(name) == 1 else "PG_ONCE_ADMIN_URL"]
            session = psycopg.connect(url, autocommit=True, prepare_threshold=None, row_factory=dict_row)
            session.adapters.register_loader("json", TextLoader)
            cls.sessions[name] = session
        cls.sessions["operator"].execute(FILE.with_suffix(".sql").read_bytes())
        cls.sessions["later"].execute("SELECT set_config('once.fake_now', (clock_timestamp() + '1 year')::text, false)")

    @classmethod
    def tearDownClass(cls) -> None:
        for session in cls.sessions.values():
            session.close()

    def test_the_shard_of_a_routing_value(self) -> None:
        for vector in TABLE["shard_of"]:
            with self.subTest(vector["routing"]):
                routing = {name: vector[name] for name in ("routing", "shards")}
                self.assertEqual(CALLS["shard_of"](self.sessions["a"], None, routing), [{"of": vector["shard"]}])

    def test_every_case_of_the_table(self) -> None:
        for case in TABLE["cases"]:
            run = Case(self.sessions)
            with self.subTest(case["case"]):
                try:
                    for call in case["calls"]:
                        run.at = call
                        run.make(call)
                except Exception as error:
                    raise AssertionError(f"in {run.at}") from error
                finally:
                    run.close()


if __name__ == "__main__":
    unittest.main()
