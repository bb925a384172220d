"""Import of the analysis service's jobs.db: what becomes of each of its states, and what is kept."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.imports.importer import Part, Plan, Report
from tests.imports import analysis_source, conftest
from tests.imports.analysis_source import INSERT, facts, facts_of, make, row
from tests.imports.conftest import refused
from tests.imports.facts import digest, jobs_of


@pytest.fixture
def jobs_db(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.db"
    make(path, 40)
    return path


def an_app(tmp_path: Path) -> Backstay:
    app = Backstay(f"sqlite:///{tmp_path}/queue.db")

    @app.job("analyze", queue="songs", timeout=600, max_attempts=3, reuse_by=["content_hash"])
    async def analyze(payload: dict[str, object]) -> dict[str, object]:
        return payload

    @app.job("lrc", queue="songs")
    async def lrc(payload: dict[str, object]) -> dict[str, object]:
        return payload

    return app


async def imported(app: Backstay, path: Path, part: Part = Part.ALL) -> Report:
    return await conftest.imported(app, "analysis", str(path), part=part)


async def planned(app: Backstay, path: Path) -> Plan:
    return await conftest.planned(app, "analysis", str(path))


async def test_every_job_is_the_same_here(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        report = await imported(app, jobs_db)

        assert (report.imported, report.compared, report.changed) == (40, 40, 0)
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(facts(jobs_db))


async def test_a_job_is_found_by_its_old_id(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        await imported(app, jobs_db)

        [job] = await app.find(tag="job_000000000007")
        assert (job.job_type, job.status, job.subject) == ("lrc", "failed", f"{7:064x}")


async def test_queue_attempts_and_time_limit_are_those_of_the_new_handler(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        await imported(app, jobs_db)

        [job] = await app.find(tag="job_000000000000")
        assert (job.queue, job.max_attempts, job.timeout_seconds, job.priority) == ("songs", 3, 600, 50)


async def test_a_job_that_was_running_runs_again_with_its_attempt_counted(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        await imported(app, jobs_db)

        [job] = await app.find(tag="job_000000000001")
        assert (job.status, job.attempt, job.failures, job.stage) == ("retrying", 1, 1, "requeued")
        assert "was running" in (job.last_error or "")
        assert [entry.event for entry in await app.history(job.job_id)] == ["submit", "rescue"]


async def test_a_completed_analysis_is_reused_for_the_same_song(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        await imported(app, jobs_db)

        again = await app.submit("analyze", {"content_hash": f"{2:064x}"}, reuse=True)

        assert (await again.result(timeout=5)) == {"tempo_bpm": 2.5, "beats": [0.25, 0.5]}


async def test_nothing_in_the_file_is_changed(tmp_path: Path, jobs_db: Path) -> None:
    before = hashlib.sha256(jobs_db.read_bytes()).digest()
    files = set(tmp_path.iterdir())
    async with an_app(tmp_path) as app:
        await planned(app, jobs_db)
        await imported(app, jobs_db)

    assert hashlib.sha256(jobs_db.read_bytes()).digest() == before
    assert {each.name for each in tmp_path.iterdir() if each not in files and each.name.startswith("jobs.db")} == set()


async def test_what_a_service_at_work_has_just_written_is_imported_too(tmp_path: Path, jobs_db: Path) -> None:
    with sqlite3.connect(jobs_db) as connection:
        connection.execute(INSERT, row(40))
        connection.commit()  # in its write-ahead log, and not in the file yet
        async with an_app(tmp_path) as app:
            assert (await imported(app, jobs_db)).imported == 41
    connection.close()


async def test_a_repeat_imports_what_came_since_and_leaves_the_rest_alone(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        await imported(app, jobs_db)
        [job] = await app.find(tag="job_000000000000")
        await app.cancel(job.job_id)
        with sqlite3.connect(jobs_db) as connection:
            connection.execute(INSERT, row(40))

        report = await imported(app, jobs_db)

        assert (report.imported, report.here_before, report.compared, report.changed) == (1, 40, 40, 1)
        assert report.changed_examples == (job.job_id,)
        assert (await app.get(job.job_id)).status == "cancelled"


async def test_history_can_be_imported_before_the_rest(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        first = await imported(app, jobs_db, Part.ENDED)
        assert (first.imported, (await app.counts())["pending"]) == (20, 0)

        second = await imported(app, jobs_db, Part.ACTIVE)

        assert second.imported == 20
        assert digest([facts_of(job) async for job in jobs_of(app)]) == digest(facts(jobs_db))


async def test_the_plan_says_what_becomes_of_which_jobs(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        plan = await planned(app, jobs_db)

        assert {(line.job_type, line.state, line.becomes, line.count) for line in plan.lines} == {
            (job_type, state, becomes, 5)
            for job_type in ("analyze", "lrc")
            for state, becomes in analysis_source.BECOMES.items()
        }
        assert "counted as a failed attempt" in next(line.note for line in plan.lines if line.state == "processing")
        assert await app.find() == []


async def test_what_cannot_be_imported_is_listed_with_the_reason(tmp_path: Path, jobs_db: Path) -> None:
    with sqlite3.connect(jobs_db) as connection:
        connection.execute("UPDATE jobs SET request_json = '{' WHERE id = 'job_000000000004'")
        connection.execute("UPDATE jobs SET created_at = 'yesterday' WHERE id = 'job_000000000008'")
    async with an_app(tmp_path) as app:
        report = await imported(app, jobs_db)

        assert report.imported == 38
        assert [(each.state, each.reason, each.examples) for each in report.plan.refused] == [
            ("queued", "created_at is not an ISO 8601 time", ("job_000000000008",)),
            ("queued", "request_json is not JSON", ("job_000000000004",)),
        ]


@pytest.mark.parametrize("engine", conftest.ENGINES)
async def test_a_large_result_becomes_a_file(place: conftest.Place, jobs_db: Path, engine: str) -> None:
    with sqlite3.connect(jobs_db) as connection:
        connection.execute(
            "UPDATE jobs SET result_json = json_object('x', ?) WHERE id = 'job_000000000002'", ("x" * 100_000,)
        )
    async with Backstay(place(engine)) as app:
        report = await imported(app, jobs_db)

        [job] = await app.find(tag="job_000000000002")
        assert await app.result(job.job_id) == {"x": "x" * 100_000}
        assert report.changed == 0


async def test_the_import_is_in_the_audit_trail(tmp_path: Path, jobs_db: Path) -> None:
    async with an_app(tmp_path) as app:
        await imported(app, jobs_db)

        [entry] = await app.audit_trail()
        assert (entry.action, entry.by, entry.target, entry.outcome) == ("import", "me", str(jobs_db), "ok")
        assert entry.after["imported"] == 40


async def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE jobs (id)")

    await refused("analysis", str(other), r"is not a jobs\.db")
    await refused("analysis", str(tmp_path / "none.db"), "no file")


async def test_broken_rows_are_named_and_the_others_imported(tmp_path: Path) -> None:
    """SQLite stores what it is given: a column may hold another type, bytes that are not UTF-8, and a key of NULL."""
    path = tmp_path / "jobs.db"
    columns = (
        "id TEXT PRIMARY KEY, type TEXT, status TEXT, progress REAL, stage TEXT, error_message TEXT, request_json TEXT,"
        " result_json TEXT, created_at TEXT, updated_at TEXT, content_hash TEXT"
    )
    good = {
        "id": "job_good", "type": "analyze", "status": "failed", "progress": 0.5, "stage": "tempo",
        "error_message": "Stra\u00dfe\0", "request_json": "{}", "result_json": None,
        "created_at": "2026-11-15T09:00:00", "updated_at": "2026-11-15T09:00:00", "content_hash": "h",
    }  # fmt: skip
    broken = [
        ({"id": None}, "it has no id"),
        ({"id": b"\xff\xfe"}, "id is not UTF-8"),
        ({"request_json": "é".encode("latin-1")}, "request_json is not UTF-8"),
        ({"request_json": "{"}, "request_json is not JSON"),
        ({"progress": "half"}, "progress is not a number"),
        ({"type": ""}, "it has no type"),
        ({"status": "lost"}, "unknown status 'lost'"),
        ({"created_at": "yesterday"}, "created_at is not an ISO 8601 time"),
    ]
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE jobs ({columns})")
        for number, changes in enumerate([{}, *(each for each, _ in broken)]):
            values = good | {"id": f"job_{number}"} | changes
            connection.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(values))})", tuple(values.values()))
    connection.close()
    async with an_app(tmp_path) as app:
        report = await imported(app, path)

        assert {each.reason for each in report.plan.refused} == {reason for _, reason in broken}
        [job] = await app.find()
        assert (report.imported, job.last_error) == (1, "Stra\u00dfe\\0")
