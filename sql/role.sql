-- role: rights of roles. All grants of the extension are in this file.
--
-- PUBLIC gets nothing except shard_of. Without a grant only the extension's owner may call the other functions. They
-- access the extension's tables whatever the caller's rights, so no role needs a right on these tables.

-- This view lists the functions and procedures of each kind of rights. grant_role grants EXECUTE on all of one kind.
-- An upgrade that adds functions replaces the view and calls grant_role again for the rows of once.role_grant.
-- A table in place of the view would break logical replication. CREATE EXTENSION in the subscriber's database would
-- insert the table's rows. Then the subscription's initial copy would insert the same rows, and fail.
CREATE VIEW once.role_function (kind, function_name) AS
    WITH opened (kind, function_name) AS (VALUES
    ('use', 'key_claim'), ('use', 'key_advance'), ('use', 'key_complete'),
    ('use', 'key_abort'), ('use', 'key_release'), ('use', 'key_park'), ('use', 'key_extend'),
    ('use', 'key_step'), ('use', 'key_step_done'), ('use', 'key_derive'), ('use', 'key_rotate'),
    ('use', 'key_take_abandoned'), ('use', 'scope_get'),
    ('use', 'machine_get'), ('use', 'machine_assert'), ('use', 'machine_guard'),
    ('use', 'transition'), ('use', 'transition_many'),
    ('use', 'action_claim'), ('use', 'action_extend'), ('use', 'action_finish'), ('use', 'action_release'),
    ('use', 'cancel_request'), ('use', 'cancel_refund'), ('use', 'cancel_items'), ('use', 'cancel_confirm'),
    ('use', 'cancel_finish'), ('use', 'cancel_pending'),
    ('use', 'outbox_emit'), ('use', 'outbox_take'), ('use', 'outbox_ack'), ('use', 'outbox_extend'),
    ('use', 'outbox_nack'), ('use', 'outbox_deliveries'), ('use', 'topic_get'), ('use', 'subscriber_get'),
    ('use', 'inbox_accept'), ('use', 'inbox_record'), ('use', 'inbox_barrier'),
    ('observe', 'machine_check'), ('observe', 'cancel_audit'), ('observe', 'machine_list'), ('observe', 'scope_list'), ('observe', 'shard_get'), ('observe', 'role_list'),
    ('observe', 'machine_diagram'), ('observe', 'machine_history'), ('observe', 'action_get'), ('observe', 'action_list'),
    ('observe', 'janitor_status'),
    ('operate', 'sweep'), ('operate', 'sweep_all'),
    ('observe', 'metrics'), ('observe', 'doctor'), ('observe', 'verify'), ('observe', 'topic_list'),
    ('operate', 'machine_define'), ('operate', 'machine_drop'), ('operate', 'action_adopt'),
    ('operate', 'action_expire'),
    ('operate', 'key_list'),
    ('operate', 'key_get'), ('operate', 'key_resolve'), ('operate', 'key_expire'), ('operate', 'key_forget'), ('operate', 'scope_set'), ('operate', 'shard_set'),
    ('operate', 'outbox_peek'), ('operate', 'outbox_dead'), ('operate', 'outbox_redrive'), ('operate', 'outbox_discard'),
    ('operate', 'topic_set'), ('operate', 'subscriber_set'), ('operate', 'subscriber_drop'),
    ('operate', 'topic_drop'))
    SELECT kind, function_name FROM opened
    UNION ALL
    SELECT 'operate', function_name FROM opened WHERE kind IN ('use', 'observe');
COMMENT ON VIEW once.role_function IS 'The functions that a grant of each kind allows; operate includes the functions of use and observe.';
COMMENT ON COLUMN once.role_function.kind IS 'use, operate or observe, as grant_role takes it.';
COMMENT ON COLUMN once.role_function.function_name IS 'Name of a function or procedure of the schema once, whatever its arguments.';

CREATE TABLE once.role_grant (
    role      oid    NOT NULL,
    role_name name   NOT NULL,
    incarnation bigint NOT NULL,
    kind      text   NOT NULL CHECK (kind IN ('use', 'operate', 'observe')),
    CONSTRAINT role_grant_pkey PRIMARY KEY (role, incarnation, kind)
);
COMMENT ON TABLE once.role_grant IS 'The grants of grant_role; an upgrade applies them again.';
COMMENT ON COLUMN once.role_grant.role IS 'OID of the role, valid in the row''s incarnation; after a restore the role named role_name has the grant.';
COMMENT ON COLUMN once.role_grant.role_name IS 'The role''s name, brought up to date by sweeps and by calls that set options or rights.';
COMMENT ON COLUMN once.role_grant.incarnation IS 'The incarnation in which the role''s OID is valid.';
COMMENT ON COLUMN once.role_grant.kind IS 'Kind of the grant: use, operate or observe.';
SELECT pg_catalog.pg_extension_config_dump('once.role_grant', '');

CREATE FUNCTION once.grant_role(role regrole, kind text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_grant_role';
COMMENT ON FUNCTION once.grant_role(regrole, text) IS
$$Lets a role call the functions of a kind: use (requests and workers), observe (watching; no payloads) or operate (both, and options, verdicts, sweeps). The grant is remembered, and an upgrade extends it to new functions. For the extension's owner.
Errors: 22023 an unknown kind, 42704 no such role.$$;

CREATE FUNCTION once.revoke_role(role regrole, kind text)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_revoke_role';
COMMENT ON FUNCTION once.revoke_role(regrole, text) IS
'Takes back a grant of grant_role. The role keeps the functions of its other grants. For the extension''s owner. Errors: 22023 an unknown kind, 42704 no such role.';

CREATE FUNCTION once.role_list(OUT role text, OUT kind text)
RETURNS SETOF record LANGUAGE c STABLE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_role_list';
COMMENT ON FUNCTION once.role_list() IS
'Lists the grants of grant_role: a row for each role and kind. Rights that were granted by hand, or through membership in a role, are not listed. Writes nothing.';

REVOKE ALL ON ALL ROUTINES IN SCHEMA once FROM PUBLIC;

-- ALTER DEFAULT PRIVILEGES may have granted rights while the objects were created.
DO $$
DECLARE
    statement text;
BEGIN
    FOR statement IN
        SELECT pg_catalog.format('REVOKE ALL ON %s FROM %s', o.object,
                   CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::pg_catalog.regrole::text END)
          FROM (SELECT 'TABLE ' || c.oid::pg_catalog.regclass, c.relacl, c.relowner
                  FROM pg_catalog.pg_class c
                 WHERE c.relnamespace = 'once'::pg_catalog.regnamespace AND c.relkind IN ('r', 'v', 'S')
                UNION ALL
                SELECT 'ROUTINE ' || p.oid::pg_catalog.regprocedure, p.proacl, p.proowner
                  FROM pg_catalog.pg_proc p
                 WHERE p.pronamespace = 'once'::pg_catalog.regnamespace
                UNION ALL
                SELECT 'SCHEMA once', n.nspacl, n.nspowner
                  FROM pg_catalog.pg_namespace n WHERE n.nspname = 'once') o (object, acl, owner),
               pg_catalog.aclexplode(o.acl) a
         WHERE a.grantee <> o.owner
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;

-- CHECK constraints of the users' tables may call this pure function.
GRANT EXECUTE ON FUNCTION once.shard_of(text, integer) TO PUBLIC;
