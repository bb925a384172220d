"""SQL for a trigger on a user's table that submits a job for each inserted or changed row. Runs nothing itself."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from backstay.core.checks import check_name
from backstay.errors import InvalidOption

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")
_NAME_LENGTH_MAX = 58  # PostgreSQL cuts names at 63 bytes, and ours may get a suffix
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def trigger_sql(
    schema: str,
    table: str,
    job_type: str,
    *,
    payload: str | None = None,
    columns: Sequence[str] = (),
    subject: str = "NULL",
    priority: str = "NULL",
    content_hash: str = "NULL",
    dedup_key: str = "NULL",
    when: str = "true",
    on_delete: str | None = None,
    row: str | None = None,
    drop: bool = False,
) -> str:
    """Return the SQL that creates a trigger; run it as the owner of the table.

    `payload`, `subject`, `priority`, `content_hash`, `dedup_key` and `when` are SQL expressions over NEW, written by
    someone who may run SQL there anyway; `columns` lists the columns whose update counts, all if it is empty. `row` is
    a condition that finds the row of a job by its `payload`: with it, a job whose row does not exist is refused. `drop`
    removes what the same call without it has created. The functions are created in the table's schema, where its owner
    may create them; a permission on the queue's schema is needed for `row` only, whose trigger is on the table of jobs.
    """
    check_name(job_type, "job type")
    _check(_NAME, table, "table")
    for column in columns:
        _check(_COLUMN, column, "column")
    if on_delete not in (None, "cancel", "delete"):
        raise InvalidOption(f"on_delete={on_delete!r}: use cancel or delete")
    if on_delete is not None and subject == "NULL":
        raise InvalidOption("on_delete finds the jobs of a row by subject: give subject=")
    place, _, bare = table.lower().rpartition(".")
    name = _trigger_name(bare, job_type)
    function = f'"{place}"."{name}"' if place else f'"{name}"'
    jobs = f'"{schema}".job'
    if drop:
        own = _dropped(table, name, function) + _dropped(table, f"{name}_gone", _gone(function))
        return own + _not_needing(jobs, name, _suffixed(function, "row"))
    if payload is None:
        raise InvalidOption("payload is missing: give an SQL expression over NEW")
    changed = f"ROW({_of('NEW', columns)})::record *<> ROW({_of('OLD', columns)})::record" if columns else "NEW *<> OLD"
    updates = f"UPDATE OF {', '.join(columns)}" if columns else "UPDATE"
    parts = [
        f"""
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $trigger$
BEGIN
    IF (TG_OP = 'INSERT' OR {changed}) AND ({when}) THEN
        PERFORM "{schema}".submit('{job_type}', ({payload})::jsonb, subject => ({subject})::text,
            priority => ({priority})::integer, content_hash => ({content_hash})::text,
            dedup_key => ({dedup_key})::text, created_by => 'trigger:{table}');
    END IF;
    RETURN NULL;
END
$trigger$;
CREATE OR REPLACE TRIGGER "{name}" AFTER INSERT OR {updates} ON {table}
    FOR EACH ROW EXECUTE FUNCTION {function}();"""
    ]
    if on_delete is None:  # an earlier version of it may have had this trigger
        parts.append(_dropped(table, f"{name}_gone", _gone(function)))
    else:
        parts.append(_on_delete(schema, name, function, table, job_type, subject, on_delete))
    of_row = _suffixed(function, "row")
    parts.append(
        _not_needing(jobs, name, of_row) if row is None else _needing(jobs, name, of_row, table, job_type, row)
    )
    return "\n".join(parts).strip() + "\n"


def _of(row: str, columns: Sequence[str]) -> str:
    return ", ".join(f"{row}.{column}" for column in columns)


def _gone(function: str) -> str:
    return _suffixed(function, "gone")


def _suffixed(function: str, suffix: str) -> str:
    return f'{function[:-1]}_{suffix}"'


def _dropped(table: str, trigger: str, function: str) -> str:
    return f'DROP TRIGGER IF EXISTS "{trigger}" ON {table};\nDROP FUNCTION IF EXISTS {function}();\n'


def _trigger_name(table: str, job_type: str) -> str:
    """One for each table and type, however they are written: a hash if the plain name would be too long or not
    unique."""
    plain = f"backstay_{job_type}_on_{table}"
    name = re.sub(r"\W", "_", plain)
    if name == plain and len(name) <= _NAME_LENGTH_MAX:
        return name
    mark = hashlib.sha256(plain.encode()).hexdigest()[:8]
    return f"{name[: _NAME_LENGTH_MAX - len(mark) - 1]}_{mark}"


def _on_delete(schema: str, name: str, function: str, table: str, job_type: str, subject: str, how: str) -> str:
    act = "drop_jobs" if how == "delete" else "cancel_jobs"
    return f"""
CREATE OR REPLACE FUNCTION {_gone(function)}() RETURNS trigger LANGUAGE plpgsql AS $trigger$
BEGIN
    NEW := OLD; -- of which the subject is an expression
    PERFORM "{schema}".{act}('{job_type}', ({subject})::text, 'trigger:{table}');
    RETURN NULL;
END
$trigger$;
CREATE OR REPLACE TRIGGER "{name}_gone" AFTER DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION {_gone(function)}();"""


def _needing(jobs: str, name: str, function: str, table: str, job_type: str, row: str) -> str:
    """Return a trigger on the table of jobs. It does not wait for a transaction that deletes the row, which wants the
    row's jobs next: the submit is repeated instead."""
    return f"""
CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $trigger$
#variable_conflict use_variable
DECLARE
    payload jsonb := NEW.payload;
BEGIN
    PERFORM FROM {table} WHERE {row} FOR KEY SHARE NOWAIT;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'BS005',
            MESSAGE = '{job_type}: there is no row of {table} for this job: nothing was stored';
    END IF;
    RETURN NEW;
END
$trigger$;
CREATE OR REPLACE TRIGGER "{name}_row" BEFORE INSERT ON {jobs}
    FOR EACH ROW WHEN (NEW.job_type = '{job_type}') EXECUTE FUNCTION {function}();"""


def _not_needing(jobs: str, name: str, function: str) -> str:
    """Return how the trigger is removed, if there is one. A role that may not use the queue's schema has made none."""
    return f"""
DO $drop$
BEGIN
    DROP TRIGGER IF EXISTS "{name}_row" ON {jobs};
EXCEPTION WHEN insufficient_privilege OR undefined_table OR invalid_schema_name THEN NULL;
END
$drop$;
DROP FUNCTION IF EXISTS {function}();
"""


def _check(pattern: re.Pattern[str], name: str, what: str) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name):
        raise InvalidOption(f"{name!r:.80} cannot be a {what}: write its plain name, with its schema if it needs one")
