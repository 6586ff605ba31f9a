"""The middleware: requests with an Idempotency-Key to a FastAPI service or any ASGI application take effect once."""

import asyncio
import os
import sys
import unittest
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from harness import HERE, admin, create_tables, new_key, scalar
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

sys.path.insert(0, str(HERE.parent / "examples"))
os.environ["PG_ONCE_URL"], shop_url = os.environ["PG_ONCE_ADMIN_URL"], os.environ["PG_ONCE_URL"]
import api
from proxy import Proxy

from pg_once import AsyncConnections, errors
from pg_once.asgi import Idempotency, current

URL = os.environ["PG_ONCE_ADMIN_URL"]
os.environ["PG_ONCE_URL"] = shop_url
PAYMENTS = "SELECT count(*) FROM payment_made WHERE customer = %s"


def setUpModule() -> None:
    create_tables("examples")
    with admin() as conn:
        conn.execute("CREATE TABLE seat_sold (seat text UNIQUE DEFERRABLE INITIALLY DEFERRED)")


class App:
    """A small application: gives the answers that it was made with, and counts its calls."""

    def __init__(self, *answers: tuple[int, bytes, dict[str, str]], slow: float = 0) -> None:
        self.answers, self.slow, self.ran = list(answers), slow, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.ran += 1
        await asyncio.sleep(self.slow)
        status, body, headers = self.answers[min(self.ran, len(self.answers)) - 1]
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body[:1], "more_body": True})
        await send({"type": "http.response.body", "body": body[1:]})


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api") as client:
        yield client


async def post(app: Any, key: str | None, user: str = "ada", path: str = "/payments", **request: Any) -> httpx.Response:
    headers = {"X-Forwarded-User": user, **({"Idempotency-Key": key} if key is not None else {})}
    async with client_of(app) as client:
        return await client.post(path, headers={**headers, **request.pop("headers", {})}, **request)


def guarded(app: Any, **options: Any) -> Idempotency:
    return Idempotency(app, pool=AsyncConnections(URL), user=api.user_of, **options)


JSON = {"content-type": "application/json", "x-kept": "yes"}


class FastAPIService(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.user = new_key()

    async def pay(self, key: str | None, cents: Any = 700, **request: Any) -> httpx.Response:
        return await post(api.app, key, self.user, json={"cents": cents}, **request)

    async def asyncTearDown(self) -> None:
        await api.engine.dispose()

    async def test_all_of_it(self) -> None:
        """In one test, since the pool belongs to one event loop."""
        key = new_key()
        first, again = await self.pay(key), await self.pay(key)
        self.assertEqual((first.status_code, first.content), (201, again.content))
        self.assertEqual([reply.headers.get("Idempotent-Replayed") for reply in (first, again)], [None, "true"])
        self.assertEqual(scalar(PAYMENTS, self.user), 1)
        self.assertEqual((await self.pay(key, 1)).status_code, 422)
        self.assertEqual((await post(api.app, key, self.user, "/other", json={"cents": 700})).status_code, 422)
        self.assertEqual((await post(api.app, key, "", json={"cents": 700})).status_code, 401)
        self.assertEqual((await self.pay('"open')).status_code, 400)
        # Spaces in the body and quotes around the key do not matter.
        spelled = {"content": b'{ "cents":\n 700 }', "headers": {"Content-Type": "application/json"}}
        self.assertEqual((await post(api.app, f'"{key}"', self.user, **spelled)).content, first.content)
        # Another user has another key.
        self.user, first_user = new_key(), self.user
        self.assertNotEqual((await self.pay(key)).json(), first.json())
        self.assertEqual([scalar(PAYMENTS, user) for user in (first_user, self.user)], [1, 1])
        # Final refusals are stored, also those by FastAPI itself.
        for cents, status in ((0, 402), ("many", 422)):
            key = new_key()
            replies = [await self.pay(key, cents) for _ in range(2)]
            self.assertEqual([reply.status_code for reply in replies], [status] * 2)
            self.assertEqual(replies[0].content, replies[1].content)
            self.assertIn("Idempotent-Replayed", replies[1].headers)
        self.assertEqual(scalar(PAYMENTS, self.user), 1)


seats = FastAPI()
seats.add_middleware(Idempotency, pool=api.engine, user=api.user_of)


@seats.exception_handler(IntegrityError)
async def taken(*_: Any) -> JSONResponse:
    return JSONResponse({"title": "taken"}, 409)


@seats.post("/{seat}", status_code=201)
async def sell(seat: str, request: Request, raises: int = 0, late: int = 0, aborts: int = 0, forgets: int = 0) -> Any:
    lease = current(request)
    async with AsyncSession(api.engine) as session:
        await session.execute(text("INSERT INTO seat_sold VALUES (:seat)"), {"seat": seat})
        await (lease.abort(session, aborts) if aborts else lease.complete(session, 201, {"seat": seat}))
        if raises:
            raise HTTPException(raises)
        if not forgets:
            await session.commit()
        if late:
            raise HTTPException(late)
    return {"seat": seat}


open_sessions: list[AsyncSession] = []


@seats.post("/open/{seat}", status_code=201)
async def sell_later(seat: str, request: Request) -> Any:
    open_sessions.append(AsyncSession(api.engine))
    await open_sessions[0].execute(text("INSERT INTO seat_sold VALUES (:seat)"), {"seat": seat})
    return (await current(request).complete(open_sessions[0], 201, {"seat": seat})).value


async def session_of() -> AsyncIterator[AsyncSession]:
    async with AsyncSession(api.engine) as session, session.begin():
        yield session


@seats.post("/dependency/{seat}", status_code=201)
async def sell_in(seat: str, request: Request, session: Annotated[AsyncSession, Depends(session_of)]) -> Any:
    await session.execute(text("INSERT INTO seat_sold VALUES (:seat)"), {"seat": seat})
    return (await current(request).complete(session, 201, {"seat": seat})).value


class AnswerOfATransaction(unittest.IsolatedAsyncioTestCase):
    """The application stores an answer in its own transaction: the client gets the committed answer."""

    async def asyncSetUp(self) -> None:
        self.seat, self.key = new_key(), new_key()

    async def asyncTearDown(self) -> None:
        await api.engine.dispose()

    async def twice(self, query: str = "", path: str = "") -> list[tuple[int, bool, int]]:
        """For the request and its retry: the status, whether it is a replay, and the seats that are sold then."""
        return [await self.sell(query, path) for _ in range(2)]

    async def sell(self, query: str = "", path: str = "") -> tuple[int, bool, int]:
        reply = await post(seats, self.key, path=f"{path}/{self.seat}{query}")
        sold = scalar("SELECT count(*) FROM seat_sold WHERE seat = %s", self.seat)
        return reply.status_code, "Idempotent-Replayed" in reply.headers, sold

    def status(self) -> str:
        return scalar("SELECT status FROM once.key_get('http', %s)", f"ada/{self.key}")

    async def test_it_commits(self) -> None:
        self.assertEqual(await self.twice(), [(201, False, 1), (201, True, 1)])

    async def test_it_is_rolled_back_by_an_answer_that_is_not_final(self) -> None:
        self.assertEqual(await self.twice("?raises=409"), [(409, False, 0)] * 2)
        self.assertEqual(self.status(), "released")

    async def test_it_is_rolled_back_by_a_final_answer(self) -> None:
        self.assertEqual(await self.twice("?raises=402"), [(402, False, 0), (402, True, 0)])

    async def test_a_refusal_is_rolled_back_by_its_own_exception(self) -> None:
        self.assertEqual(await self.twice("?raises=402&aborts=402"), [(402, False, 0), (402, True, 0)])

    async def test_a_deferred_constraint_fails_at_its_commit(self) -> None:
        scalar("INSERT INTO seat_sold VALUES (%s) RETURNING 1", self.seat)
        self.assertEqual(await self.sell(), (409, False, 1))
        self.assertEqual(self.status(), "released")
        scalar("DELETE FROM seat_sold WHERE seat = %s RETURNING 1", self.seat)
        self.assertEqual(await self.twice(), [(201, False, 1), (201, True, 1)])

    async def test_a_session_of_a_dependency_commits_after_the_answer_is_sent(self) -> None:
        self.assertEqual(await self.twice(path="/dependency"), [(201, False, 1), (201, True, 1)])
        self.key = new_key()
        with self.assertRaises((IntegrityError, RuntimeError)):
            await self.sell(path="/dependency")
        self.assertEqual(self.status(), "released")

    async def test_a_forgotten_commit_is_an_error(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "commit"):
            await self.sell("?forgets=1")
        self.assertEqual(self.status(), "released")

    async def test_a_transaction_that_is_still_open_is_an_error_until_it_commits(self) -> None:
        self.assertEqual(await self.sell(path="/open"), (500, False, 0))
        async with open_sessions.pop() as session:
            await session.commit()
        self.assertEqual(await self.sell(path="/open"), (201, True, 1))

    async def test_what_is_committed_is_the_answer_whatever_fails_after_it(self) -> None:
        for late in (402, 409, 500):
            self.seat, self.key = new_key(), new_key()
            self.assertEqual(await self.twice(f"?late={late}"), [(201, False, 1), (201, True, 1)])


class Middleware(unittest.IsolatedAsyncioTestCase):
    async def test_of_twelve_at_once_eleven_are_told_when_to_come_back(self) -> None:
        app = App((201, b"{}", JSON), slow=1)
        key, service = new_key(), guarded(app)
        replies = await asyncio.gather(*(post(service, key, json={}) for _ in range(12)))
        told = sorted((reply.status_code, reply.headers.get("Retry-After")) for reply in replies)
        self.assertEqual((told, app.ran), ([(201, None)] + [(409, "1")] * 11, 1))

    async def test_of_twelve_at_once_all_have_the_same_bytes_where_they_wait(self) -> None:
        app = App((201, b'{"n":  1.0}', JSON), slow=0.5)
        key, service = new_key(), guarded(app, wait=20)
        replies = await asyncio.gather(*(post(service, key, json={}) for _ in range(12)))
        self.assertEqual({(reply.status_code, reply.content) for reply in replies}, {(201, b'{"n":  1.0}')})
        self.assertEqual({reply.headers["X-Kept"] for reply in replies}, {"yes"})
        self.assertEqual(app.ran, 1)

    async def test_a_client_may_ask_for_a_wait_up_to_the_longest(self) -> None:
        for longest, status in ((0, 409), (20, 201)):
            app, key = App((201, b"{}", JSON), slow=0.3), new_key()
            service = guarded(app, longest_wait=longest)
            replies = await asyncio.gather(*(post(service, key, json={}, headers={"Prefer": "wait=9"}) for _ in "ab"))
            self.assertEqual(sorted(reply.status_code for reply in replies), [201, status])

    async def test_bytes_that_are_no_json_come_back_as_they_were(self) -> None:
        for body, kind in [
            (b"\x00\xff", "image/png"),
            (b"a text", "text/plain"),
            (b'"\\u0000"', "application/json"),
            (b"", "text/plain"),
        ]:
            app, key = App((200, body, {"content-type": kind})), new_key()
            replies = [await post(guarded(app), key, content=b"\xff raw") for _ in range(2)]
            self.assertEqual([(reply.content, reply.headers["content-type"]) for reply in replies], [(body, kind)] * 2)
            self.assertEqual(app.ran, 1)
            self.assertEqual((await post(guarded(app), key, content=b"\xff other")).status_code, 422)

    async def test_an_answer_that_says_nothing_of_the_next_try_is_not_stored(self) -> None:
        for status, wait in [(503, 0.2), (500, 0.2), (429, 2), (401, 0.2)]:
            app, key = App((status, b"{}", {**JSON, "retry-after": "1"}), (201, b"{}", JSON)), new_key()
            self.assertEqual((await post(guarded(app), key, json={})).status_code, status)
            self.assertEqual((await post(guarded(app), key, json={})).status_code, 409)  # not due yet
            scalar("SELECT once.key_expire('http', %s)", f"ada/{key}")
            due = await post(guarded(app, wait=10), key, json={})
            self.assertEqual((due.status_code, app.ran), (201, 2), wait)

    async def test_a_failure_of_the_application_gives_the_key_back(self) -> None:
        class Fails:
            async def __call__(self, *_: Any) -> None:
                raise ZeroDivisionError

        key, app = new_key(), App((201, b"{}", JSON))
        with self.assertRaises(ZeroDivisionError):
            await post(guarded(Fails()), key, json={})
        self.assertEqual((await post(guarded(app, wait=10), key, json={})).status_code, 201)

    async def test_a_bad_value_of_the_applications_own_is_no_fault_of_the_client(self) -> None:
        class Casts:
            async def __call__(self, *_: Any) -> None:
                async with AsyncConnections(URL).connection() as conn:
                    await conn.execute("SELECT %s::text::uuid", ("secret",))

        key = new_key()
        with self.assertRaisesRegex(errors.InvalidArgument, "uuid"):
            await post(guarded(Casts()), key, json={})
        self.assertEqual(scalar("SELECT status FROM once.key_get('http', %s)", f"ada/{key}"), "released")
        nul = {"content": b'"\\u0000"', "headers": {"Content-Type": "application/json"}}
        self.assertEqual((await post(guarded(Casts()), new_key(), **nul)).status_code, 400)

    async def test_a_cookie_goes_out_once(self) -> None:
        app, key = App((201, b"{}", {**JSON, "set-cookie": "session=1"})), new_key()
        replies = [await post(guarded(app), key, json={}) for _ in range(2)]
        self.assertEqual([reply.headers.get("set-cookie") for reply in replies], ["session=1", None])

    async def test_without_a_key_a_request_passes_where_none_is_required(self) -> None:
        app = App((201, b"{}", JSON))
        self.assertEqual((await post(guarded(app), None, json={})).status_code, 201)
        self.assertEqual((await post(guarded(app, required=True), None, json={})).status_code, 400)
        async with client_of(guarded(app, required=True)) as client:
            self.assertEqual((await client.get("/")).status_code, 201)

    async def test_a_client_that_hangs_up_does_not_end_the_work(self) -> None:
        app, key = App((201, b'{"a": 1}', JSON), slow=0.5), new_key()
        task = asyncio.create_task(post(guarded(app), key, json={}))
        await asyncio.sleep(0.3)
        task.cancel()
        self.assertEqual((await post(guarded(app, wait=10), key, json={})).content, b'{"a": 1}')
        self.assertEqual(app.ran, 1)

    async def test_a_commit_that_is_not_answered_is_gone_behind(self) -> None:
        class Writes:
            ran = 0

            async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
                self.ran += 1
                async with AsyncConnections(proxy.url).connection() as conn, conn.transaction():
                    await conn.execute("INSERT INTO payment_made (customer, cents) VALUES (%s, 1)", (key,))
                    await current(scope).complete(conn, 201, '{"n":  1}')
                await send({"type": "http.response.start", "status": 201, "headers": []})
                await send({"type": "http.response.body", "body": b'{"n":1}'})

        with Proxy(URL) as proxy:
            key, app = new_key(), Writes()
            proxy.cut("COMMIT")
            replies = [await post(guarded(app), key, json={}) for _ in range(2)]
        self.assertEqual([(reply.status_code, reply.content) for reply in replies], [(201, b'{"n":  1}')] * 2)
        self.assertEqual((app.ran, scalar(PAYMENTS, key)), (1, 1))

    async def test_a_database_that_is_away_is_503(self) -> None:
        app = App((201, b"{}", JSON))
        service = Idempotency(app, pool=AsyncConnections("postgresql://nobody@127.0.0.1:1/no"), user=api.user_of)
        self.assertEqual((await post(service, new_key(), json={})).status_code, 503)
        self.assertEqual(app.ran, 0)
        self.assertTrue(errors.Unavailable.retryable)


if __name__ == "__main__":
    unittest.main()
