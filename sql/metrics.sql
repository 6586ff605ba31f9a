-- metrics: numbers to watch, and what is wrong.
--
--   metrics   for an exporter, every few seconds: gauges and counters, each with its help (sql/monitoring/ has
--             the exporters' queries, the alert rules and a dashboard);
--   doctor    for a person: what is wrong or soon will be, and what to do about it.
-- Both only look, whoever owns what they look at, tell no payload, and work on a standby.

CREATE FUNCTION once.metrics(OUT name text, OUT labels jsonb, OUT value double precision, OUT help text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 100 AS 'MODULE_PATHNAME', 'pg_once_metrics';
COMMENT ON FUNCTION once.metrics() IS
$$What an exporter asks for: a row for each number, named and labelled as Prometheus does (_total: a counter; _seconds, _bytes: units; *_rate: a share from 0 to 1). help says what it counts, since when and within which bound. Cheap at any depth: nothing that is over is counted. pg_once_claims_total, idempotency_reuse_rate, idempotency_409_rate (mismatched) and idempotency_in_progress_rate are counted in shared memory: without shared_preload_libraries = 'pg_once' these rows are absent, and a restart begins at zero.$$;

CREATE FUNCTION once.doctor(OUT level text, OUT problem text, OUT detail text, OUT hint text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE ROWS 10 AS 'MODULE_PATHNAME', 'pg_once_doctor';
COMMENT ON FUNCTION once.doctor() IS
$$What is wrong (level error), what soon will be (warning), and what is good to know (info): who holds back vacuum (old transactions, prepared ones, replication slots, standbys), a janitor that is not running or fails, growing dead letters, unfinished requests that nobody resumes, uncovered claim states and whatever else machine_check tells, rows that a sweep has put off, backends that keep rows locked, missing or invalid indexes, tables full of dead rows, a pretended clock, synchronous_commit off, owners that do not exist, claims that are not counted, SQL and library of different versions. Nothing but info: all is well. Writes nothing; works in a READ ONLY transaction and on a standby.$$;
