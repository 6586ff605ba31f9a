"""Funds a contract: writes entries here, then opens and funds an account elsewhere. A refusal undoes all of it."""

from pg_once import Refused, run


def undo(contract, what):
    return {"topic": "undo", "payload": {"undo": what, "contract": contract}, "order_key": contract}


def fund(db, post, contract, cents):
    """Returns the answer, whichever attempt did the work."""
    return run(db, "contracts.fund", contract, {"cents": cents}, lambda lease: work(db, post, lease, cents))


def work(db, post, lease, cents):
    def foreign(step, path, body):
        """Sends the call unless the step is already done. All attempts of a step send the same key."""
        undoing = undo(lease.key, step)
        return lease.foreign(db, step, lambda key: post(path, key, body), remembers=24 * 3600, on_abort=undoing)

    try:
        if lease.recovery_point == "started":
            lease.phase(db, "pending", {}, lambda conn: begin(conn, lease, cents))
        account = foreign("account", "/accounts", {"owner": lease.key})["account"]
        foreign("fund", "/fundings", {"account": account, "cents": cents})
    except Refused as refusal:
        return lease.abort(db, 409, {"status": "archived", "title": str(refusal)})
    return lease.last_phase(db, lambda conn: post_entries(conn, lease, account))


def begin(conn, lease, cents):
    lease.step(conn, "entries", on_abort=undo(lease.key, "entries"))
    conn.execute("INSERT INTO funding VALUES (%s, %s)", (lease.key, cents))
    entries = "INSERT INTO entry VALUES (%s, 'customer', %s), (%s, 'custody', %s)"
    conn.execute(entries, (lease.key, -cents, lease.key, cents))


def post_entries(conn, lease, account):
    answer = lease.complete(conn, 201, {"status": "posted", "account": account})
    conn.execute("UPDATE funding SET account = %s WHERE contract = %s", (account, lease.key))
    conn.execute("UPDATE entry SET status = 'posted' WHERE contract = %s", (lease.key,))
    return answer
