"""Import of queues that RQ has made and worked on, in a real Redis."""

from __future__ import annotations

import pickle

import pytest
from redis import Redis as Client
from rq import Queue

from backstay import Backstay
from backstay.imports.importer import Part
from tests.imports.conftest import ENGINES, Place, imported, planned, refused
from tests.imports.facts import digest, jobs_of
from tests.imports.letters import app_of
from tests.imports.rq_source import LATER, PLAIN, TASK, facts, facts_of, make

EACH = 3  # jobs of each kind
JOBS = 8 * EACH


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("serializer", ["pickle", "json"])
async def test_every_job_is_the_same_on_every_engine(
    redis_url: str, place: Place, engine: str, serializer: str
) -> None:
    make(redis_url, EACH, serializer)
    async with app_of(place(engine), TASK) as app:
        before = list(facts(redis_url, serializer))

        report = await imported(app, "rq", redis_url)

        assert (report.imported, report.compared, report.changed) == (JOBS, JOBS, 0)
        found = [job async for job in jobs_of(app)]
        ids = {job.job_id: job.tags[0] if job.tags else job.job_id for job in found}
        here = [facts_of(job, ids) for job in found]
        assert digest(here) == digest(before) == digest(facts(redis_url, serializer))


async def test_the_plan_says_what_becomes_of_which_jobs(redis_url: str, place: Place) -> None:
    make(redis_url, EACH)
    async with Backstay(place("sqlite")) as app:
        plan = await planned(app, "rq", redis_url)

        assert {(line.job_type, line.state, line.becomes, line.queue, line.count) for line in plan.lines} == {
            (TASK, state, becomes, "mail", EACH)
            for state, becomes in (
                ("finished", "completed"),
                ("failed", "failed"),
                ("canceled", "cancelled"),
                ("started", "retrying"),
                ("scheduled", "retrying"),
                ("scheduled", "scheduled"),
                ("deferred", "waiting"),
                ("queued", "pending"),
            )
        }


async def test_waiting_jobs_run_and_release_those_that_wait_for_them(redis_url: str, place: Place) -> None:
    make(redis_url, EACH)
    async with app_of(place("sqlite"), TASK) as app:
        await imported(app, "rq", redis_url)

        waiting = await app.find(status="waiting")
        async with app.worker():
            assert [await app.result(job.job_id, timeout=30) for job in waiting] == ["h"] * EACH


async def test_positional_arguments_without_a_model_are_a_list(redis_url: str, place: Place) -> None:
    Queue("mail", connection=Client.from_url(redis_url)).enqueue(TASK, "a", 2, priority=3)
    async with Backstay(place("sqlite")) as app:
        await imported(app, "rq", redis_url)

        [job] = await app.find()
        assert job.payload == {"args": ["a", 2], "priority": 3}


async def test_plain_data_of_the_standard_library_is_read_from_a_pickle(redis_url: str, place: Place) -> None:
    Queue("mail", connection=Client.from_url(redis_url)).enqueue(TASK, kwargs=PLAIN)
    async with Backstay(place("sqlite")) as app:
        await imported(app, "rq", redis_url)

        [job] = await app.find()
        assert job.payload == {
            "days": ["2026-11-15"],
            "price": "1.50",
            "id": "00000000-0000-0000-0000-000000000007",
            "at": LATER.isoformat(),
            "tags": ["a"],
            "n": [1, None],
        }


class Trap:
    """A pickle that would run code if it were unpickled."""

    sprung = False

    def __reduce__(self) -> object:
        return (exec, ("import tests.imports.test_rq as it; it.Trap.sprung = True",))


async def test_a_pickle_runs_no_code_and_is_listed_with_the_reason(redis_url: str, place: Place) -> None:
    queue = Queue("mail", connection=Client.from_url(redis_url))
    queue.enqueue(TASK, Trap())
    queue.enqueue(TASK, len)
    assert pickle.loads(pickle.dumps(Trap())) is None and Trap.sprung  # it would
    Trap.sprung = False
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "rq", redis_url)

        assert not Trap.sprung
        assert sorted(each.reason for each in report.plan.refused) == [
            "its call cannot be read without running code: it holds a builtins.exec",
            "its call cannot be read without running code: it names builtins.len",
        ]


async def test_a_pickle_that_says_something_endless_is_refused(redis_url: str, place: Place) -> None:
    said: list[object] = ["x" * 1000]
    for _ in range(40):
        said = [said, said]
    Queue("mail", connection=Client.from_url(redis_url)).enqueue(TASK, said, description="endless")
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "rq", redis_url)

        assert [each.reason for each in report.plan.refused] == [
            "its call is larger or deeper than what can be stored here"
        ]


async def test_broken_jobs_are_named_and_the_others_imported(redis_url: str, place: Place) -> None:
    client = Client.from_url(redis_url)
    queue = Queue("mail", connection=client)
    broken: list[tuple[dict[str, bytes], str]] = [
        ({"data": b"\x00\xff"}, "its call is not JSON"),
        ({"data": b"\x80\x05broken"}, "its call is not a pickle that can be read"),
        ({"dependency_ids": b"[1"}, "dependency_ids is not JSON"),
        ({"dependency_ids": b"7"}, "it is not as its system makes them (TypeError)"),
        ({"dependency_id": b"\xff"}, "it is not as its system makes them (UnicodeDecodeError)"),
        ({"created_at": b"once"}, "created_at is not an ISO 8601 time"),
        ({"status": b"asleep"}, "unknown status 'asleep'"),
        ({"timeout": "²".encode()}, "it is not as its system makes them (ValueError)"),
    ]
    for changes, _ in broken:
        job = queue.enqueue(TASK, "a")
        client.hset(f"rq:job:{job.id}", mapping=changes)  # type: ignore[arg-type]
    queue.enqueue(TASK, "b", meta={"pages": 3, "tenant": "north", "user": {"id": 7}, "urgent": True})
    async with Backstay(place("sqlite")) as app:
        report = await imported(app, "rq", redis_url)

        assert {each.reason for each in report.plan.refused} == {reason for _, reason in broken}
        [job_here] = await app.find()
        assert (job_here.metrics, job_here.tags) == ({"pages": 3}, ["tenant=north"])


async def test_a_repeat_imports_what_came_since(redis_url: str, place: Place) -> None:
    make(redis_url, EACH)
    async with app_of(place("sqlite"), TASK) as app:
        assert (await imported(app, "rq", redis_url, part=Part.ENDED)).imported == 3 * EACH
        Queue("mail", connection=Client.from_url(redis_url)).enqueue(TASK, "new")

        report = await imported(app, "rq", redis_url)

        assert (report.imported, report.here_before, report.changed) == (5 * EACH + 1, 3 * EACH, 0)


async def test_nothing_in_redis_is_changed(redis_url: str, place: Place) -> None:
    make(redis_url, EACH)
    client = Client.from_url(redis_url)
    before = {key: client.dump(key) for key in client.scan_iter()}
    async with Backstay(place("sqlite")) as app:
        await imported(app, "rq", redis_url)

    assert {key: client.dump(key) for key in client.scan_iter()} == before


async def test_another_database_is_refused(redis_url: str) -> None:
    await refused("rq", redis_url, "there is no key rq:queues")
    await refused("rq", "postgresql://x", "redis://")
    await refused("rq", f"{redis_url}?prefix=x", "unknown parameter 'prefix'")
