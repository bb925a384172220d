"""Empties a schema, and adds constraints so that no statement can leave a row that the lifecycle does not allow."""

import psycopg

from backstay.engines.postgres.store import PostgresStore

TABLES = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables"

# Constraints for each place, and ranges of numbers. Production does without: they would cost a sixth of a claim's time.
LAWFUL = {
    "job": "priority BETWEEN 0 AND 100 AND max_attempts >= 1 AND timeout_micros > 0 AND payload_version >= 1"
    " AND coalesce(fairness_weight, 1) >= 1 AND on_dependency_failure = 'fail' AND trigger_rule <> 'all_success'",
    "detail": "priority BETWEEN 0 AND 100 AND progress BETWEEN 0 AND 1",
    "ready": "version >= 1 AND attempt >= 0 AND failures >= 0 AND (parked > 0) = (line > 2)"
    " AND (parked <> 1 OR concurrency_key IS NOT NULL) AND (parked <> 2 OR rate_key IS NOT NULL)",
    "later": "status IN ('scheduled', 'retrying') AND version >= 1",
    "waiting": "unmet >= 0 AND version >= 1",
    "running": "attempt >= 1 AND version >= 2 AND progress BETWEEN 0 AND 1",
    "ended": "status IN ('completed', 'failed', 'cancelled') AND version >= 1"
    " AND (status = 'completed' OR (result IS NULL AND result_artifact IS NULL))",
}
PLACES = ("ready", "later", "waiting", "running", "ended")
# Every job has one place at the end of every transaction, and every place a job.
ONE_PLACE = """
CREATE OR REPLACE FUNCTION {schema}.one_place() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    id uuid := CASE TG_OP WHEN 'DELETE' THEN OLD.job_id ELSE NEW.job_id END;
    jobs integer := (SELECT count(*) FROM {schema}.job WHERE job_id = id);
    places integer := (SELECT count(*) FROM ({places}) AS every);
BEGIN
    IF jobs <> places THEN
        RAISE EXCEPTION 'job % is there %, and has % places', id, jobs, places;
    END IF;
    RETURN NULL;
END
$$;
"""
TRIGGER = (
    "CREATE CONSTRAINT TRIGGER one_place AFTER INSERT OR DELETE ON {schema}.{table} DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION {schema}.one_place();"
)
TALLIED = """
SELECT job_type, queue, priority, status, sum(count), sum(there) FROM (
    SELECT job_type, queue, priority, status, count, 0 AS there FROM {schema}.tally
    UNION ALL
    SELECT job_type, queue, priority, 'stored', count, 0 FROM {schema}.arrived
    UNION ALL
    SELECT j.job_type, j.queue, coalesce(d.priority, j.priority), p.status, 0, 1
    FROM {schema}.job AS j LEFT JOIN {schema}.detail AS d ON d.job_id = j.job_id JOIN (
        SELECT job_id, 'stored' AS status FROM {schema}.job
        UNION ALL SELECT job_id, status FROM {schema}.ended
        UNION ALL SELECT job_id, status FROM {schema}.later
        UNION ALL SELECT job_id, 'waiting' FROM {schema}.waiting) AS p ON p.job_id = j.job_id) AS every
GROUP BY 1, 2, 3, 4 HAVING sum(count) <> sum(there)
"""


def guard(connection: psycopg.Connection, schema: str) -> None:
    """Let no statement leave a row that the lifecycle does not allow, nor a job without a place."""
    quoted = f'"{schema}"'
    places = " UNION ALL ".join(f"SELECT 1 FROM {quoted}.{place} WHERE job_id = id" for place in PLACES)
    parts = [ONE_PLACE.format(schema=quoted, places=places)]
    parts += [f"ALTER TABLE {quoted}.{table} ADD CONSTRAINT lawful CHECK ({law});" for table, law in LAWFUL.items()]
    parts += [TRIGGER.format(schema=quoted, table=table) for table in ("job", *PLACES)]
    connection.execute("\n".join(parts).encode())


def empty(store: PostgresStore) -> None:
    with psycopg.connect(store.address.dsn, autocommit=True) as connection:
        empty_over(connection, store.address.schema)


def empty_over(connection: psycopg.Connection, schema: str) -> None:
    """Every row but those that say which migrations were applied. Not TRUNCATE: that makes all files anew. Result
    tables were made by a test, and go."""
    made = connection.execute(
        f"{TABLES} WHERE schemaname = %s AND tablename LIKE 'result\\_%%' AND tablename <> 'result_table'", [schema]
    ).fetchall()
    if made:
        connection.execute(f"DROP TABLE {', '.join(table for (table,) in made)}".encode())
    lawful = "SELECT 1 FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'c'"
    guarded = connection.execute(lawful, [f'"{schema}".ready']).fetchone() is not None
    if guarded:
        wrong = connection.execute(TALLIED.format(schema=f'"{schema}"').encode()).fetchall()
        assert not wrong, f"jobs by kind and state, as tallied and as they are: {wrong}"
    tables = connection.execute(f"{TABLES} WHERE schemaname = %s AND tablename <> 'migration'", [schema]).fetchall()
    connection.execute("; ".join(f"DELETE FROM {table}" for (table,) in tables).encode())
    if not guarded:
        guard(connection, schema)
