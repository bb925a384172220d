"""Checks what retention did, from the file and from the answers that callers got.

- Nothing is lost: every acknowledged job is in the job table or in the archive, never in both, and was created once.
- No active job is archived: an archived job had ended, and was added to the archive in the same commit, with its
outcome; none was archived early, trees were archived as a whole, and jobs that are kept forever never were.
- A "forever" dedup key still belongs to its job in the archive.
- Jobs that were not archived are complete: history, result, files. The files of archived jobs are gone.
- The counters are correct.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import msgspec

from backstay.clock import MICROS, Instant
from backstay.core.records import FOREVER, JobRecord
from backstay.core.states import TERMINAL, Status
from backstay.testing.history import Operation, Outcome
from tests.campaigns.processes.retention import KEPT

# Commits with the change that it watches, so that no crash can separate the two.
WITNESS = """
CREATE TABLE seen_born (job_id TEXT, job_type TEXT);
CREATE TRIGGER see_born AFTER INSERT ON job BEGIN
    INSERT INTO seen_born VALUES (new.job_id, new.job_type);
END;
CREATE TABLE seen_change (job_type TEXT, source TEXT, target TEXT);
CREATE TRIGGER see_end AFTER INSERT ON ended BEGIN
    INSERT INTO seen_change SELECT job_type, 'active', new.status FROM job WHERE seq = new.seq;
END;
CREATE TRIGGER see_change AFTER INSERT ON event
WHEN new.source <> new.target AND new.target NOT IN ('completed', 'failed', 'cancelled') BEGIN
    INSERT INTO seen_change SELECT job_type, new.source, new.target FROM job WHERE seq = new.seq;
END;
CREATE TABLE seen_gone (n INTEGER PRIMARY KEY, job_id TEXT, job_type TEXT, status TEXT, completed_at INTEGER,
    attempt INTEGER, failures INTEGER, root TEXT, in_archive INTEGER);
CREATE TRIGGER see_gone AFTER DELETE ON job BEGIN -- its end goes after it
    INSERT INTO seen_gone (job_id, job_type, status, completed_at, attempt, failures, root, in_archive)
    SELECT old.job_id, old.job_type, coalesce(e.status, 'active'), e.completed_at, e.attempt, e.failures,
        old.root_job_id, EXISTS (SELECT 1 FROM archive WHERE job_id = old.job_id)
    FROM (SELECT 1) LEFT JOIN ended AS e ON e.seq = old.seq;
END;
CREATE TABLE seen_archived (job_id TEXT);
CREATE TRIGGER see_archived AFTER INSERT ON archive BEGIN
    INSERT INTO seen_archived VALUES (new.job_id);
END;
CREATE TABLE seen_dropped (job_id TEXT);
CREATE TRIGGER see_dropped AFTER DELETE ON archive BEGIN
    INSERT INTO seen_dropped VALUES (old.job_id);
END;
"""


class Gone(msgspec.Struct, frozen=True):
    """A job as it was when it was archived."""

    job_id: str
    job_type: str
    status: str
    completed_at: Instant | None
    attempt: int
    failures: int
    root: str | None
    in_archive: bool


class Archived(msgspec.Struct, frozen=True):
    job_id: str
    archived_at: Instant
    record: JobRecord


@dataclass(frozen=True)
class Books:
    """All records at the end of the run."""

    jobs: Sequence[JobRecord]
    archive: Sequence[Archived]
    born: Sequence[tuple[str, str]]  # id, type
    gone: Sequence[Gone]
    moved: Sequence[str]  # into the archive
    dropped: Sequence[str]  # out of it
    changes: Counter[tuple[str, str, str]]  # type, from, to
    counters: Counter[tuple[str, str]]  # type, outcome
    operations: Sequence[Operation]
    folders: Mapping[str, Instant]  # of files, by job: when a file was last written there

    @property
    def ids(self) -> set[str]:
        return {record.job_id for record in self.jobs}

    @property
    def archived(self) -> dict[str, Archived]:
        return {each.job_id: each for each in self.archive}


def judge(books: Books) -> list[str]:
    """Return the violations, as sentences."""
    return [sentence for check in CHECKS for sentence in check(books)]


def _nothing_lost(books: Books) -> Iterator[str]:
    jobs, archived = books.ids, set(books.archived)
    for op in books.operations:
        if op.verb == "insert" and op.outcome is Outcome.OK and op.answer.job_id not in jobs | archived:
            yield f"{op.answer.job_id} was acknowledged and is neither in the jobs nor in the archive"
    for job_id in jobs & archived:
        yield f"{job_id} is in the jobs and in the archive"
    for job_id, times in Counter(job_id for job_id, _ in books.born).items():
        if times > 1:
            yield f"{job_id} was stored {times} times"
        if job_id not in jobs | archived:
            yield f"{job_id} was stored and is gone"
    for job_id in books.dropped:
        yield f"{job_id} was dropped from an archive that keeps for ever"


def _nothing_active_touched(books: Books) -> Iterator[str]:
    archived = books.archived
    for each in books.gone:
        if each.status not in TERMINAL:
            yield f"{each.job_id} left the jobs while it was {each.status}"
        if not each.in_archive or each.job_id not in archived:
            yield f"{each.job_id} left the jobs and was not in the archive"
            continue
        kept = archived[each.job_id].record
        if (kept.status, kept.completed_at, kept.attempt, kept.failures) != (
            each.status,
            each.completed_at,
            each.attempt,
            each.failures,
        ):
            yield f"{each.job_id} is {kept} in the archive, and was {each} when it left"


def _moved_once(books: Books) -> Iterator[str]:
    """Check that each job was added to the archive and removed from the job table in one commit."""
    moved, gone = Counter(books.moved), Counter(each.job_id for each in books.gone)
    for job_id in moved | gone:
        if (moved[job_id], gone[job_id]) != (1, 1):
            yield f"{job_id} came to the archive {moved[job_id]} times and left the jobs {gone[job_id]} times"


def _not_before_its_time(books: Books) -> Iterator[str]:
    for each in books.archive:
        completed, other = KEPT[each.record.job_type]
        span = completed if each.record.status is Status.COMPLETED else other
        if span is None:
            yield f"{each.job_id} ({each.record.job_type}) is to be kept for ever and left"
            continue
        stayed = each.archived_at - (each.record.completed_at or 0)
        if stayed <= span * MICROS and each.record.job_type != "purged":
            yield f"{each.job_id} ({each.record.job_type}) left {stayed} µs after its end, and not after {span} s"


def _trees_go_whole(books: Books) -> Iterator[str]:
    roots = {record.root_job_id for record in books.jobs if record.root_job_id is not None}
    for each in books.archive:
        root = each.record.root_job_id or each.job_id
        if root in roots or (each.record.root_job_id is not None and root in books.ids):
            yield f"{each.job_id} left, and others of its tree {root} stayed"


def _keys_stand_for_ever(books: Books) -> Iterator[str]:
    answered: dict[str, set[str]] = defaultdict(set)
    for op in books.operations:
        lasting = op.item.dedup_key is not None and (op.item.dedup_until or 0) >= FOREVER
        if op.verb == "insert" and op.outcome is Outcome.OK and lasting:
            answered[str(op.item.dedup_key)].add(op.answer.job_id)
    for key, ids in answered.items():
        if len(ids) > 1:
            yield f"key {key} stood for {sorted(ids)}"


def _files_follow(books: Books) -> Iterator[str]:
    archived = books.archived
    for job_id in books.folders:
        # A run that lost its claim may still write; no record refers to that file.
        if job_id in archived and books.folders[job_id] < archived[job_id].archived_at:
            yield f"{job_id} left, and its files stayed: {archived[job_id].record}"
    for record in books.jobs:
        if record.artifacts and record.job_id not in books.folders:
            yield f"{record.job_id} stayed, and its files are gone"


def _counters_add_up(books: Books) -> Iterator[str]:
    expected: Counter[tuple[str, str]] = Counter()
    for _, job_type in books.born:
        expected[job_type, "submitted"] += 1
    for (job_type, source, target), times in books.changes.items():
        if target in TERMINAL:
            expected[job_type, target] += times
        elif target == Status.RETRYING:
            expected[job_type, "retried"] += times
        elif source in TERMINAL:
            expected[job_type, "retried_by_hand"] += times
        elif (source, target) == (Status.PROCESSING, Status.PENDING):
            expected[job_type, "given_back"] += times
        elif (source, target) == (Status.PROCESSING, Status.SCHEDULED):  # deferred, behind others of a lost worker
            expected[job_type, "snoozed"] += times
    for key in sorted(expected | books.counters):
        if key[1] == "rescued":  # in addition to one of these; a row shows a rescue only as a failure
            if books.counters[key] > expected[key[0], "retried"] + expected[key[0], Status.FAILED]:
                yield f"{key[0]}: {books.counters[key]} rescues were counted, more than there are failures"
        elif expected[key] != books.counters[key]:
            yield f"{key[0]} {key[1]}: {expected[key]} happened, {books.counters[key]} were counted"


CHECKS = (
    _nothing_lost,
    _nothing_active_touched,
    _moved_once,
    _not_before_its_time,
    _trees_go_whole,
    _keys_stand_for_ever,
    _files_follow,
    _counters_add_up,
)


def install_witness(path: Path) -> None:
    _run(path, apsw.SQLITE_OPEN_READWRITE, WITNESS)


def read_books(path: Path, jobs: Sequence[JobRecord], operations: Sequence[Operation]) -> Books:
    def rows(statement: str) -> list[tuple[Any, ...]]:
        return _run(path, apsw.SQLITE_OPEN_READONLY, statement)

    counters: Counter[tuple[str, str]] = Counter()
    for job_type, outcome, count in rows("SELECT job_type, outcome, count FROM counter"):
        counters[job_type, outcome] += count
    archive = [
        Archived(job_id, archived_at, msgspec.json.decode(details, type=JobRecord))
        for job_id, archived_at, details in rows("SELECT job_id, archived_at, details FROM archive")
    ]
    columns = ", ".join(Gone.__struct_fields__)
    folder = Path(f"{path}.files")
    return Books(
        jobs,
        archive,
        rows("SELECT job_id, job_type FROM seen_born"),
        [Gone(*row) for row in rows(f"SELECT {columns} FROM seen_gone ORDER BY n")],
        [job_id for (job_id,) in rows("SELECT job_id FROM seen_archived")],
        [job_id for (job_id,) in rows("SELECT job_id FROM seen_dropped")],
        Counter(rows("SELECT job_type, source, target FROM seen_change")),
        counters,
        operations,
        {each.name: _written_at(each) for each in folder.iterdir()} if folder.is_dir() else {},
    )


def _written_at(folder: Path) -> Instant:
    return max((each.stat().st_mtime_ns // 1000 for each in folder.rglob("*")), default=0)


def _run(path: Path, flags: int, statements: str) -> list[tuple[Any, ...]]:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(10_000)
    try:
        return connection.execute(statements).fetchall()
    finally:
        connection.close()
