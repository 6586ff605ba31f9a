"""A signup whose welcome mail is sent once."""

from pg_once import Subscriber, emit, run, work

INSERT = "INSERT INTO member (email) VALUES (%s) ON CONFLICT (email) DO NOTHING RETURNING member"
MAILS = Subscriber("mails")


def sign_up(db, session, form, email):
    """What POST /signups does. Nobody is logged in yet, so the stored key begins with the session, not with a user."""
    return run(db, "signups.create", f"{session}/{form}", {"email": email}, lambda lease: make(db, lease, email))


def make(db, lease, email):
    def write(conn):
        made = conn.execute(INSERT, (email,)).fetchone()
        if made is None:
            return lease.abort(conn, 409, {"title": "that address is taken"})
        emit(conn, "mails", {"to": email, "member": made[0], "template": "welcome"})
        return lease.complete(conn, 201, {"member": made[0]})

    return lease.last_phase(db, write)


def mail(db, send, stop=None, lease=60):
    """The mailer. send(delivery_key, mail) raises NotDelivered or Never; the provider dedupes by the key."""

    def deliver(event):
        send(event.delivery_key, event.value)
        with db.connection() as conn:
            conn.execute("UPDATE member SET mail = 'sent' WHERE member = %s", (event.value["member"],))

    work(db, MAILS, deliver, stop, lease=lease)
