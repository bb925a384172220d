"""Checks a file of the SQLite engine from outside: what must hold of its tables after every commit."""

from __future__ import annotations

from pathlib import Path

import apsw

from backstay.engines.sqlite.connection import LISTS, joined

_KEYED = ("detail", "ready", "later", "waiting", "running", "ended", "event")
_RULES = {
    "a job has not exactly one place": f"""
        SELECT j.job_id FROM job AS j
        {joined()}
        WHERE (e.seq IS NOT NULL) + (r.seq IS NOT NULL) + (l.seq IS NOT NULL) + (w.seq IS NOT NULL)
            + (p.seq IS NOT NULL) <> 1""",
    "the view of places has another number of rows than there are jobs": """
        SELECT count(*) FROM place HAVING count(*) <> (SELECT count(*) FROM job)""",
    "the tally is not what there is": f"""
        SELECT job_type, queue, priority, status, sum(count), sum(there) FROM (
            SELECT job_type, queue, priority, status, count, 0 AS there FROM tally
            UNION ALL
            SELECT job_type, queue, priority, 'stored', 1, 0 FROM uncounted
            UNION ALL
            SELECT j.job_type, j.queue, coalesce(d.priority, j.priority), 'stored', 0, 1
            FROM job AS j LEFT JOIN detail AS d ON d.seq = j.seq
            UNION ALL
            SELECT j.job_type, j.queue, coalesce(d.priority, j.priority), {LISTS["status"]}, 0, 1
            FROM job AS j
            {joined()}
            WHERE r.seq IS NULL AND p.seq IS NULL)
        GROUP BY 1, 2, 3, 4 HAVING sum(count) <> sum(there)""",
    "a row is left of a job that is gone": " UNION ALL ".join(
        f"SELECT '{table}', seq FROM {table} WHERE seq NOT IN (SELECT seq FROM job)" for table in _KEYED
    ),
    "a pending job stands in another line than its own": """
        SELECT job_id FROM ready JOIN job USING (job_id, seq)
        WHERE ready.queue <> job.queue OR ready.job_type <> job.job_type
            OR ready.fair <> (job.fairness_key IS NOT NULL)""",
    "an event was stored that is newer than its job": f"""
        SELECT j.job_id FROM event AS v JOIN job AS j ON j.seq = v.seq
        {joined()}
        WHERE v.version > coalesce(e.version, r.version, p.version, l.version, w.version)""",
}


def broken_rules(path: Path) -> list[str]:
    """Return each rule that does not hold, with the rows that break it."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(5_000)
    try:
        with connection:
            found = {rule: connection.execute(statement).fetchall() for rule, statement in _RULES.items()}
    finally:
        connection.close()
    return [f"{rule}: {rows[:5]}" for rule, rows in found.items() if rows]
