-- pg_once 0.1.0 -> 0.2.0, run by: ALTER EXTENSION pg_once UPDATE;
--
-- Whoever adds or changes an object in sql/NOUN.sql adds the same here, in the noun's own section; a
-- database that was upgraded is then the same as a new one (tests/e2e/upgrade compares the catalogs).
-- Old sessions go on with their kept plans and the new library served the old schema before this ran:
-- tables only gain columns, at their end, and no function loses an argument, a column or its symbol.
--
-- Locks: what is created is new to everybody; an ALTER TABLE here waits for the transactions that use the
-- table, and they for it. Set lock_timeout before the update on a busy database, and repeat it.

\echo Use "ALTER EXTENSION pg_once UPDATE TO '0.2.0'" to load this file. \quit

-- key ---------------------------------------------------------------------------------------------

-- machine, action, cancel ---------------------------------------------------------------------------

-- outbox ------------------------------------------------------------------------------------------

-- inbox -------------------------------------------------------------------------------------------

-- janitor -----------------------------------------------------------------------------------------

-- metrics, doctor ---------------------------------------------------------------------------------

-- role (the last section: the rights of everything above) -------------------------------------------
