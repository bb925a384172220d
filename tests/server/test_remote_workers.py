"""Remote workers: registered, heard of, woken, told, and missed when they are silent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from backstay import Backstay, limits
from backstay.core.records import ClaimedJob, ClaimRequest
from backstay.errors import InvalidPayload
from backstay.ids import new_id
from backstay.server import long_poll
from tests.server.far import Far, listening, reached
from tests.support.eventually import eventually


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Backstay]:
    async with Backstay(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


@pytest.fixture
async def far(app: Backstay) -> AsyncIterator[Far]:
    async with reached(app) as far:
        await far.register("embedding")
        yield far


async def test_a_registered_worker_is_listed_with_what_it_does(app: Backstay, far: Far) -> None:
    await app.submit("embedding", {})
    held = await far.one()
    await far.heartbeat(held)

    [worker] = (await far.http.get("/workers")).json()["items"]

    assert (worker["worker_id"], worker["version"], worker["queues"]) == ("far-1", "1.0", ["default"])
    assert worker["running"] == [held[0]]
    assert worker["heartbeat_age_seconds"] < 60
    assert "process_key" not in worker
    await far.say("complete", *held)
    await far.heartbeat()
    [worker] = (await far.http.get("/workers")).json()["items"]
    assert (worker["running"], worker["ended"], worker["failed"]) == ([], 1, 0)
    await far.heartbeat(state="stopped")
    assert (await far.http.get("/workers")).json()["items"] == []


async def test_registering_tells_how_long_a_lease_is(app: Backstay, far: Far) -> None:
    said = await far.register("embedding")
    assert (said["lease_seconds"], said["heartbeat_seconds"]) == (60, 20)


async def test_a_worker_that_has_not_registered_is_told_to(app: Backstay) -> None:
    async with reached(app) as far:
        answer = await far.http.post("/workers/nobody/claim", json={})
    assert answer.status_code == 404
    assert "register" in answer.json()["detail"]


async def test_a_heartbeat_extends_the_leases_and_tells_of_cancelled_and_lost_jobs(app: Backstay, far: Far) -> None:
    jobs = [await app.submit("embedding", {}) for _ in range(3)]
    taken = [(each["job"]["job_id"], each["token"]) for each in await far.claim(limit=3)]
    await app.cancel(jobs[1].job_id)
    await far.say("outcome", *taken[2], outcome="give_back")
    before = (await app.get(jobs[0].job_id)).lease_expires_at
    unknown = new_id(app.clock.now())

    said = await far.heartbeat(*taken, (unknown, "x"))

    assert said["held"] == [jobs[0].job_id]
    assert said["cancelled"] == [jobs[1].job_id]
    assert said["lost"] == [jobs[2].job_id, unknown]
    after = (await app.get(jobs[0].job_id)).lease_expires_at
    assert before is not None and after is not None and after > before


async def test_the_schema_that_a_worker_announces_is_checked_by_submits(app: Backstay, far: Far) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    await far.register("translation", schemas={"translation": schema})
    with pytest.raises(InvalidPayload, match="text"):
        await app.submit("translation", {"txt": "tide"})
    await app.submit("translation", {"text": "tide"})


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "http://169.254.169.254/"},
        {"$ref": "#"},
        {"if": {"type": "object"}, "then": {"$ref": "#"}},
        {"type": 7},
        {"allOf": [{"$dynamicRef": "other.json"}]},
        {"properties": {"n": {"multipleOf": 0}}},
        {"properties": {"n": {"$ref": "#/nowhere"}}},
        {"properties": {"n": {"minLength": "x"}}},
        {"properties": {"n": {"enum": 3}}},
        {"properties": {"n": 5}},
        {"examples": [{"type": "none"}], "$ref": "#/examples/0"},
        {"$defs": {"a": {"$id": "b", "$ref": "#/$defs/a"}}},
    ],
    ids=str,
)
async def test_a_schema_that_reaches_out_or_cannot_be_used_is_refused(far: Far, schema: dict[str, Any]) -> None:
    body = {"worker_id": "far-1", "job_types": ["translation"], "schemas": {"translation": schema}}
    answer = await far.http.post("/workers/register", json=body)
    assert answer.status_code == 422
    assert "translation" in answer.json()["detail"]


def _doubling(times: int) -> dict[str, Any]:
    """A schema of a few lines, a check of which takes two to the power of `times` steps."""
    twice = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(times)}
    return {"$defs": twice | {f"a{times}": {}}, "$ref": "#/$defs/a0"}


@pytest.mark.parametrize("times", [14, 30, 400])
async def test_a_small_schema_that_takes_for_ever_to_check_is_refused_at_once(
    app: Backstay, far: Far, times: int
) -> None:
    body = {"worker_id": "far-1", "job_types": ["bomb"], "schemas": {"bomb": _doubling(times)}}
    answer = await asyncio.wait_for(far.http.post("/workers/register", json=body), 60)
    assert (answer.status_code, answer.json()["type"]) == (422, "/problems/invalid-request")
    assert "bomb" not in [each.job_type for each in await app.store.job_types()]


async def test_a_change_of_a_schema_goes_up_by_one_version_and_stands_in_the_audit_trail(app: Backstay) -> None:
    work = (await app.create_key("fleet", ["work"])).text
    admin = (await app.create_key("root", ["admin"])).text
    async with reached(app, work) as far, reached(app, admin) as root:
        far_off = {"worker_id": "far-1", "job_types": ["embed"], "schemas": {"embed": {"type": "null"}}}
        await far.register("embed", schemas={"embed": {"type": "object"}}, versions={"embed": 3})

        refused = await far.http.post("/workers/register", json=far_off | {"versions": {"embed": 1_000_000}})
        assert (refused.status_code, refused.json()["type"]) == (409, "/problems/version-too-high")
        await far.register("embed", schemas={"embed": {"type": "array"}}, versions={"embed": 4})
        await far.register("embed", schemas={"embed": {"type": "array"}}, versions={"embed": 4})
        await far.register("embed", schemas={"embed": {"type": "null"}}, versions={"embed": 3})
        [kept] = await app.store.job_types()
        assert (kept.version, kept.payload_schema) == (4, '{"type":"array"}')

        root.worker_id = "far-2"
        await root.register("embed", schemas={"embed": {"type": "object"}}, versions={"embed": 2})
        [mended] = await app.store.job_types()
        assert (mended.version, mended.payload_schema) == (2, '{"type":"object"}')

    trail = [
        (entry.action, entry.target, entry.by) for entry in await app.audit_trail() if entry.action == "type.announce"
    ]
    assert trail == [("type.announce", "embed", by) for by in ("root", "fleet", "fleet")]
    newest = (await app.audit_trail())[0]
    assert newest.before["version"] == 4 and newest.after["version"] == 2
    assert newest.before["schema"].startswith("sha256:") and newest.before["schema"] != newest.after["schema"]


async def test_where_there_are_no_keys_nobody_locks_a_schema_by_a_huge_version_either(app: Backstay, far: Far) -> None:
    await far.register("embed", schemas={"embed": {"type": "object"}})
    body = {"worker_id": "far-1", "job_types": ["embed"], "schemas": {"embed": {}}, "versions": {"embed": 1_000_000}}
    assert (await far.http.post("/workers/register", json=body)).status_code == 409
    await far.register("embed", schemas={"embed": {"type": "array"}})
    await app.submit("embed", [])


async def test_a_type_whose_code_is_here_is_not_changed_from_afar(app: Backstay, far: Far) -> None:
    @app.job("local")
    async def local(payload: dict[str, str]) -> None: ...

    await far.register("local", schemas={"local": {"type": "null"}}, versions={"local": 9})

    assert "local" not in [each.job_type for each in await app.store.job_types()]
    await app.submit("local", {"a": "b"})


async def test_a_worker_id_belongs_to_the_key_that_registered_it(app: Backstay) -> None:
    first, second = [(await app.create_key(name, ["work"])) for name in ("first", "second")]
    admin = (await app.create_key("root", ["admin"])).text
    async with reached(app, first.text) as owner, reached(app, second.text) as other, reached(app, admin) as root:
        await owner.register("embedding")
        body = {"worker_id": "far-1", "job_types": ["nothing"]}
        for path, sent in (("register", body), ("far-1/heartbeat", {"state": "stopped"}), ("far-1/claim", {})):
            answer = await other.http.post(f"/workers/{path}", json=sent)
            assert (answer.status_code, answer.json()["type"]) == (409, "/problems/worker-id-taken"), path
        await owner.heartbeat()
        await root.heartbeat()
        assert "key_id" not in (await root.http.get("/workers")).json()["items"][0]

        await app.revoke_key(first.key.key_id, by="root")
        await other.register("embedding")
        await other.heartbeat()


async def test_a_key_works_for_its_queues_alone(app: Backstay) -> None:
    mail = (await app.create_key("mail", ["work"], queues=["mail*"])).text
    other = (await app.create_key("other", ["work"], queues=["other"])).text
    async with reached(app, mail) as far, reached(app, other) as stranger:
        answer = await far.http.post("/workers/register", json={"worker_id": "far-1", "job_types": ["send"]})
        assert (answer.status_code, answer.json()["type"]) == (403, "/problems/foreign-queue")
        await far.register("send", queues=["mail.out"])
        await app.submit("send", {}, queue="mail.out")
        held = await far.one(request_id="r-1")

        answer = await stranger.http.post("/workers/far-1/claim", json={"request_id": "r-1"})
        assert (answer.status_code, answer.json()["type"]) == (404, "/problems/worker-not-found")
        assert (await stranger.say("complete", *held)).status_code == 404
        stranger.worker_id = "far-2"
        await stranger.register("send", queues=["other"])
        assert (await stranger.heartbeat(held))["lost"] == [held[0]]
        assert await stranger.claim(request_id="r-1") == []
        assert (await far.say("complete", *held)).status_code == 200


async def test_nobody_registers_under_the_id_of_a_worker_of_this_machine(app: Backstay, far: Far) -> None:
    @app.job("local")
    async def local(payload: dict[str, str]) -> None: ...

    async with app.worker() as worker:
        answer = await far.http.post(
            "/workers/register", json={"worker_id": worker.worker_id, "job_types": ["embedding"]}
        )
    assert answer.status_code == 409


async def test_a_waiting_worker_is_woken_by_a_submit(app: Backstay, far: Far) -> None:
    waiting = [asyncio.create_task(far.claim(wait_seconds=30)) for _ in range(3)]
    await eventually(_asked(app))
    await app.submit("embedding", {})
    done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=5)
    assert [len(task.result()) for task in done] == [1]
    for _ in others:
        await app.submit("embedding", {})
    assert [len(found) for found in await asyncio.wait_for(asyncio.gather(*others), 5)] == [1, 1]


async def test_a_job_that_comes_due_wakes_a_waiting_worker(app: Backstay, far: Far) -> None:
    async with app.maintenance("test"):
        waiting = asyncio.create_task(far.claim(wait_seconds=30))
        await app.submit("embedding", {}, delay=0.2)
        assert len(await asyncio.wait_for(waiting, 5)) == 1


async def test_a_wait_that_brings_nothing_ends_in_time(far: Far) -> None:
    assert await asyncio.wait_for(far.claim(wait_seconds=0.05), 5) == []
    answer = await far.http.post("/workers/far-1/claim", json={"wait_seconds": 31})
    assert answer.status_code == 422


async def test_one_waiting_worker_too_many_is_told_to_come_later(
    app: Backstay, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "LONG_POLLS_MAX", 1)
    waiting = asyncio.create_task(far.claim(wait_seconds=30))
    await eventually(_asked(app))
    refused = await far.http.post("/workers/far-1/claim", json={"wait_seconds": 30})
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-waiting")
    assert int(refused.headers["retry-after"]) > 0
    await app.submit("embedding", {})
    assert len(await asyncio.wait_for(waiting, 5)) == 1


async def test_one_key_gets_its_share_of_waits_and_leaves_the_others_theirs(
    app: Backstay, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "KEY_LONG_POLLS_MAX", 1)
    greedy, other = [{"X-API-Key": (await app.create_key(name, ["work"])).text} for name in ("greedy", "other")]
    for name, key in (("greedy-1", greedy), ("other-1", other)):
        body = {"worker_id": name, "job_types": ["embedding"]}
        assert (await far.http.post("/workers/register", json=body, headers=key)).is_success

    async def wait(name: str, key: dict[str, str], seconds: float) -> httpx.Response:
        return await far.http.post(f"/workers/{name}/claim", json={"wait_seconds": seconds}, headers=key)

    waiting = asyncio.create_task(wait("greedy-1", greedy, 30))
    await eventually(_asked(app))
    refused = await wait("greedy-1", greedy, 30)
    assert (refused.status_code, refused.json()["type"]) == (429, "/problems/too-many-waiting")
    assert (await wait("other-1", other, 0.05)).status_code == 200
    await app.submit("embedding", {})
    assert len((await asyncio.wait_for(waiting, 5)).json()) == 1


async def test_many_who_wait_for_the_same_cost_one_claim(
    app: Backstay, far: Far, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims = 0
    claim = app.store.claim

    async def counted(request: ClaimRequest, now: int) -> list[ClaimedJob]:
        nonlocal claims
        claims += 1
        return await claim(request, now)

    waiting = [asyncio.create_task(far.claim(wait_seconds=30)) for _ in range(30)]
    async with asyncio.timeout(10):
        while len(waiting) > 1:
            await app.submit("embedding", {})
            _, left = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting = list(left)
            if len(waiting) == 20:
                monkeypatch.setattr(app.store, "claim", counted)
        await app.submit("embedding", {})
        await waiting[0]
    assert claims <= 3 * 20, "a submit wakes thirty, of which one or two ask"


async def test_a_worker_that_hangs_up_is_not_waited_for(app: Backstay) -> None:
    async with listening(app) as url:
        await _registered(url)
        _, writer = await _asks(url, {"wait_seconds": 30})
        await _hang_up(writer)
        await app.submit("embedding", {})
        async with httpx.AsyncClient(base_url=url) as http:
            assert len(await Far(http).claim(wait_seconds=10)) == 1


async def test_a_job_that_was_claimed_for_someone_who_hung_up_is_given_back_at_once(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, gone = asyncio.Event(), asyncio.Event()
    claim = app.store.claim

    async def slowly(request: ClaimRequest, now: int) -> list[ClaimedJob]:
        jobs = await claim(request, now)
        taken.set()
        await gone.wait()
        return jobs

    async with listening(app) as url:
        await _registered(url)
        job = await app.submit("embedding", {})
        with monkeypatch.context() as patched:
            patched.setattr(app.store, "claim", slowly)
            _, writer = await _asks(url, {"wait_seconds": 30})
            await taken.wait()
            assert (await app.get(job.job_id)).status == "processing"
            await _hang_up(writer)
            await eventually(url.is_left)
            gone.set()

        async with httpx.AsyncClient(base_url=url) as http:
            [again] = await Far(http).claim(wait_seconds=10)
            assert again["job"]["job_id"] == job.job_id
            assert (await Far(http).say("complete", job.job_id, again["token"])).status_code == 200
        found = await app.get(job.job_id)
        assert [event.event for event in found.history] == ["submit", "claim", "give_back", "claim", "complete"]
        assert found.failures == 0


async def test_an_answer_that_was_lost_is_had_again_by_its_request_id(app: Backstay) -> None:
    async with listening(app) as url:
        await _registered(url)
        job = await app.submit("embedding", {})
        reader, writer = await _asks(url, {"request_id": "r-1"})
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")  # it is on its way, and lost on it
        await _hang_up(writer)
        async with httpx.AsyncClient(base_url=url) as http:
            [again] = await Far(http).claim(request_id="r-1")
            assert again["job"]["job_id"] == job.job_id
            assert (await Far(http).say("complete", job.job_id, again["token"])).status_code == 200
        assert (await app.get(job.job_id)).attempt == 1


async def test_the_job_of_a_silent_worker_is_rescued(tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", lease=0.3)
    async with listening(app) as url, httpx.AsyncClient(base_url=url) as http:
        far = Far(http)
        await far.register("embedding")
        await app.submit("embedding", {})
        held = await far.one()

        [again] = await far.claim(wait_seconds=20)

        assert again["job"]["job_id"] == held[0]
        assert (again["job"]["attempt"], again["job"]["failures"]) == (2, 1)
        assert "let the lease expire" in again["job"]["last_error"]
        assert (await far.say("complete", *held)).status_code == 409
        assert (await far.say("complete", held[0], again["token"])).status_code == 200


async def test_a_server_without_workers_releases_more_dependents_than_one_commit_can_although_nobody_polls(
    tmp_path: Path,
) -> None:
    count = 2 * limits.RELEASE_BATCH_MAX + 1
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db", poll_interval=600, lease=1200)
    async with listening(app) as url, httpx.AsyncClient(base_url=url) as http:
        far = Far(http)
        await far.register("embedding")
        first = await app.submit("embedding", {})
        for _ in range(count // 100 + 1):
            await app.submit_many([("embedding", {}, {"depends_on": [first]})] * 100)
        assert (await far.say("complete", *(await far.one()))).status_code == 200

        async def all_are_released() -> bool:
            return (await app.counts()).get("pending", 0) > count

        await eventually(all_are_released, 30)


async def test_a_server_that_stops_lets_waiting_workers_go(app: Backstay) -> None:
    async with httpx.AsyncClient() as http:
        async with listening(app) as url:
            http.base_url = httpx.URL(url)
            far = Far(http)
            await far.register("embedding")
            waiting = asyncio.create_task(far.claim(wait_seconds=30))
            await eventually(_asked(app))
        assert await asyncio.wait_for(waiting, 5) == []


def _asked(app: Backstay) -> Callable[[], Awaitable[bool]]:
    """Whether someone listens at the store."""

    async def is_heard() -> bool:
        return bool(app.store._bell._listeners)

    return is_heard


async def _registered(url: str) -> None:
    async with httpx.AsyncClient(base_url=url) as http:
        await Far(http).register("embedding")


async def _asks(url: str, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A claim over a connection of its own, whose answer is not read."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    content = json.dumps(body).encode()
    writer.write(
        b"POST /workers/far-1/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(content), content)
    )
    await writer.drain()
    return reader, writer


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()
