"""The cases that every language's client has to pass: sql/examples/conformance.json, which says how to read them.

CALLS is what the calls of that table are here.
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


def once(session: Session, function: str, **arguments: Any) -> list[Row]:
    """A function by its arguments' names; texts are of the type that the function takes."""
    texts = {name: str(value) for name, value in arguments.items() if value is not None}
    named = ", ".join(f"{name} => %({name})s" for name in texts)
    return ask(session, f"SELECT * FROM once.{function}({named}) AS {function.split('_')[1]}", texts)


def claim(session: Session, _: Any, given: Row) -> list[Row]:
    rows = once(session, "key_claim", **given)
    return [row | {name: row[f"response_{name}"] for name in ("code", "body", "headers")} for row in rows]


def lease(of: Answer) -> Row:
    return {"scope": of.given["scope"], "key": of.given["key"], "token": of.rows[0]["token"]}


def response(given: Row) -> Row:
    return {f"response_{name}": value for name, value in given.items()}


def action(of: Answer) -> Row:
    return {"machine": of.given["machine"], "id": of.given["id"], "token": of.rows[0]["token"]}


def action_claim(session: Session, _: Any, given: Row) -> list[Row]:
    step = given.pop("step")
    return once(session, "action_claim", step_key=step, **given)


def batch(of: Answer) -> Row:
    return {"topic": of.given["topic"], "subscriber": "default", "token": of.rows[0]["token"]}


def events(of: Answer, given: Row) -> Row:
    if "events" not in given:
        return given
    places = given.pop("events").split(",")
    ids = ",".join(str(of.rows[int(place)]["event_id"]) for place in places)
    return given | {"event_ids": f"{{{ids}}}"}


CALLS: dict[str, Callable[[Session, Any, Row], list[Row]]] = {
    "sql": lambda session, of, given: ask(session, given["text"]),
    "shard_of": lambda session, of, given: once(session, "shard_of", **given),
    "key.claim": claim,
    "key.advance": lambda session, of, given: once(session, "key_advance", **lease(of), **given),
    "key.step": lambda session, of, given: once(session, "key_step", **lease(of), **given),
    "key.step_done": lambda session, of, given: once(session, "key_step_done", **lease(of), **given),
    "key.complete": lambda session, of, given: once(session, "key_complete", **lease(of), **response(given)),
    "key.abort": lambda session, of, given: once(session, "key_abort", **lease(of), **response(given)),
    "key.release": lambda session, of, given: once(session, "key_release", **lease(of), **given),
    "key.park": lambda session, of, given: once(session, "key_park", **lease(of), **given),
    "key.extend": lambda session, of, given: once(session, "key_extend", **lease(of), **given),
    "action.claim": action_claim,
    "action.extend": lambda session, of, given: once(session, "action_extend", **action(of), **given),
    "action.finish": lambda session, of, given: once(session, "action_finish", **action(of), **given),
    "action.release": lambda session, of, given: once(session, "action_release", **action(of), **given),
    "outbox.emit": lambda session, of, given: once(session, "outbox_emit", **given),
    "outbox.take": lambda session, of, given: once(session, "outbox_take", **given),
    "outbox.ack": lambda session, of, given: once(session, "outbox_ack", **batch(of), **events(of, given)),
    "outbox.nack": lambda session, of, given: once(session, "outbox_nack", **batch(of), **events(of, given)),
    "outbox.extend": lambda session, of, given: once(session, "outbox_extend", **batch(of), **given),
    "outbox.dead": lambda session, of, given: once(session, "outbox_dead", **given),
    "outbox.redrive": lambda session, of, given: once(session, "outbox_redrive", **given),
    "inbox.accept": lambda session, of, given: once(session, "inbox_accept", **given),
    "inbox.record": lambda session, of, given: once(session, "inbox_record", **given),
}


def text(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


class Case:
    """The answers that have a name, and the calls of each session's last transaction."""

    def __init__(self, sessions: dict[str, Session]) -> None:
        self.sessions = sessions
        self.id = str(uuid.uuid4())
        self.answers: dict[str, Answer] = {}
        self.sent: dict[str, list[Callable[[], list[Row]]]] = {}
        self.open: set[str] = set()
        self.at: Row = {}

    def filled(self, value: Any) -> Any:
        """`$id` and `$name.field` in a text."""
        def put(found: re.Match[str]) -> str:
            name, field = found.groups()
            return str(self.answers[name].rows[0][field]) if field else self.id

        return re.sub(r"\$(\w+)(?:\.(\w+))?", put, value) if isinstance(value, str) else value

    def make(self, call: Row) -> None:
        given = {name: self.filled(value) for name, value in call.get("with", {}).items()}
        try:
            rows = self.send(call.get("by", "a"), call["call"], self.answers.get(call.get("of", "")), given)
        except psycopg.Error as error:
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
