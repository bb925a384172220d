"""A file of one job is read by reference in another that may see it: the file that was meant, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from backstay import ArtifactNotFound, ArtifactRef, Backstay, BlockingContext, Context, InvalidOption, StoreError
from backstay.files import references
from tests.app import referring_jobs


class Chart(BaseModel):
    title: str
    image: ArtifactRef


@pytest.fixture
def drawing(app: Backstay) -> Backstay:
    @app.job("draw")
    async def draw(payload: str, ctx: Context) -> Chart:
        await ctx.artifact("chart.png", payload)
        ref = await ctx.artifact_ref("chart.png")
        assert await ctx.read_artifact(ref) == payload.encode()  # its own, before anything is recorded
        return Chart(title=payload, image=ref)

    @app.job("show")
    async def show(payload: Chart, ctx: Context) -> str:
        return (await ctx.read_artifact(payload.image)).decode()

    @app.job("show_blocking")
    def show_blocking(payload: ArtifactRef, ctx: BlockingContext) -> str:
        return ctx.read_artifact(payload).decode()

    @app.job("other", queue="other")
    async def other(payload: ArtifactRef, ctx: Context) -> str:
        return (await ctx.read_artifact(payload)).decode()

    return app


async def test_a_file_travels_by_reference_in_results_and_payloads(drawing: Backstay) -> None:
    async with drawing as app, app.worker():
        chart = await (await app.submit(app.handlers["draw"], "a sea")).result(timeout=20)
        assert isinstance(chart, Chart)
        assert (chart.image.name, chart.image.size) == ("chart.png", 5)
        assert await (await app.submit("show", chart)).result(timeout=20) == "a sea"
        assert await (await app.submit("show_blocking", chart.image)).result(timeout=20) == "a sea"
        assert await app.read_artifact(chart.image) == b"a sea"
    with drawing.sync as blocking:
        assert blocking.read_artifact(chart.image) == b"a sea"


async def test_so_it_does_between_processes(make_app: Callable[..., Backstay]) -> None:
    async with referring_jobs.bind(make_app) as app, app.worker():
        ref = await (await app.submit(app.handlers["make_child"], "from a child")).result(timeout=20)
        assert await (await app.submit("read_child", ref)).result(timeout=20) == "from a child"


async def test_another_queue_reads_it_only_through_a_dependency_or_the_tree(drawing: Backstay) -> None:
    @drawing.job("family", queue="other")
    async def family(payload: None, ctx: Context) -> str:
        drawn = await ctx.submit("draw", "of a child")
        children = await ctx.wait_for_children()
        return (await ctx.read_artifact(Chart(**children.result_of(drawn)).image)).decode()

    async with drawing as app, app.worker():
        job = await app.submit(app.handlers["draw"], "private")
        ref = (await job.result(timeout=20)).image
        stranger = await (await app.submit("other", ref, max_attempts=1)).wait(timeout=20)
        assert (stranger.status, stranger.row.error_type) == ("failed", "ArtifactNotFound")
        assert "private" not in str(stranger.last_error)
        friend = await app.submit("other", ref, depends_on=[job.job_id])
        assert await friend.result(timeout=20) == "private"
        assert await (await app.submit("family")).result(timeout=20) == "of a child"


async def test_a_file_that_was_replaced_removed_or_never_there_is_not_read(drawing: Backstay) -> None:
    @drawing.job("missing")
    async def missing(payload: None, ctx: Context) -> None:
        with pytest.raises(ArtifactNotFound, match="has stored no file"):
            await ctx.artifact_ref("nothing.txt")

    async with drawing as app, app.worker():
        job = await app.submit(app.handlers["draw"], "first")
        ref = (await job.result(timeout=20)).image
        await (await app.submit("missing")).result(timeout=20)
        for wrong in ({"sha256": "0" * 64}, {"name": "other.png"}, {"job_id": "0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a"}):
            with pytest.raises(ArtifactNotFound):
                await app.read_artifact(ref.model_copy(update=wrong))
        await app.purge(older_than=0)
        with pytest.raises(ArtifactNotFound, match="or it was removed with the job"):
            await app.read_artifact(ref)


async def test_a_file_that_was_changed_where_it_lies_is_not_read(drawing: Backstay, tmp_path: Path) -> None:
    async with drawing as app, app.worker():
        ref = (await (await app.submit(app.handlers["draw"], "original")).result(timeout=20)).image
        [path] = tmp_path.rglob("chart.png")
        path.write_text("tampered")
        with pytest.raises(StoreError, match="not what was stored"):
            await app.read_artifact(ref)


async def test_a_file_that_is_too_large_to_read_at_once_says_how_to_read_it(
    drawing: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with drawing as app, app.worker():
        ref = (await (await app.submit(app.handlers["draw"], "large")).result(timeout=20)).image
        monkeypatch.setattr(references, "ARTIFACT_READ_BYTES_MAX", 4)
        with pytest.raises(InvalidOption, match=r"app\.open_artifact"):
            await app.read_artifact(ref)
