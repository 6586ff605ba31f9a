-- incarnation: a number that a restore changes (see pg_ext/src/incarnation.rs).

CREATE FUNCTION once.incarnation()
RETURNS bigint LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS 'SELECT 0';
COMMENT ON FUNCTION once.incarnation() IS
$$The random number of this database's incarnation, kept in the body of this function. A restored dump has a new number; a physical copy, a copy by CREATE DATABASE ... TEMPLATE and pg_upgrade keep the old one. Stored transaction ids and role OIDs are valid only while this number and the cluster's system identifier stay the same. In another incarnation all undelivered events are pending again, and the owners of scopes, topics and machines are found by their role names.$$;

CREATE FUNCTION once.incarnation_renew()
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_incarnation_renew';
COMMENT ON FUNCTION once.incarnation_renew() IS
$$Makes a new incarnation: all undelivered events are pending again, and the owners of scopes, topics and machines are found by their role names. For the extension's owner. A physical copy may run beside its source and have the same system identifier. Call it on such a copy, before the first client connects. pg_createsubscriber gives its copy a new system identifier, so that copy needs no call.
Errors: 25006 in a read-only transaction.$$;

SELECT once.incarnation_renew();
