-- pg_once to `next`, a version that never was and never will be: a column and a function more.
--
-- It stands for sql/pg_once--OLD--NEW.sql until there is one, and is what the first one begins as a copy of. Whoever
-- adds or changes an object in sql/NOUN.sql adds the same there, in the noun's own section; a database that was
-- upgraded is then the same as a new one (tests/e2e/upgrade compares the catalogs). Tables only gain columns, at their
-- end, and no function loses an argument, a column or its symbol, so that sessions go on with their kept plans.
--
-- Locks: what is created is new to everybody; an ALTER TABLE waits for the transactions that use the table, and they
-- for it.

\echo Use "ALTER EXTENSION pg_once UPDATE TO 'next'" to load this file. \quit

-- Names and operators of this script are the server's own, whoever made objects of the same name elsewhere.
SET LOCAL search_path = pg_catalog, pg_temp;

-- key ---------------------------------------------------------------------------------------------
ALTER TABLE once.scope ADD COLUMN remark text;
COMMENT ON COLUMN once.scope.remark IS 'Of no use.';

CREATE FUNCTION once.key_next(scope text, key text, step text)
RETURNS text LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_key_derive';
COMMENT ON FUNCTION once.key_next(text, text, text) IS 'The same as key_derive.';
DO $$ BEGIN
    EXECUTE pg_catalog.rtrim(pg_catalog.format(
        'CREATE OR REPLACE VIEW once.role_function AS %s', pg_catalog.pg_get_viewdef('once.role_function'::regclass)), ';')
        || $v$ UNION ALL VALUES ('use', 'key_next'), ('operate', 'key_next')$v$;
END $$;

-- role (the last section: the rights of everything above) -------------------------------------------

-- What this script made belongs to the extension's owner, whoever ran it, and to nobody else: PUBLIC may
-- execute a new function, and somebody's ALTER DEFAULT PRIVILEGES may have opened more. (The membership of
-- what was made now is as new as the extension's version.) The rights on older objects are not touched: here
-- that would make them the extension's own, which pg_dump leaves out.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        WITH made AS (
            SELECT d.objid, e.extowner FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
             WHERE e.extname = 'pg_once' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
               AND d.xmin = e.xmin),
        objects (object, acl, owner, extowner) AS (
            SELECT 'TABLE ' || c.oid::regclass, c.relacl, c.relowner, m.extowner
              FROM made m JOIN pg_class c ON c.oid = m.objid AND c.relnamespace = 'once'::regnamespace
            UNION ALL
            SELECT 'ROUTINE ' || p.oid::regprocedure, coalesce(p.proacl, acldefault('f', p.proowner)), p.proowner,
                   m.extowner
              FROM made m JOIN pg_proc p ON p.oid = m.objid AND p.pronamespace = 'once'::regnamespace)
        SELECT format('ALTER %s OWNER TO %s', o.object, o.extowner::regrole)
          FROM objects o
         WHERE o.owner <> o.extowner
        UNION ALL
        SELECT format('REVOKE ALL ON %s FROM %s', o.object,
                      CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
          FROM objects o, aclexplode(o.acl) a
         WHERE a.grantee <> o.owner
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;

-- Open to everybody, as in a new database.
GRANT EXECUTE ON FUNCTION once.shard_of(text, integer) TO PUBLIC;

-- Who was granted a kind may call its new functions, too. A role that has not the schema any more was shut out
-- by hand (DROP OWNED BY does that); a row of another incarnation means the role of that name.
SELECT once.grant_role(r.oid, g.kind)
  FROM once.role_grant g JOIN pg_roles r
       ON CASE WHEN g.incarnation = once.incarnation() # (SELECT system_identifier FROM pg_control_system())
               THEN g.role = r.oid ELSE g.role_name = r.rolname END
 WHERE EXISTS (SELECT FROM pg_namespace n, aclexplode(n.nspacl) a
                WHERE n.nspname = 'once' AND a.grantee = r.oid AND a.privilege_type = 'USAGE');
