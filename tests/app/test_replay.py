"""A job is exported to one file and replayed elsewhere: with its steps, without its queue, if that is sound."""

from __future__ import annotations

import json
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from backstay import Backoff, Backstay, Context, Encrypted, ExportFailed, InvalidPayload, JobNotFound
from backstay.core import export_file
from backstay.core.export_file import Manifest, Reader
from backstay.encryption import new_key
from backstay.replay import ReplayReport, replay

SOON = Backoff(base=0.01, jitter=0)


class Order(BaseModel):
    number: int
    card: Annotated[str | None, Field(json_schema_extra={"sensitive": True})] = None


class Secret(BaseModel):
    card: Encrypted[str]


def shop(app: Backstay, *, is_fixed: bool = False, calls: list[str] | None = None) -> Backstay:
    """An app whose handler fails behind its first step, until it is fixed."""
    called = calls if calls is not None else []

    @app.job("charge", max_attempts=2, backoff=SOON)
    async def charge(payload: Order, ctx: Context) -> str:
        async def load() -> str:
            called.append("load")
            return "loaded"

        loaded = await ctx.once("load", load)
        ctx.log.info("attempt %d", ctx.attempt)
        await ctx.stream(f"{loaded} {ctx.attempt}")
        await ctx.artifact("bill.txt", f"order {payload.number}")
        await ctx.submit("mail", {"to": "ada"}, key="mail")
        if not is_fixed:
            raise ValueError(f"no stock for {payload.number}")
        called.append("charged")
        return f"charged {payload.number}, {payload.card}"

    @app.job("mail")
    async def mail(payload: Any) -> None: ...

    @app.job("prepare")
    async def prepare(payload: Any) -> dict[str, int]:
        return {"price": 10}

    @app.job("sum", max_attempts=1)
    async def total(payload: Any, ctx: Context) -> int:
        for n in range(3):
            await ctx.submit("prepare", {"n": n})
        children = await ctx.wait_for_children()
        before = (await ctx.upstream())["prepare"].result["price"]
        if not is_fixed:
            raise ValueError("not yet")
        return int(before) + sum(child.result["price"] for child in children)

    return app


async def exported(app: Backstay, path: Path, job_type: str = "charge", payload: Any = None, **options: Any) -> str:
    """Run a job to its end and export it; its id."""
    choice = {name: options.pop(name) for name in ("sensitive", "decrypt", "files") if name in options}
    async with app, app.worker():
        if job_type == "sum":
            first = await app.submit("prepare", {})
            options["depends_on"] = [first.job_id]
        job = await app.submit(job_type, {"number": 7} if payload is None else payload, **options)
        await job.wait(timeout=20)
        await app.export_job(job.job_id, path, **choice)
        return job.job_id


@pytest.fixture
def elsewhere(tmp_path: Path) -> Callable[[], Backstay]:
    """An app on another machine, whose queue must stay untouched."""
    return lambda: Backstay(f"sqlite:///{tmp_path}/elsewhere/jobs.db")


async def test_a_failed_job_fails_again_with_its_steps_and_leaves_no_trace(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    job_id = await exported(shop(app), tmp_path / "job.zip")
    calls: list[str] = []
    found = await replay(shop(elsewhere(), calls=calls), tmp_path / "job.zip")

    assert calls == []
    assert (found.job_id, found.job_type, found.attempt) == (job_id, "charge", 2)
    assert found.error is not None
    assert (found.outcome, found.error.type, found.error.message) == ("failed", "ValueError", "no stock for 7")
    assert found.recorded == "failed: ValueError: no stock for 7"
    assert (found.steps_used, found.steps_new, found.steps_unused) == (("load",), (), ())
    assert found.diverged == ()
    assert found.output == 1
    assert "attempt 2" in found.log
    assert not (tmp_path / "elsewhere").exists()


async def test_fixed_code_completes_and_the_report_says_where_it_went_another_way(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    await exported(shop(app), tmp_path / "job.zip", payload={"number": 7, "card": "4111"}, sensitive=True)
    calls: list[str] = []
    found = await replay(shop(elsewhere(), is_fixed=True, calls=calls), tmp_path / "job.zip")

    assert (found.completed, found.result, calls) == (True, "charged 7, 4111", ["charged"])
    assert found.submitted == ("mail",)
    assert found.diverged[0] == "it completed; recorded was: failed: ValueError: no stock for 7"


async def test_steps_that_are_not_asked_for_and_steps_that_are_new_are_told(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    await exported(shop(app), tmp_path / "job.zip")
    other = elsewhere()

    @other.job("charge")
    async def charge(payload: Order, ctx: Context) -> int:
        return await ctx.once("other", lambda: payload.number)

    found = await replay(other, tmp_path / "job.zip")
    assert (found.steps_used, found.steps_new, found.steps_unused) == ((), ("other",), ("load",))
    assert any("did not ask for the recorded steps load" in each for each in found.diverged)
    assert any("steps that were not recorded: other" in each for each in found.diverged)


async def test_children_and_upstream_jobs_are_there_with_their_results(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    await exported(shop(app), tmp_path / "job.zip", "sum")
    found = await replay(shop(elsewhere(), is_fixed=True), tmp_path / "job.zip")
    assert (found.outcome, found.result) == ("completed", 40)


async def test_a_completed_job_is_compared_by_its_result(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    await exported(shop(app), tmp_path / "job.zip", "prepare", {})
    assert (await replay(shop(elsewhere()), tmp_path / "job.zip")).diverged == ()
    other = elsewhere()

    @other.job("prepare")
    async def prepare(payload: Any) -> dict[str, int]:
        return {"price": 11}

    assert (await replay(other, tmp_path / "job.zip")).diverged == ("its result is {'price': 11}, not {'price': 10}",)


async def test_code_that_reaches_for_the_queue_is_refused(app: Backstay, tmp_path: Path) -> None:
    await exported(shop(app), tmp_path / "job.zip")
    other = Backstay(f"sqlite:///{tmp_path}/other.db")

    @other.job("charge")
    async def charge(payload: Order) -> None:
        await other.submit("charge", payload)

    found = await replay(other, tmp_path / "job.zip")
    assert found.error is not None
    assert found.error.type == "NotOpen"
    async with other:
        with pytest.raises(ExportFailed, match="the app is open"):
            await replay(other, tmp_path / "job.zip")


# What it refuses


async def refusal(app: Backstay, path: Path) -> str:
    with pytest.raises(ExportFailed) as told:
        await replay(app, path)
    return str(told.value)


async def test_a_handler_that_is_missing_or_older_is_refused(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    @app.job("mail", version=3)
    async def mail(payload: Any) -> None: ...

    await exported(app, tmp_path / "job.zip", "mail", {})
    assert "has no handler for 'mail' (it has none)" in await refusal(elsewhere(), tmp_path / "job.zip")
    assert "reads up to 1" in await refusal(shop(elsewhere()), tmp_path / "job.zip")


async def test_masked_fields_are_refused_and_only_values_that_were_asked_for_are_in_the_file(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    path = tmp_path / "job.zip"
    job_id = await exported(shop(app), path, payload={"number": 1, "card": "4111-2222"})
    with zipfile.ZipFile(path) as file:
        assert b"4111" not in b"".join(file.read(each) for each in file.namelist())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "sensitive fields were masked" in await refusal(shop(elsewhere()), path)
    async with app:
        assert list(await app.audit_trail()) == []
        await app.export_job(job_id, path, sensitive=True, by="ada")
        [entry] = await app.audit_trail()
        assert (entry.action, entry.by, entry.target) == ("job.export", "ada", job_id)
        with pytest.raises(JobNotFound):
            await app.export_job("0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a", path)
    assert (await replay(shop(elsewhere(), is_fixed=True), path)).result == "charged 1, 4111-2222"


async def test_encrypted_fields_stay_encrypted_unless_they_are_decrypted(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKSTAY_ENCRYPTION_KEYS", f"k:{new_key()}")

    def with_secret(app: Backstay) -> Backstay:
        @app.job("secret")
        async def secret(payload: Secret) -> str:
            return payload.card[::-1]

        return app

    for decrypt in (False, True):
        path = tmp_path / f"{decrypt}.zip"
        await exported(
            with_secret(Backstay(f"sqlite:///{tmp_path}/{decrypt}.db")),
            path,
            "secret",
            {"card": "4111"},
            decrypt=decrypt,
            sensitive=True,
        )
        with zipfile.ZipFile(path) as file:
            assert (b"4111" in b"".join(file.read(each) for each in file.namelist())) is decrypt
        assert (await replay(with_secret(Backstay(f"sqlite:///{tmp_path}/third.db")), path)).result == "1114"


async def test_an_archived_job_has_nothing_to_export(app: Backstay, tmp_path: Path) -> None:
    async with shop(app), app.worker():
        job = await app.submit("mail", {})
        await job.wait(timeout=20)
        await app.purge(older_than=0)
        with pytest.raises(ExportFailed, match="is archived"):
            await app.export_job(job.job_id, tmp_path / "job.zip")
    assert not list(tmp_path.glob("*.zip*"))


async def test_a_payload_that_does_not_fit_is_refused_before_anything_runs(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    await exported(shop(app), tmp_path / "job.zip")
    other = elsewhere()

    class Newer(BaseModel):
        number: int
        street: str

    async def charge(payload: Any) -> None: ...

    charge.__annotations__["payload"] = Newer
    other.job("charge")(charge)
    with pytest.raises(InvalidPayload):
        await replay(other, tmp_path / "job.zip")


# Files that no export wrote


def rewritten(path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> None:
    with zipfile.ZipFile(path) as file:
        parts = {name: file.read(name) for name in file.namelist()}
    manifest = json.loads(parts.pop("manifest.json"))
    change(parts, manifest)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content)
        file.writestr("manifest.json", json.dumps(manifest))


def _entry(manifest: dict[str, Any], path: str, **fields: Any) -> None:
    manifest["entries"].append({"path": path, "size": 1, "sha256": "0" * 64, **fields})


CHANGES: dict[str, Callable[[dict[str, bytes], dict[str, Any]], None]] = {
    "is not what was exported": lambda parts, _: parts.update({n: b" " + c for n, c in parts.items()}),
    "what is in it is not what its manifest lists": lambda parts, _: parts.update({"../../evil": b"x"}),
    "larger than any export": lambda _, m: m["entries"][0].update(size=2**50),
    "a size below 0": lambda _, m: m["entries"][0].update(size=-1),
    "its format is 'tar'": lambda _, m: m.update(format="tar"),
    "has version 99 of the format": lambda _, m: m.update(version=99, something="new"),
    "its manifest cannot be read": lambda _, m: m.update(jobs=7),
    "it has no jobs/": lambda _, m: m.update(jobs=["../../etc"]),
    "does not have the job that it is about": lambda _, m: m.update(jobs=[]),
}


@pytest.mark.parametrize("says", CHANGES)
async def test_a_file_that_was_changed_is_refused(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path, says: str
) -> None:
    await exported(shop(app), tmp_path / "job.zip")
    rewritten(tmp_path / "job.zip", CHANGES[says])
    assert says in await refusal(shop(elsewhere()), tmp_path / "job.zip")


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\x03\x04" + b"\0" * 100])
async def test_what_is_no_archive_is_refused(elsewhere: Callable[[], Backstay], tmp_path: Path, content: bytes) -> None:
    (tmp_path / "job.zip").write_bytes(content)
    assert "is not an exported job" in await refusal(elsewhere(), tmp_path / "job.zip")
    assert "is not an exported job" in await refusal(elsewhere(), tmp_path / "not there.zip")


def test_a_bomb_is_read_no_further_than_its_manifest_says(tmp_path: Path) -> None:
    path = tmp_path / "bomb.zip"
    entry = export_file.Entry("jobs/x/record.json", 10, "0" * 64)
    manifest = Manifest(release="1", exported_at="", job_id="x", jobs=("x",), entries=(entry,))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("jobs/x/record.json", b"\0" * 200_000_000)
        file.writestr("manifest.json", json.dumps({**_plain(manifest)}))
    with Reader(path) as reader:
        assert sum(map(len, reader._pieces("jobs/x/record.json", 10))) == 11
        with pytest.raises(ExportFailed, match="its hash or size differs"):
            reader.read("jobs/x/record.json")


def _plain(manifest: Manifest) -> Any:
    import msgspec

    return msgspec.to_builtins(manifest)


async def test_files_are_in_the_export_unless_they_are_left_out(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path
) -> None:
    job_id = await exported(shop(app), tmp_path / "job.zip")
    with Reader(tmp_path / "job.zip") as reader:
        assert reader.read(f"jobs/{job_id}/files/0") == b"order 7"
    async with app:
        found = await app.export_job(job_id, tmp_path / "small.zip", files=False)
    assert found.left_out == (f"bill.txt of job {job_id}",)
    report: ReplayReport = await replay(shop(elsewhere()), tmp_path / "small.zip")
    assert report.left_out == found.left_out


@pytest.mark.parametrize("is_fixed", [False, True])
async def test_sleeps_are_over_and_events_have_come(
    app: Backstay, elsewhere: Callable[[], Backstay], tmp_path: Path, is_fixed: bool
) -> None:
    def flow(app: Backstay, *, is_fixed: bool) -> Backstay:
        @app.job("flow", max_attempts=1)
        async def flow(payload: str, ctx: Context) -> dict[str, str]:
            await ctx.step("begin", str)
            await ctx.sleep("cooldown", 0.01)
            approval: dict[str, str] = await ctx.wait_for_event("approved", timeout=600)
            if not is_fixed:
                raise ValueError("not approved")
            return approval

        return app

    async with flow(app, is_fixed=False), app.worker():
        job = await app.submit("flow", "x")
        await app.send_event(job.job_id, "approved", {"by": "ada"})
        await job.wait(timeout=20)
        await app.export_job(job.job_id, tmp_path / "job.zip")

    found = await replay(flow(elsewhere(), is_fixed=is_fixed), tmp_path / "job.zip")
    assert found.steps_used == ("begin",)
    assert (found.outcome, found.result) == (("completed", {"by": "ada"}) if is_fixed else ("failed", None))
