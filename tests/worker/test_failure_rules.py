"""`retry_on`, `discard_on` and a backoff function: what becomes of a job whose handler raises."""

import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from backstay import Backoff, Backstay, ConfigurationError, Discard, InvalidOption, Retry
from backstay.errors import StoreUnavailable
from backstay.failure_rules import AS_USUAL, Decision, FailureRules
from backstay.testing import ManualClock
from tests.support import failing_jobs
from tests.support.eventually import eventually

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Oops(ValueError):
    pass


def raising(app: Backstay, error: BaseException, **options: Any) -> Any:
    options = {"backoff": Backoff(base=60, jitter=0), **options}

    @app.job("work", **options)
    async def work(payload: None) -> None:
        raise error

    return work


async def settled(app: Backstay, handler: Any, payload: Any = None) -> Any:
    """Run a job until its first attempt is settled."""
    async with app, app.worker(poll_interval=60):
        job = await app.submit(handler, payload)

        async def is_settled() -> bool:
            return (await job.record()).status in ("retrying", "failed")

        await eventually(is_settled, 60)
        return await job.record()


@pytest.mark.parametrize(
    ("options", "error", "status"),
    [
        ({"retry_on": ConnectionError}, ConnectionError("away"), "retrying"),
        ({"retry_on": (OSError, TimeoutError)}, ConnectionError("a subclass"), "retrying"),
        ({"retry_on": ConnectionError}, ValueError("another"), "failed"),
        ({"discard_on": ValueError}, Oops("a subclass"), "failed"),
        ({"discard_on": ValueError}, KeyError("another"), "retrying"),
        ({"retry_on": Exception, "discard_on": ValueError}, ValueError("both"), "failed"),
        ({"retry_on": KeyError}, Retry("asked for"), "retrying"),
        ({"discard_on": KeyError}, Discard("asked for"), "failed"),
        ({"retry_on": KeyError}, StoreUnavailable("the queue itself"), "retrying"),
    ],
)
async def test_the_type_of_an_exception_decides_whether_a_job_is_tried_again(
    app: Backstay, options: dict[str, Any], error: BaseException, status: str
) -> None:
    record = await settled(app, raising(app, error, **options))

    assert (record.status, record.failures) == (status, 1)


async def test_a_function_says_from_attempt_and_exception_when_the_next_attempt_is_due(make_app: Any) -> None:
    app: Backstay = make_app(clock=ManualClock(NOON))
    work = raising(app, failing_jobs.Busy(300), backoff=lambda attempt, error: timedelta(seconds=error.after * attempt))

    record = await settled(app, work)

    assert (record.status, record.scheduled_for) == ("retrying", NOON + timedelta(seconds=300))


@pytest.mark.parametrize(
    "function", [lambda attempt, error: 1 / 0, lambda attempt, error: -1, lambda attempt, error: "soon"]
)
async def test_a_faulty_function_is_logged_and_the_default_backoff_applies(
    make_app: Any, function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    app: Backstay = make_app(clock=ManualClock(NOON))
    with caplog.at_level(logging.WARNING, "backstay.worker"):
        record = await settled(app, raising(app, ValueError("no"), backoff=function))

    assert record.status == "retrying"
    assert NOON + timedelta(seconds=54) <= record.scheduled_for <= NOON + timedelta(seconds=66)
    assert "the default is used" in caplog.text


async def test_attempts_end_whatever_the_function_says(app: Backstay) -> None:
    record = await settled(app, raising(app, ValueError("no"), max_attempts=1, backoff=lambda attempt, error: 5))

    assert record.status == "failed"


@pytest.mark.parametrize(("payload", "status"), [("busy", "retrying"), ("key", "failed")])
async def test_a_child_process_decides_by_its_own_types(make_app: Any, payload: str, status: str) -> None:
    app: Backstay = failing_jobs.bind(make_app)

    record = await settled(app, "apart", payload)

    assert record.status == status
    if status == "retrying":
        wait = record.scheduled_for - record.history[-1].at
        assert timedelta(seconds=990) < wait <= timedelta(seconds=1_000)


async def test_each_job_of_a_batch_is_judged_by_its_own_exception(app: Backstay) -> None:
    @app.batch_job("many", max_size=2, retry_on=ConnectionError)
    async def many(payloads: list[int]) -> list[Any]:
        return [ConnectionError("away") if payload else KeyError("no") for payload in payloads]

    async with app:
        jobs = await app.submit_many([("many", 0), ("many", 1)])
        async with app.worker(poll_interval=60):

            async def are_settled() -> bool:
                return all([(await job.record()).failures for job in jobs])

            await eventually(are_settled, 60)
        assert [(await job.record()).status for job in jobs] == ["failed", "retrying"]


def test_the_decision_is_a_pure_function_of_the_exception() -> None:
    rules = FailureRules(retry_on=(OSError,), backoff=lambda attempt, error: attempt * 2)

    assert rules.decide(KeyError(), 0) == Decision(discards=True)
    assert rules.decide(OSError(), 2) == Decision(after_micros=6_000_000)
    assert FailureRules(discard_on=(KeyError,)).decide(OSError(), 0) == AS_USUAL


def test_what_is_not_a_rule_is_refused_when_the_handler_is_registered() -> None:
    app = Backstay("sqlite:///unused.db")
    for options in ({"retry_on": "OSError"}, {"discard_on": ()}, {"discard_on": (OSError, 5)}):
        with pytest.raises(ConfigurationError, match="use an exception type"):
            raising(app, OSError(), **options)
    with pytest.raises(InvalidOption, match="a function of"):
        raising(app, OSError(), backoff=5)
