"""Close billing: only one clerk at a time asks the tax office, and each closing makes one invoice."""

from pg_once import Row, act  # once

INVOICE = "INSERT INTO invoice (billing_id, total, fiscal_no) SELECT id, total, %s FROM billing WHERE id = %s"


def close_billing(db, file, billing, requester="clerk"):
    """file(key, billing) asks the tax office; each closing has a key. `in_progress`: the other clerk is at it."""

    def register(_):
        with db.connection() as conn:  # once
            made = conn.execute("SELECT invoices FROM billing WHERE id = %s", (billing,)).fetchone()[0]  # once
        return {"fiscal_no": file(f"{billing}/{made}", billing), "invoices": made + 1}

    def write(conn, filed):
        conn.execute(INVOICE, (filed["fiscal_no"], billing))

    patch = lambda filed: {"invoices": filed["invoices"]}  # noqa: E731 # once
    return act(db, Row("billing", billing), "close", register, write, requester=requester, patch=patch)  # once
