"""The audio service, asked over HTTP: two kinds of jobs, their records, limits, cache, keys and failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from analysis.audio import Audio
from analysis.models import AnalysisResult, AnalyzeJobRequest, JobResponse, LrcJobRequest, LrcResult

from backstay import Backstay
from tests.examples.analysis_service import Service, content_hash, running, wav
from tests.support.servers.s3 import S3

LYRICS = "First we sing the verse\nAnd a second line\n\nThen we sing the chorus\nAnd the chorus again"
LIMITS = {"SOW_MAX_CONCURRENT_ANALYSIS_JOBS": "1", "SOW_MAX_CONCURRENT_LRC_JOBS": "1"}
FIELDS = {
    "job_id",
    "job_type",
    "status",
    "progress",
    "stage",
    "error_message",
    "request",
    "result",
    "created_at",
    "updated_at",
    "content_hash",
    "reused_from",
}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """One for all tests of the file, because its first job costs a second; each test has songs of its own."""
    with S3() as server, pytest.MonkeyPatch.context() as patch:
        server.bucket("songs")
        bucket = {"SOW_R2_ENDPOINT_URL": f"http://127.0.0.1:{server.port}", "SOW_R2_BUCKET": "songs"}
        keys = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "secret"}
        async with running(tmp_path_factory.mktemp("cache"), patch, **LIMITS, **bucket, **keys) as found:
            yield found


async def test_both_kinds_of_jobs_come_back_as_they_were_asked_for_with_typed_results(service: Service) -> None:
    song = await service.send(wav())
    assert song == content_hash(wav())
    asked = {
        "analyze": {"content_hash": song, "force": False},
        "lrc": {"content_hash": song, "force": False, "lyrics": LYRICS, "title": "A song", "artist": "Someone"},
    }
    stored = {kind: await service.submit(kind, **body) for kind, body in asked.items()}
    for kind, job in stored.items():
        assert job["status"] in ("queued", "processing")  # a worker may have begun by the time of the answer
        assert (job["progress"] == 0.0 or job["status"] == "processing") and job["progress"] < 1.0
        assert job["result"] is None
        assert (job["job_type"], job["request"]) == (kind, asked[kind])
    done = {kind: await service.ended(job["job_id"]) for kind, job in stored.items()}

    for kind, job in done.items():
        assert job.keys() == FIELDS
        assert job["job_id"] == stored[kind]["job_id"]
        assert (job["job_type"], job["status"], job["stage"], job["progress"]) == (kind, "completed", "complete", 1.0)
        assert (job["request"], job["content_hash"], job["error_message"]) == (asked[kind], song, None)
        assert datetime.fromisoformat(job["created_at"]).utcoffset() == timedelta(0)
        assert job["created_at"] < job["updated_at"]
    analysed, timed = (JobResponse.model_validate(job) for job in done.values())
    assert isinstance(analysed.request, AnalyzeJobRequest) and isinstance(timed.request, LrcJobRequest)
    assert isinstance(analysed.result, AnalysisResult) and isinstance(timed.result, LrcResult)
    assert (analysed.result.key, round(analysed.result.tempo_bpm)) == ("C major", 150)
    assert timed.result.analysis_job_id == analysed.job_id
    assert [line.text for line in timed.result.lines] == [line for line in LYRICS.splitlines() if line]
    assert timed.result.lrc.startswith("[ti:A song]\n[ar:Someone]\n")


async def test_pictures_and_lyrics_are_kept_in_the_bucket_and_read_through_the_queues_api(service: Service) -> None:
    job = await service.submit("lrc", content_hash=await service.send(wav()), lyrics=LYRICS, force=True)
    done = await service.ended(job["job_id"])
    kept = await service.app.artifacts(job["job_id"])
    assert {file.name for file in kept} == {"song.lrc", "song.svg"}
    assert all(file.uri.startswith("s3://songs/analysis/") for file in kept)
    files = f"/backstay/jobs/{job['job_id']}/artifacts"
    assert (await service.client.get(f"{files}/song.lrc")).text == done["result"]["lrc"]
    drawn = await service.client.get(f"{files}/song.svg")
    assert drawn.headers["content-type"].startswith("image/svg+xml")
    assert "First we sing the verse" in drawn.text


async def test_progress_and_stage_are_seen_while_a_job_runs(service: Service) -> None:
    job = await service.submit("analyze", content_hash=await service.send(wav(bars=16)))
    seen: dict[str, float] = {}
    while (now := await service.job(job["job_id"]))["status"] not in ("completed", "failed"):
        if now["status"] == "processing" and now["stage"]:
            seen[now["stage"]] = now["progress"]
        await asyncio.sleep(0)
    assert now["status"] == "completed"
    assert {"reading", "loudness", "tempo", "key", "sections", "drawing"} & seen.keys(), (
        "live, from the worker's memory"
    )
    assert all(0 < progress < 1 for progress in seen.values())
    assert list(seen.values()) == sorted(seen.values())


async def test_a_song_that_was_analysed_before_costs_nothing_and_force_analyses_it_anew(service: Service) -> None:
    song = await service.send(wav(tonic="D"))
    first = await service.submit("analyze", content_hash=song)
    joined = await service.submit("analyze", content_hash=song)  # while the first is on its way
    await service.ended(first["job_id"])
    again = await service.submit("analyze", content_hash=await service.send(wav(tonic="D")))
    assert (again["status"], again["reused_from"]) == ("completed", first["job_id"])
    assert (await service.ended(joined["job_id"]))["reused_from"] == first["job_id"]
    assert again["result"] == (await service.job(first["job_id"]))["result"]

    forced = await service.ended((await service.submit("analyze", content_hash=song, force=True))["job_id"])
    assert (forced["status"], forced["reused_from"]) == ("completed", None)
    assert len({first["job_id"], joined["job_id"], again["job_id"], forced["job_id"]}) == 4
    found = (await service.client.get("/jobs", params={"content_hash": song})).json()
    assert len(found) == 4
    assert (await service.client.get("/jobs", params={"content_hash": "0" * 64})).json() == []


async def test_other_lyrics_of_the_same_song_are_other_work(service: Service) -> None:
    song = await service.send(wav(tonic="E"))
    first = await service.submit("lrc", content_hash=song, lyrics="One\nTwo")
    other = await service.submit("lrc", content_hash=song, lyrics="Three\nFour")
    await service.ended(first["job_id"])
    assert [line["text"] for line in (await service.ended(other["job_id"]))["result"]["lines"]] == ["Three", "Four"]
    same = await service.submit("lrc", content_hash=song, lyrics="One\nTwo")
    assert (same["status"], same["reused_from"]) == ("completed", first["job_id"])


async def test_jobs_are_listed_newest_first_by_state_and_by_type(service: Service) -> None:
    async def listed(**filters: Any) -> list[str]:
        answer = await service.client.get("/jobs", params=filters)
        assert all(JobResponse.model_validate(job) for job in answer.json())
        return [job["job_id"] for job in answer.json()]

    song, noise = await service.send(wav(tonic="F")), await service.send(b"noise")
    lrc = await service.submit("lrc", content_hash=song, lyrics=LYRICS)
    bad = await service.submit("analyze", content_hash=noise)
    await service.ended(lrc["job_id"])
    await service.ended(bad["job_id"])
    await service.app.pause_queue("default")
    try:
        later = await service.submit("analyze", content_hash=song, force=True)
        everything = await listed(content_hash=song)
        assert len(everything) == 3 and everything[0] == later["job_id"], "the lrc job brought an analysis"
        assert await listed(limit=2) == [later["job_id"], bad["job_id"]]
        assert await listed(status="queued") == [later["job_id"]]
        assert await listed(status="processing") == []
        assert await listed(status="failed", content_hash=noise) == [bad["job_id"]]
        assert await listed(job_type="lrc", content_hash=song) == [lrc["job_id"]]
        assert await listed(status="completed", content_hash=song) == everything[1:]
        assert await listed(status="failed", content_hash=song) == []
        assert (await service.client.get("/jobs", params={"status": "lost"})).status_code == 422
        assert (await service.client.get("/jobs", params={"job_type": "video"})).status_code == 422
    finally:
        await service.app.resume_queue("default")
    assert (await service.ended(later["job_id"]))["status"] == "completed"


@pytest.mark.parametrize(
    ("kind", "says", "attempts"), [("analyze", "no sound file", 1), ("lrc", "DependencyFailed", 0)]
)
async def test_what_is_no_song_fails_at_once_with_the_reason(
    service: Service, kind: str, says: str, attempts: int
) -> None:
    song = await service.send(b"no song at all, " + kind.encode())
    body = {"lyrics": LYRICS} if kind == "lrc" else {}
    job = await service.ended((await service.submit(kind, content_hash=song, **body))["job_id"])
    assert (job["status"], job["stage"], job["result"]) == ("failed", "error", None)
    assert says in job["error_message"]
    assert (await service.app.get(job["job_id"])).attempt == attempts, "no second try makes a song of it"


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("/jobs/analyze", {}, 422),
        ("/jobs/analyze", {"content_hash": "../../etc/passwd"}, 422),
        ("/jobs/analyze", {"content_hash": "0" * 64, "priority": 1}, 422),
        ("/jobs/analyze", {"content_hash": "0" * 64}, 404),
        ("/jobs/lrc", {"content_hash": "0" * 64, "lyrics": ""}, 422),
        ("/jobs/lrc", {"content_hash": "0" * 64, "lyrics": "a\n" * 501}, 422),  # ten thousand took 45 s and 4 GB
        ("/jobs/lrc", {"content_hash": "0" * 64, "lyrics": "a"}, 404),
    ],
)
async def test_what_cannot_be_meant_is_refused_and_nothing_is_stored(
    service: Service, path: str, body: dict[str, Any], code: int
) -> None:
    before = sum((await service.app.counts()).values())
    answer = await service.client.post(path, json=body)
    assert answer.status_code == code
    assert answer.json()["detail"]
    assert sum((await service.app.counts()).values()) == before


@pytest.mark.parametrize(
    "body", [rb'{"content_hash": "\ud800"}', rb'{"\ud800": 1}', b'{"content_hash": NaN}', b"[" * 100_000]
)
async def test_a_body_that_cannot_be_said_again_is_refused_too(service: Service, body: bytes) -> None:
    answer = await service.client.post("/jobs/analyze", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert answer.json()["detail"]


async def test_jobs_of_other_applications_on_the_same_queue_are_not_the_services(service: Service) -> None:
    other = Backstay(service.app.url)

    @other.job("mail", queue="mail")
    async def mail(payload: str) -> None: ...

    async with other:
        job = await mail.submit("a letter")
        listed = (await service.client.get("/jobs", params={"limit": 1000})).json()
        assert job.job_id not in [each["job_id"] for each in listed]
        assert (await service.client.get(f"/jobs/{job.job_id}")).status_code == 404


async def test_an_unknown_id_one_of_the_old_form_and_one_of_a_purged_job_are_not_found(service: Service) -> None:
    for unknown in ("01890000-0000-7000-8000-000000000000", "job_0123456789ab", "7"):
        answer = await service.client.get(f"/jobs/{unknown}")
        assert answer.status_code == 404 and answer.json()["detail"].startswith(f"no job {unknown}")
    job = await service.submit("analyze", content_hash=await service.send(wav(tonic="G")))
    await service.ended(job["job_id"])
    await service.app.purge(older_than=0)
    assert (await service.client.get(f"/jobs/{job['job_id']}")).status_code == 404


async def test_half_written_uploads_are_removed_and_those_that_are_being_written_stay(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="analysis")
    audio = Audio(tmp_path / "audio")
    audio.folder.mkdir()
    in_between: list[int] = []

    def left_by_a_kill() -> None:
        (audio.folder / "left-by-a-kill.part").write_bytes(b"RIFF half of it")

    async def pieces() -> AsyncIterator[bytes]:
        song = wav(tonic="B")
        yield song[:1000]
        in_between.append(audio.sweep())
        in_between.append(len(list(audio.folder.glob("*.part"))))
        yield song[1000:]

    left_by_a_kill()
    kept, _ = await audio.keep(pieces())
    assert in_between == [0, 1], "the one left behind went before, the one under way stays"
    assert audio.path(kept).read_bytes() == wav(tonic="B") and not list(audio.folder.glob("*.part"))
    left_by_a_kill()
    async with running(tmp_path, monkeypatch):
        assert not list(audio.folder.glob("*.part")), "a service that starts looks for them"
    assert caplog.text.count("removed 1 half-written upload") == 2


async def test_nothing_is_told_or_taken_without_a_key_of_the_service(service: Service) -> None:
    reader = await service.app.create_key("reader", ["read"])
    revoked = await service.app.create_key("gone", ["admin"])
    await service.app.revoke_key(revoked.key.key_id)
    body = {"content_hash": await service.send(b"a secret song")}
    for key, reads, submits in (("", 401, 401), (revoked.text, 401, 401), (reader.text, 200, 403)):
        headers = {"X-API-Key": key}
        assert (await service.client.get("/jobs", headers=headers)).status_code == reads
        assert (await service.client.post("/jobs/analyze", json=body, headers=headers)).status_code == submits
        assert (
            await service.client.post("/jobs/lrc", json={**body, "lyrics": "a"}, headers=headers)
        ).status_code == submits
        assert (await service.client.post("/audio", content=wav(), headers=headers)).status_code == submits
    made = await service.submit("analyze", **body)
    assert (await service.client.get(f"/jobs/{made['job_id']}", headers={"X-API-Key": ""})).status_code == 401
    assert (await service.app.get(made["job_id"])).created_by == "tests"


async def test_an_audio_file_that_is_too_large_is_refused_and_leaves_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.send(b"a" * 1000)
    before = set(service.jobs.AUDIO.folder.iterdir())
    monkeypatch.setattr("analysis.audio.BYTES_MAX", 1000)
    answer = await service.client.post("/audio", content=b"a" * 1001)
    assert (answer.status_code, set(service.jobs.AUDIO.folder.iterdir())) == (413, before)


async def test_no_more_jobs_of_a_type_run_at_once_than_its_limit(service: Service) -> None:
    kinds: dict[str, dict[str, Any]] = {"analyze": {}, "lrc": {"lyrics": LYRICS}}
    ids: dict[str, list[str]] = {kind: [] for kind in kinds}
    for tonic in ("A", "Bb", "B"):
        song = await service.send(wav(tonic=tonic))
        for kind, body in kinds.items():
            ids[kind].append((await service.submit(kind, content_hash=song, **body))["job_id"])
    for kind in kinds:
        assert {(await service.ended(job_id))["status"] for job_id in ids[kind]} == {"completed"}
        spans = sorted([await span(service.app, job_id) for job_id in ids[kind]])
        assert all(first[1] <= second[0] for first, second in pairwise(spans)), kind


async def span(app: Backstay, job_id: str) -> tuple[datetime, datetime]:
    """From the first to the last that its handler said."""
    entries = (await app.get(job_id)).logs["entries"]
    return entries[0]["timestamp"], entries[-1]["timestamp"]
