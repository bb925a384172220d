"""Observers: what they are told, that they cannot break a job, and how they are turned on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from backstay import Backstay, ConfigurationError, Context, InvalidPayload
from backstay.core.records import NewJob
from backstay.observers import Attempted, Ending, Observer, Sentry, Tracing
from backstay.sync import Backstay as BlockingBackstay
from backstay.testing import drain


class Diary(Observer):
    def __init__(self) -> None:
        self.lines: list[str] = []

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[str | None]:
        self.lines.append(f"submitting {', '.join(job.job_type for job in jobs)}")
        yield "from the diary"
        self.lines.append("stored")

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[str | None]:
        self.lines.append(f"running {jobs[0].job_type} {jobs[0].traceparent}")
        yield None
        self.lines.append("ran")

    def ended(self, job: Attempted, ending: Ending) -> None:
        self.lines.append(f"{job.job_type} {ending.outcome}, {'dead' if ending.is_dead else 'not dead'}")


class Broken(Observer):
    """Fails wherever it is called; `late`: only once what it is around has been done."""

    def __init__(self, late: bool) -> None:
        self._late = late

    @contextmanager
    def submitting(self, jobs: Sequence[NewJob]) -> Iterator[str | None]:
        yield from self._fail()

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[str | None]:
        yield from self._fail()

    def ended(self, job: Attempted, ending: Ending) -> None:
        raise RuntimeError("broken")

    def _fail(self) -> Iterator[None]:
        if self._late:
            yield
        raise RuntimeError("broken")


async def test_an_observer_is_told_of_the_submit_the_attempt_and_its_end(make_app: Callable[..., Backstay]) -> None:
    diary = Diary()
    app = make_app(observers=[diary])

    @app.job("parent", max_attempts=1)
    async def parent(payload: int, ctx: Context) -> None:
        await ctx.submit("child", payload)

    @app.job("child", max_attempts=1)
    def child(payload: int) -> None:
        raise ValueError("no")

    async with app:
        handle = await parent.submit(1)
        assert (await app.get(handle.job_id)).row.traceparent == handle.row.traceparent == "from the diary"
        await drain(app)
    assert diary.lines == [
        "submitting parent",
        "stored",
        "running parent from the diary",
        "submitting child",
        "stored",
        "parent completed, not dead",
        "ran",
        "running child from the diary",
        "child failed, dead",
        "ran",
    ]


@pytest.mark.parametrize("late", [False, True])
async def test_a_broken_observer_breaks_no_job_and_complains_once(
    make_app: Callable[..., Backstay], caplog: pytest.LogCaptureFixture, late: bool
) -> None:
    diary = Diary()
    app = make_app(observers=[Broken(late), diary])

    @app.job("report")
    async def report(payload: int) -> int:
        return payload

    async with app:
        for each in range(3):
            await report.submit(each)
        jobs = await drain(app)
    assert [job.status for job in jobs] == ["completed"] * 3
    assert diary.lines.count("report completed, not dead") == 3
    said = [record.getMessage() for record in caplog.records if record.name == "backstay.observers"]
    assert sorted(line.partition(" ")[0] for line in said) == ["Broken.ended", "Broken.running", "Broken.submitting"]


async def test_what_is_refused_before_it_is_stored_is_nobodys_to_observe(make_app: Callable[..., Backstay]) -> None:
    diary = Diary()
    app = make_app(observers=[diary])

    @app.job("report")
    async def report(payload: int) -> None: ...

    async with app:
        with pytest.raises(InvalidPayload):
            await report.submit("x")
    assert diary.lines == []


def test_the_blocking_app_takes_observers_too(url: str) -> None:
    diary = Diary()
    app = BlockingBackstay(url, observers=[diary])

    @app.job("report")
    def report(payload: int) -> None: ...

    with app:
        report.submit(1)
        drain(app)
    assert "report completed, not dead" in diary.lines


def test_settings_turn_them_on_and_what_the_code_gives_counts(
    make_app: Callable[..., Backstay], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert make_app().observers is None
    monkeypatch.setenv("BACKSTAY_OTEL", "1")
    monkeypatch.setenv("BACKSTAY_SENTRY_DSN", "http://public@127.0.0.1:1/1")
    mine = Sentry(redact=["iban"])
    assert [type(each) for each in _observers(make_app())] == [Tracing, Sentry]
    assert _observers(make_app(observers=[mine]))[0] is mine and len(_observers(make_app(observers=[mine]))) == 2
    monkeypatch.setenv("BACKSTAY_OTEL", "0")
    monkeypatch.setenv("BACKSTAY_SENTRY_DSN", "")
    assert make_app().observers is None


def _observers(app: Backstay) -> tuple[Any, ...]:
    assert app.observers is not None
    return app.observers._all


@pytest.mark.parametrize(
    ("options", "says"),
    [({"BACKSTAY_OTEL": "perhaps"}, "BACKSTAY_OTEL='perhaps'"), ({"BACKSTAY_SENTRY_DSN": "s3cret"}, "is not a DSN")],
)
def test_a_setting_that_makes_no_sense_is_an_error_at_the_start(
    make_app: Callable[..., Backstay], monkeypatch: pytest.MonkeyPatch, options: dict[str, str], says: str
) -> None:
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=says) as caught:
        make_app()
    assert "s3cret" not in str(caught.value)


def test_what_is_no_observer_is_refused(make_app: Callable[..., Backstay]) -> None:
    with pytest.raises(ConfigurationError, match="give a list of observers"):
        make_app(observers=[Tracing])


@pytest.mark.parametrize(
    ("module", "package", "name", "extra"),
    [
        ("backstay.observers.tracing", "opentelemetry", "Tracing", r"backstay\[otel\]"),
        ("backstay.observers.sentry", "sentry_sdk", "Sentry", r"backstay\[sentry\]"),
    ],
)
def test_a_missing_extra_says_which_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, name: str, extra: str
) -> None:
    import backstay.observers

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=extra):
        getattr(backstay.observers, name)


async def test_without_a_client_one_line_says_that_errors_go_nowhere(
    make_app: Callable[..., Backstay], caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(observers=[Sentry()])

    @app.job("report", max_attempts=1)
    async def report(payload: int) -> None:
        raise ValueError("no")

    async with app:
        await report.submit(1)
        await report.submit(2)
        with caplog.at_level(logging.WARNING, "backstay.observers"):
            await drain(app)
    assert [r.getMessage().partition(":")[0] for r in caplog.records if r.name == "backstay.observers"] == [
        "errors are not reported"
    ]
