"""What a handler in a process says to its worker: odd numbers, odd log lines, and a worker that fails to serve it."""

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from backstay import Backstay, JobFailed
from backstay.job import REPORTED_ZERO
from backstay.worker import process
from backstay.worker.run import Report
from tests.support import process_jobs
from tests.support.eventually import eventually


async def ended(app: Backstay, job_type: str, payload: Any = None) -> Any:
    handle = await app.submit(job_type, payload)
    with contextlib.suppress(JobFailed):
        await handle.result(timeout=30)
    return await app.get(handle.job_id)


def messages(job: Any) -> list[str]:
    return [entry["message"] for entry in job.logs["entries"]]


async def test_a_child_is_killed_when_the_worker_fails_to_serve_it(
    make_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = process_jobs.bind(make_app)
    seen: list[Any] = []
    async with app, app.worker(concurrency=1) as worker:
        children = worker._executor.processes._all

        async def breaks(*_: Any) -> None:
            seen.extend(children)
            raise RuntimeError("cannot be served")

        monkeypatch.setattr(process, "served", breaks)
        job = await ended(app, "never_returns", 1)
        assert (job.status, job.errors[0]["type"]) == ("failed", "RuntimeError")
        assert not children

        async def is_gone() -> bool:
            return not seen[0].alive

        await eventually(is_gone)


@pytest.mark.parametrize("isolation", ["async", "thread", "process"])
async def test_nan_and_infinities_are_treated_alike_in_every_isolation(
    make_app: Any, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    said: list[float | None] = []
    say_progress = Report.say_progress

    def heard(self: Report, fraction: float, stage: str | None) -> None:
        say_progress(self, fraction, stage)
        said.append(self.progress)

    monkeypatch.setattr(Report, "say_progress", heard)
    app = process_jobs.bind(make_app)
    says = process_jobs.says_no_numbers.function

    @app.job("in_a_thread", max_attempts=1)
    def in_a_thread(payload: None, ctx: Any) -> None:
        says(payload, ctx)

    @app.job("in_the_loop", max_attempts=1)
    async def in_the_loop(payload: None, ctx: Any) -> None:
        says(payload, ctx)

    names = {"async": "in_the_loop", "thread": "in_a_thread", "process": "says_no_numbers"}
    async with app, app.worker():
        job = await ended(app, names[isolation])
    assert (job.status, job.metrics) == ("completed", {"\\ud800": 0.1 + 0.2})
    assert messages(job) == [f"metric loss is {value}, which cannot be stored" for value in ("nan", "inf", "-inf")]
    assert said == [REPORTED_ZERO, 1.0, REPORTED_ZERO, 0.3]


class Heard(logging.Handler):
    """What reaches the log of the worker's process; raises if it is broken."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.broken = False

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("odd"):
            self.records.append(record)
            if self.broken:
                raise RuntimeError("the handler broke")


@pytest.fixture
def heard() -> Iterator[Heard]:
    handler = Heard()
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


def line(logger: str, text: str) -> dict[str, str]:
    return {"logger": json.dumps(logger), "text": json.dumps(text)}


async def test_a_logging_handler_that_raises_on_a_line_of_a_child_does_not_fail_the_job(
    make_app: Any, heard: Heard, capsys: pytest.CaptureFixture[str]
) -> None:
    heard.broken = True
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "warns", line("odd", "kept"))
    assert (job.status, messages(job)) == ("completed", ["kept"])
    assert len(heard.records) == 1
    assert "RuntimeError: the handler broke" in capsys.readouterr().err


async def test_a_line_of_a_child_with_a_lone_surrogate_is_kept_and_a_loggers_name_cannot_forge_a_line(
    make_app: Any, heard: Heard
) -> None:
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "warns", line("odd\nCRITICAL\u2028forged \ud800", "bad \ud800 text"))
    assert (job.status, messages(job)) == ("completed", ["bad \\ud800 text"])
    [record] = heard.records
    assert (record.name, record.getMessage()) == ("odd\\nCRITICAL\\u2028forged \\ud800", "bad \\ud800 text")


@pytest.mark.parametrize(
    ("character", "kept"),
    [("x", process_jobs.SMALL_LOG_BYTES), ("\x01", process_jobs.SMALL_LOG_BYTES // 4)],
    ids=["plain", "escaped"],
)
async def test_a_line_of_a_child_that_is_too_long_is_cut_and_the_job_goes_on(
    make_app: Any, monkeypatch: pytest.MonkeyPatch, heard: Heard, character: str, kept: int
) -> None:
    monkeypatch.setattr(process, "MESSAGE_BYTES_MAX", process_jobs.SMALL_MESSAGE_BYTES)
    app = process_jobs.bind(make_app)
    async with app, app.worker():
        job = await ended(app, "logs_a_lot", character)
    assert job.status == "completed", job.last_error
    [record] = heard.records
    assert len(record.getMessage()) == kept and set(record.getMessage()) == {character}
