"""The fields of a job: one line for each, from which columns, records, the archive and documents follow.

The shapes in core/records.py say of which type a field is, and `JobDocument` what users see of it. Everything else that
has to be known about a field is here, so that no list of fields is kept anywhere else, and no place in a list means
anything: tests/core/test_job_shapes.py compares the table with the shapes.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple


class Home(Enum):
    """Where the SQL engines keep a field. DynamoDB keeps all of them in the item of the job."""

    FACT = "fact"  # a column of `job`: what was submitted, which never changes
    PLACE = "place"  # a column of the place where the job is
    DETAIL = "detail"  # a column of `detail`, written as a whole
    REPORT = "report"  # a column of `detail`, of which None keeps what is stored
    CHILDREN = "children"  # a column of `detail`, written as a difference
    DERIVED = "derived"  # nowhere: from other tables


class Insert(Enum):
    """Which inserts write a fact."""

    EVERY = "every"
    SPECIAL = "special"  # only those of jobs that are more than a row; other jobs have the default
    NEVER = "never"  # the engine knows it


class JobField(NamedTuple):
    name: str
    home: Home
    insert: Insert = Insert.NEVER
    archived: bool = True
    is_id: bool = False  # of a job
    column: str | None = None  # if it is called otherwise in SQL
    usual: Any = None  # the value of most jobs, for which NULL is stored
    document: str | None = ""  # how users call it; None: they do not see it


def _fact(name: str, insert: Insert, **more: Any) -> JobField:
    return JobField(name, Home.FACT, insert, **more)


_EVERY, _SPECIAL = Insert.EVERY, Insert.SPECIAL
_PLACE, _DETAIL, _REPORT, _CHILDREN, _DERIVED = Home.PLACE, Home.DETAIL, Home.REPORT, Home.CHILDREN, Home.DERIVED

JOB_FIELDS = (
    _fact("job_id", _EVERY, is_id=True),
    _fact("job_type", _EVERY),
    _fact("queue", _EVERY),
    _fact("priority", _EVERY),  # as submitted; a later one is in the detail, as is a later due time
    _fact("payload", _EVERY, archived=False),
    _fact("scheduled_for", _EVERY),
    _fact("max_attempts", _EVERY),
    _fact("timeout_micros", _EVERY, document="timeout_seconds"),
    _fact("subject", _EVERY),
    _fact("tags", _EVERY),
    _fact("created_by", _EVERY),
    _fact("job_stage", _EVERY),
    _fact("parent_job_id", _SPECIAL, is_id=True),
    _fact("root_job_id", _EVERY, is_id=True),
    _fact("content_hash", _EVERY),
    _fact("concurrency_key", _SPECIAL),
    _fact("concurrency_limit", _SPECIAL, archived=False, document=None),
    _fact("on_dependency_failure", _SPECIAL, archived=False, usual="cancel"),
    _fact("payload_version", _EVERY),
    _fact("fairness_key", _EVERY),
    _fact("fairness_weight", _EVERY, archived=False, usual=1, document=None),
    _fact("traceparent", _EVERY, archived=False, document=None),
    _fact("dedup_key", _SPECIAL),
    _fact("trigger_rule", _SPECIAL, usual="all_success"),
    _fact("rate_key", _SPECIAL),
    _fact("rate_cost", _SPECIAL, archived=False, usual=1),
    _fact("schedule", _SPECIAL),
    _fact("tick_at", _SPECIAL),
    _fact("created_at", Insert.NEVER),
    JobField("status", _PLACE),
    JobField("attempt", _PLACE),
    JobField("failures", _PLACE),
    JobField("version", _PLACE),
    JobField("parked", _PLACE, archived=False, document=None),
    JobField("expires_at", _PLACE, _SPECIAL, archived=False),
    JobField("awaits", _PLACE, archived=False, document="waits_for"),
    JobField("worker_id", _PLACE),
    JobField("worker_version", _PLACE),
    JobField("lease_expires_at", _PLACE, archived=False),
    JobField("started_at", _PLACE),
    JobField("completed_at", _PLACE),
    JobField("progress", _PLACE),
    JobField("stage", _PLACE),
    JobField("result", _PLACE, archived=False),
    JobField("result_artifact", _PLACE, archived=False, document=None),
    JobField("snoozes", _DETAIL, document=None),
    JobField("give_backs", _DETAIL, document=None),
    JobField("suspicion", _DETAIL, archived=False, document=None),
    JobField("waits", _DETAIL, document=None),
    JobField("join", _DETAIL, archived=False, column="join_name", document=None),  # JOIN is a word of SQL
    JobField("reused_from", _DETAIL, is_id=True),
    JobField("rows_of", _DETAIL, is_id=True, document=None),
    JobField("rows_attempt", _DETAIL, document=None),
    JobField("last_error", _DETAIL),
    JobField("error_type", _DETAIL, document=None),
    JobField("lost_at", _DETAIL, archived=False, document=None),
    JobField("errors", _DETAIL, archived=False),
    JobField("logs", _REPORT, archived=False),
    JobField("log_location", _REPORT, archived=False, document="logs"),
    JobField("metrics", _REPORT),
    JobField("artifacts", _REPORT, archived=False),
    JobField("result_tables", _REPORT),
    JobField("children", _CHILDREN, document="child_count"),
    JobField("open_children", _CHILDREN, document="open_child_count"),
    JobField("failed_children", _CHILDREN, document=None),
    JobField("cancelled_children", _CHILDREN, document=None),
    JobField("history", _DERIVED, archived=False, document=None),  # it has a route of its own
    JobField("updated_at", _DERIVED),
    JobField("dependencies", _DERIVED),
    JobField("dependent_jobs", _DERIVED),
    JobField("dependent_count", _DERIVED),
    JobField("processing_micros", _DERIVED, document="processing_time_ms"),
    JobField("archived_at", _DERIVED),
)


def _names(*homes: Home) -> tuple[str, ...]:
    return tuple(each.column or each.name for each in JOB_FIELDS if each.home in homes)


# What an insert writes of any job: the others have their defaults in a plain one.
PLAIN_FIELDS = tuple(each.name for each in JOB_FIELDS if each.insert is Insert.EVERY)
FACT_FIELDS = _names(Home.FACT)
DETAIL_FIELDS = _names(Home.DETAIL)
REPORT_FIELDS = _names(Home.REPORT)
CHILDREN_FIELDS = _names(Home.CHILDREN)
# Of edges and times: computed where a job is read.
COMPUTED_FIELDS = ("dependencies", "dependent_jobs", "dependent_count", "processing_micros", "archived_at")
STORED_FIELDS = tuple(each.name for each in JOB_FIELDS if each.name not in COMPUTED_FIELDS)
ARCHIVED_FIELDS = tuple(each.name for each in JOB_FIELDS if each.archived and each.name in STORED_FIELDS)
RENAMED = {each.name: each.column for each in JOB_FIELDS if each.column is not None}
USUAL = {each.name: each.usual for each in JOB_FIELDS if each.usual is not None}
ID_FIELDS = frozenset(each.name for each in JOB_FIELDS if each.is_id)
HOMES = {each.name: each.home for each in JOB_FIELDS}
DOCUMENT_FIELDS = tuple(dict.fromkeys(each.document or each.name for each in JOB_FIELDS if each.document is not None))
