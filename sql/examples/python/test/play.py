"""One example with its foreign services, run once: `python play.py <example> <key>`.

The foreign services are test/outside.py (at the URL $OUTSIDE), and a folder for a batch job's artifacts ($STORE).
"""

import asyncio
import json
import os
import shutil
import sys
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))

import batch_job
import billing
import debit
import fundings
import ride
import signup

from pg_once import Connections, Row, Subscriber, cancel, foreign_call, work


@foreign_call(dedupes=True)
def send(path: str, key: str, body: object) -> dict:
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OUTSIDE"] + path, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


class Player:
    def __init__(self, url: str) -> None:
        self.db = Connections(url)

    def ride(self, key: str) -> object:
        def charge(derived_key: str, user: str, cents: int) -> dict:
            return send("/charges", derived_key, {"reference": key, "amount_cents": cents})

        trip = {"origin": "here", "target": "there", "cents": 2000}
        return ride.create_ride(self.db, charge, "ada", key, trip)

    def debit(self, key: str) -> object:
        """The queue is a topic of ours, and the message's id is in the payload."""
        work(self.db, Subscriber("transfers"), lambda event: debit.debit(self.db, event.value), lease=0.5)
        return debit.debit(self.db, {"id": key, "account": key, "cents": 30})

    def signup(self, key: str) -> object:
        answer = signup.sign_up(self.db, "session 1", key, f"{key}@example.org")
        signup.mail(self.db, lambda delivery_key, mail: send("/mails", delivery_key, mail), lease=0.5)
        return answer

    def billing(self, key: str) -> object:
        def file(derived_key: str, which: str) -> str:
            return send("/filings", derived_key, {"billing": which})["charge_id"]

        return billing.close_billing(self.db, file, key)

    def batch_job(self, key: str, cancelled: bool = False) -> object:
        store = Path(os.environ["STORE"])

        def render(item: int, name: str) -> None:
            (store / name).parent.mkdir(parents=True, exist_ok=True)
            (store / name).write_text("made")
            if cancelled and name.split("/")[1] == "2":
                # The customer cancels, on another connection.
                cancel.request(Connections(os.environ["PG_ONCE_ADMIN_URL"]), Row("batch_job", int(key)))

        def delete(item: dict) -> None:
            shutil.rmtree(store / item["artifact"], ignore_errors=True)

        done = batch_job.run_job(self.db, render, delete, int(key))
        # A job whose teardown has begun is not claimed again: a teardown worker or the endpoint finishes it.
        return batch_job.cancel_job(self.db, delete, int(key)) if cancelled and done.outcome == "refused" else done

    def cancelled(self, key: str) -> object:
        return self.batch_job(key, cancelled=True)

    def api(self, key: str) -> object:
        """One request to the FastAPI service, in this process."""
        os.environ["PG_ONCE_URL"] = self.db.url
        import api
        import httpx

        async def post() -> httpx.Response:
            headers = {"Idempotency-Key": key, "X-Forwarded-User": "ada"}
            transport = httpx.ASGITransport(api.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
                return await client.post("/payments", json={"cents": 700}, headers=headers)

        reply = asyncio.run(post())
        reply.raise_for_status()
        print(reply.text)
        return reply

    def fundings(self, key: str, cents: int = 5000) -> object:
        def post(path: str, derived_key: str, body: dict) -> dict:
            return {path[1:-1]: send(path, derived_key, {**body, "for": key})["charge_id"]}

        return fundings.fund(self.db, post, key, cents)

    def refused(self, key: str) -> object:
        """The other side refuses this amount."""
        return self.fundings(key, 2_000_000)


def play(name: str, key: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    getattr(Player(os.environ["PG_ONCE_URL"]), name)(key)


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], {})
