"""A ride: its row, a charge at the bank, and a receipt that a worker mails."""

import uuid

from pg_once import emit, key_of, run


def create_ride(db, charge, user, key, trip):
    """What POST /rides does. charge(derived_key, user, cents) raises Refused or Retry."""
    return run(db, "rides.create", key_of(user, key), trip, lambda lease: work(db, charge, lease, user, trip))


def work(db, charge, lease, user, trip):
    ride = lease.value.get("ride") or str(uuid.uuid4())
    if lease.recovery_point == "started":
        lease.phase(db, "created", {"ride": ride}, lambda conn: insert_ride(conn, ride, user, trip))
    made = lease.foreign(db, "charge", lambda key: charge(key, user, trip["cents"]), remembers=24 * 3600)
    return lease.last_phase(db, lambda conn: finish(conn, lease, ride, user, made["charge_id"]))


def insert_ride(conn, ride, user, trip):
    insert = "INSERT INTO ride (ride, customer, origin, target) VALUES (%s, %s, %s, %s)"
    conn.execute(insert, (ride, user, trip["origin"], trip["target"]))


def finish(conn, lease, ride, user, charge_id):
    answer = lease.complete(conn, 201, {"ride": ride, "charge": charge_id})
    conn.execute("UPDATE ride SET charge_id = %s WHERE ride = %s", (charge_id, ride))
    emit(conn, "receipts", {"to": user, "ride": ride, "charge": charge_id})
    return answer
