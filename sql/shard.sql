-- shard: which shard this database is. Each routing value, such as a tenant's name, belongs to one shard.
--
-- One shard is one database; the number of shards never changes. A shard moves between clusters as a whole, by
-- PostgreSQL's own means; the pooler maps databases to clusters. Claims of another shard's keys are refused (ON007).

-- At most one row.
CREATE TABLE once.shard (
    one       boolean NOT NULL CONSTRAINT shard_pkey PRIMARY KEY CHECK (one),
    shard     integer NOT NULL,
    shards    integer NOT NULL,
    routing   text    COLLATE "C" NOT NULL CHECK (routing IN ('key', 'scope')),
    separator text    COLLATE "C" NOT NULL
);
COMMENT ON TABLE once.shard IS 'Which shard this database is, as set by shard_set. No row: it is not a shard.';
COMMENT ON COLUMN once.shard.one IS 'Always true: at most one row.';
COMMENT ON COLUMN once.shard.shard IS 'Number of the shard, from 0.';
COMMENT ON COLUMN once.shard.shards IS 'The number of shards.';
COMMENT ON COLUMN once.shard.routing IS 'key: the routing value is taken from the key, message or saga; scope: from the scope.';
COMMENT ON COLUMN once.shard.separator IS 'The routing value is the part before the first occurrence of this text in the key, message, saga or scope. If the text does not occur, the routing value is the whole.';
SELECT pg_catalog.pg_extension_config_dump('once.shard', '');

CREATE FUNCTION once.shard_of(routing text, shards integer)
RETURNS integer LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'pg_once_shard_of';
COMMENT ON FUNCTION once.shard_of(text, integer) IS
$$The shard of a routing value, such as a tenant's name: the first 6 bytes of SHA-256(routing in UTF-8), big-endian, modulo shards (1 to 65536). To call it by name a role needs USAGE on schema once. Writes to a table with CHECK (once.shard_of(tenant, 16) = 3) need no such right.
Errors: 22023 bad argument.$$;

CREATE FUNCTION once.shard_set(shard integer, shards integer, by text = 'key', separator text = '/')
RETURNS json LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_shard_set';
COMMENT ON FUNCTION once.shard_set(integer, integer, text, text) IS
$$Sets, once and for all, which shard this database is. shard: 0 to shards - 1; shards: 1 to 65536. by => 'key': the routing value is taken from the key, message or saga; 'scope': from the scope. The value ends before the first separator (1 to 10 characters), if there is one. From then on key_claim, key_get, inbox_accept and inbox_barrier raise ON007 for another shard's value. Other calls that write raise it only if the key or message is not stored here. Returns the values in force.
Errors: 55006 already set to other values, 22023 bad argument, 25006 read-only transaction, 40001 a lost race.$$;

CREATE FUNCTION once.shard_get()
RETURNS json LANGUAGE c STABLE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'pg_once_shard_get';
COMMENT ON FUNCTION once.shard_get() IS
'The shard that this database is: {"shard", "shards", "by", "separator"}; NULL: shard_set was not called.';
