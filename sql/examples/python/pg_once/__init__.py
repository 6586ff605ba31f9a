"""pg_once for psycopg 3: copy this folder into your project.

errors    what can go wrong, one class each, told apart by SQLSTATE
database  calls that are repeated, and transactions
key       one logical request, one execution
outbox    events that leave the database
"""
