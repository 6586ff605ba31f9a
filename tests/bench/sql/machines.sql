-- What each side needs beside the tables of the batch job.

-- The leases of actions: columns and indexes of once.action_lease, without its CHECK.
CREATE TABLE raw.action_lease (LIKE once.action_lease INCLUDING ALL EXCLUDING CONSTRAINTS);
ALTER TABLE raw.action_lease SET (fillfactor = 90);
-- What a move with history leaves: columns and indexes of once.machine_move.
CREATE TABLE raw.machine_move (LIKE once.machine_move INCLUDING ALL);

-- One row per status to go to: what is declared, and over which table. One probe tells all of it.
CREATE TABLE plpgsql.move (
    machine        text     NOT NULL,
    to_status      text     NOT NULL,
    from_status    text[]   NOT NULL,
    relation       regclass NOT NULL,
    id_column      name     NOT NULL,
    id_type        regtype  NOT NULL,
    status_column  name     NOT NULL,
    version_column name     NOT NULL,
    PRIMARY KEY (machine, to_status)
);
INSERT INTO plpgsql.move
    SELECT 'job', v.to_status, v.from_status, 'plpgsql.batch_job', 'id', 'bigint', 'status', 'version'
      FROM (VALUES ('failed', '{queued}'::text[]), ('queued', '{failed}')) v (to_status, from_status);

-- A transition over any table as one would write it in PL/pgSQL: simpler than pg_once (no conditions, no
-- cancel flag, no patch, no version asked for), so it is no slower for being thorough.
CREATE FUNCTION plpgsql.transition(
    p_machine text, p_id text, p_to text, p_from text[] = NULL,
    OUT moved boolean, OUT status text, OUT version bigint, OUT reason text)
LANGUAGE plpgsql AS $$
DECLARE
    m plpgsql.move;
BEGIN
    SELECT * INTO m FROM plpgsql.move d WHERE d.machine = p_machine AND d.to_status = p_to;
    IF NOT FOUND OR NOT m.from_status && coalesce(p_from, m.from_status) THEN
        RAISE EXCEPTION 'machine "%" declares no such move to "%"', p_machine, p_to USING ERRCODE = 'ON002';
    END IF;
    EXECUTE format(
        'UPDATE %s t SET %I = $2, %I = t.%I + 1 WHERE t.%I = $1::%s AND t.%I = ANY ($3) AND t.%I = ANY ($4) '
        'RETURNING true, t.%I, t.%I',
        m.relation, m.status_column, m.version_column, m.version_column, m.id_column, m.id_type,
        m.status_column, m.status_column, m.status_column, m.version_column)
        INTO moved, status, version
        USING p_id, p_to, m.from_status, coalesce(p_from, m.from_status);
    IF moved IS NULL THEN
        moved := false;
        EXECUTE format('SELECT t.%I, t.%I FROM %s t WHERE t.%I = $1::%s',
                       m.status_column, m.version_column, m.relation, m.id_column, m.id_type)
            INTO status, version
            USING p_id;
        reason := CASE WHEN status IS NULL THEN 'not_found' ELSE 'status' END;
    END IF;
END $$;
