"""A consumer that debits an account once for each message, however often the message is delivered."""

from pg_once import consume, emit  # once

DEBIT = """
UPDATE account SET cents = cents - %(cents)s
 WHERE account = %(account)s AND cents >= %(cents)s RETURNING cents"""


def debit(db, message):
    """Returns the verdict; for a duplicate, the stored verdict. Acknowledge the message at its queue after this."""

    def handle(conn):
        left = conn.execute(DEBIT, message).fetchone()
        verdict = {"debited": left is not None, "left": left and left[0]}
        emit(conn, "debits", {**message, **verdict}, order_key=message["account"])
        return verdict

    return consume(db, "debits", message["id"], handle)  # once
