-- metrics: numbers to watch, and a list of problems.
--
--   metrics   for an exporter, every few seconds: gauges and counters, each with its help (sql/monitoring/ has
--             the exporters' queries, the alert rules and a dashboard);
--   doctor    for a person: each problem, and the next step;
--   verify    what must hold between the extension's own tables.
-- All three only read, do not check owners, show no payload, and work on a standby.

CREATE FUNCTION once.metrics(OUT name text, OUT labels jsonb, OUT value double precision, OUT help text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_metrics';
COMMENT ON FUNCTION once.metrics() IS
$$For an exporter: a row for each number, with the name and labels of Prometheus (_total: a counter; _seconds, _bytes: units; *_rate: a share from 0 to 1). help says what is counted, since when, and the limit at which the count stops. Cheap at any backlog: it reads no history. pg_once_claims_total, pg_once_uncommitted_steps_total, idempotency_reuse_rate, idempotency_409_rate (mismatched) and idempotency_in_progress_rate are counted in shared memory: without shared_preload_libraries = 'pg_once' these rows are absent; a restart sets them to zero. Works in a READ ONLY transaction and on a standby.$$;

CREATE FUNCTION once.doctor(OUT level text, OUT problem text, OUT detail text, OUT hint text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_doctor';
COMMENT ON FUNCTION once.doctor() IS
$$A row for each problem. level: error (now), warning (soon), info (nothing is wrong). It checks, for example, old transactions, replication slots and standbys that hold back vacuum; a janitor that is not running or fails; dead letters; unfinished requests; the findings of machine_check; rows that a sweep has deferred; backends that hold locks for long; invalid indexes and dead rows; once.fake_now and synchronous_commit of this session; owners that are gone; events from the future; different versions of library and extension. Writes nothing; works in a READ ONLY transaction and on a standby.$$;

CREATE FUNCTION once.verify(max integer = 10000, OUT invariant text, OUT detail text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 1 AS 'MODULE_PATHNAME', 'pg_once_verify';
COMMENT ON FUNCTION once.verify(integer) IS
$$Reports violations of the invariants of keys, steps, leases, topics, retries and batches: a row for each violation, at most ten for one invariant. Reads up to max (1 to 1000000) rows of each table. No rows: nothing was found. A row means damage (rows changed by hand, a restore of some tables only) or a defect: report it. For sums of money use once.cancel_audit. Writes nothing.
Errors: 22023 bad argument.$$;
