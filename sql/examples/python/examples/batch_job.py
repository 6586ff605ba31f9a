"""A costly batch job: paid by the item, cancelled while it runs, and refunded."""

from pg_once import Row, act, cancel, teardown, transaction

OPEN = "SELECT id, artifact FROM batch_item WHERE job_id = %s AND state <> 'succeeded' ORDER BY id"
PAID = """
WITH item AS (UPDATE batch_item SET state = 'succeeded' WHERE id = %s AND state <> 'succeeded' RETURNING job_id, points)
UPDATE wallet SET points = wallet.points - item.points
  FROM item JOIN batch_job ON batch_job.id = job_id WHERE wallet.customer = batch_job.customer"""
KEPT = "UPDATE batch_item SET settled = 'kept' WHERE job_id = %s AND settled IS NULL"


def run_job(db, render, delete, job):
    """Handles a message of the queue. Acknowledge the message unless the outcome is in_progress."""
    row = Row("batch_job", job)
    done = act(db, row, "run", lambda action: run_items(db, render, action), keep, requester="worker")
    return teardown(db, row, delete) if done.outcome == "cancelling" else done


def run_items(db, render, action):
    with db.connection() as conn:
        items = conn.execute(OPEN, (action.row.id,)).fetchall()
    for item, artifact in items:
        render(item, f"{artifact}/{action.token}")  # a file of this attempt's own
        # On LeaseLost the caller of run_job deletes that file, unless the item has succeeded.
        transaction(db, lambda conn, item=item: pay(conn, action, item), unanswered=True)
    return action.row.id


def pay(conn, action, item):
    action.go_on(conn)  # a lost lease or a cancellation undoes this item's transaction
    conn.execute(PAID, (item,))


def keep(conn, job):
    conn.execute(KEPT, (job,))


def cancel_job(db, delete, job):
    """What POST /jobs/…/cancel does. If the outcome is accepted, the worker that runs the job tears it down."""
    asked = cancel.request(db, Row("batch_job", job))
    return teardown(db, Row("batch_job", job), delete) if asked.outcome == "teardown" else asked
