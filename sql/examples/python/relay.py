"""A worker that posts a topic's events to a webhook, each with its delivery key as the Idempotency-Key.

    PG_ONCE_URL=postgresql://shop@127.0.0.1/shop WEBHOOK_URL=http://127.0.0.1:9000/webhook \
        python relay.py orders webhooks

SIGTERM: finishes the present event, and gives the rest of the batch back with no attempt counted.
"""

import http.client
import os
import signal
import sys
import threading
import urllib.error
import urllib.request

from psycopg_pool import ConnectionPool

from pg_once import Event, Never, NotDelivered, Subscriber, work
from pg_once.http import retry_after


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST becomes a GET without the event, so a redirect is a failure."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(NoRedirect)


def post(url: str, event: Event) -> None:
    headers = {"Idempotency-Key": event.delivery_key, "Content-Type": "application/json"}
    request = urllib.request.Request(url, event.payload.encode(), headers)
    try:
        OPENER.open(request, timeout=10).close()
    except urllib.error.HTTPError as error:
        if error.code == 410:
            raise Never("the receiver says 410: never again") from error
        seconds = retry_after(error.headers.get("Retry-After"))
        raise NotDelivered(f"the receiver says {error.code}", f"http {error.code}", seconds) from error
    except (OSError, http.client.HTTPException) as error:
        raise NotDelivered(f"the receiver did not answer: {error}", "transport") from error


def stopped_by_signal() -> threading.Event:
    """An event that SIGTERM or SIGINT sets. A thread waits for the signals: a signal handler would run inside the
    main thread's Event.wait, where setting the event can block for ever."""
    stop, signals = threading.Event(), {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # also in threads that are made later

    def wait() -> None:
        signal.sigwait(signals)
        stop.set()
        print("stopping", flush=True)

    threading.Thread(target=wait, daemon=True).start()
    return stop


def main() -> None:
    topic, subscriber = sys.argv[1:]
    url, lease = os.environ["WEBHOOK_URL"], float(os.environ.get("RELAY_LEASE_SECONDS", 60))
    stop = stopped_by_signal()
    # prepare_threshold=None: no prepared statements, so PgBouncer in transaction mode may be in between.
    options = {"autocommit": True, "prepare_threshold": None}
    with ConnectionPool(os.environ["PG_ONCE_URL"], kwargs=options, min_size=1, max_size=4, timeout=10) as pool:
        print("working", flush=True)
        work(pool, Subscriber(topic, subscriber), lambda event: post(url, event), stop, lease=lease)


if __name__ == "__main__":
    main()
