"""The Polis analysis as people start it: `python -m polis`, which `scripts/run` and `examples/polis/run` call."""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from polis.__main__ import failed, sample, strictly_moderated, write_pages
from polis.export import read_export
from polis.tables import CommentEmbedding, TopicName
from rich.console import Console

from backstay import Backstay, Discard, Job, Stage
from backstay.testing import drain
from tests.examples.messages_api import Receiver, receiving
from tests.examples.polis_conversation import two_groups
from tests.server.test_serve import Process

STAGES = ("FULL_PIPELINE", "PCA", "UMAP", "REPORT", "NARRATIVE")
PAGES = {"report.html", "basic.html", "enhanced.html", "multilayer.html"}


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "polis", "--folder", str(folder / "demo"), *more]


def start(folder: Path, environment: dict[str, str], *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(folder, *more),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_in_the_foreground,
    )


def _in_the_foreground() -> None:
    """Ctrl-C reaches it, as in a terminal: these tests may have been started in the background, with it ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run(folder: Path, environment: dict[str, str], *more: str) -> tuple[int, str]:
    done = subprocess.run(
        command(folder, *more),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=110,
    )
    return done.returncode, done.stdout


def interrupted(folder: Path, environment: dict[str, str], *more: str) -> None:
    """Ctrl-C as soon as a stage runs."""
    process = start(folder, environment, *more)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("PCA: "):
        pass
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "goes on where it was" in said, said


def run_in_a_terminal(folder: Path, environment: dict[str, str], *more: str) -> tuple[int, str]:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        command(folder, *more), cwd=folder, env={**environment, "TERM": "xterm", "COLUMNS": "200"}, stdout=theirs
    ) as process:
        os.close(theirs)
        said = b""
        while part := _read(ours):
            said += part
        os.close(ours)
        return process.wait(60), said.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError as error:  # on Linux the end of a terminal is an error
        if error.errno == errno.EIO:
            return b""
        raise


async def stored(folder: Path) -> dict[str, Job]:
    async with Backstay(f"sqlite:///{folder}/demo/jobs.db") as app:
        [root] = await app.find(job_type="FULL_PIPELINE")
        return {job.job_type: job for job in (await app.tree(root.job_id)).jobs.values()}


async def left_behind(folder: Path, umap: str, said: str) -> Path:
    """The pages are where it says, with what the model wrote; the rows are under their job."""
    report = Path(re.search(r"Report: (\S+)", said)[1])  # type: ignore[index]
    assert {each.name for each in report.parent.iterdir()} == PAGES
    page = report.read_text(encoding="utf-8")
    assert "Written by model-of-the-test" in page and "Streets and squares" in page

    async with Backstay(f"sqlite:///{folder}/demo/jobs.db") as app:
        assert len(await app.results(CommentEmbedding).all(umap)) == 12
        assert {each.model_name for each in await app.results(TopicName).all(umap)} == {"model-of-the-test"}
    return report


async def test_an_analysis_killed_in_the_middle_of_umap_goes_on_and_each_stage_completes_once(
    tmp_path: Path, example_environment: dict[str, str]
) -> None:
    export = two_groups(tmp_path / "36324")
    with receiving(Receiver()) as model:
        environment = {
            **example_environment,
            "POLIS_LLM_URL": model.url,
            "POLIS_LLM_MODEL": "model-of-the-test",
            "POLIS_LLM_CHECK_SECONDS": "0.1",
        }
        interrupted(tmp_path, environment, str(export))
        assert (await stored(tmp_path))["PCA"].status != "processing", "it was given back"

        model.may_answer.clear()
        process = start(tmp_path, environment, str(export))
        assert await asyncio.to_thread(model.asked.wait, 100), "UMAP asks it for the names of topics"
        process.kill()
        said, _ = process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert "PCA: done" in said and "UMAP: done" not in said
        before = await stored(tmp_path)
        assert [before[stage].status.value for stage in ("PCA", "UMAP", "REPORT")] == [
            "completed",
            "processing",
            "waiting",
        ]

        model.may_answer.set()
        code, said = run_in_a_terminal(tmp_path, environment, str(export))
        assert code == 0, said
    assert "━" in said and "100%" in said, "bars in a terminal"
    between = {int(each) for each in re.findall(r"UMAP\D.*?(\d+)%", said)} - {0, 100}
    assert len(between) >= 3, f"a bar moves while its stage runs: {sorted(between)}"
    after = await stored(tmp_path)
    assert tuple(sorted(after)) == tuple(sorted(STAGES))
    for job in after.values():
        assert job.status == "completed", f"{job.job_type}: {job.last_error}"
        assert [str(each.event) for each in job.history].count("complete") == 1
    assert after["PCA"].completed_at == before["PCA"].completed_at, "what was finished is not done again"
    assert (after["UMAP"].failures, after["REPORT"].failures) == (1, 0)
    assert "snooze" in {str(each.event) for each in after["NARRATIVE"].history}
    assert len(model.batches) == 1, "the questions are handed in once"
    report = await left_behind(tmp_path, after["UMAP"].job_id, said)

    code, said = run(tmp_path, environment, str(export))
    assert code == 0, said
    assert "Nothing was computed" in said and str(report) in said
    assert {name: job.version for name, job in (await stored(tmp_path)).items()} == {
        name: job.version for name, job in after.items()
    }


def test_the_sample_waits_for_a_server_and_runs_behind_the_dashboard(
    tmp_path: Path, example_environment: dict[str, str]
) -> None:
    """What `scripts/run serve` does."""
    code, said = run(tmp_path, example_environment, "--submit", "--participants", "40")
    assert code == 0 and "Submitted: job" in said, said
    process = Process(
        tmp_path,
        *("--workers", "1", "--app", "polis.app:app"),
        BACKSTAY_URL=f"sqlite:///{tmp_path}/demo/jobs.db",
        POLIS_EXPORTS=str(tmp_path / "demo" / "exports"),
        PYTHONPATH=example_environment["PYTHONPATH"],
    )
    try:
        with httpx.Client(base_url=process.address, timeout=100) as client:
            [root] = client.get("/jobs", params={"job_type": "FULL_PIPELINE"}).json()["items"]
            with client.stream("GET", f"/jobs/{root['job_id']}/tree/stream") as stream:
                told = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line[:6] == "data: ")
                ended = (each for each in told if each.get("status") == "completed")
                pca = next(each for each in ended if each["job_stage"] == "PCA")
            rows = client.get(f"/jobs/{pca['job_id']}/results/CommentExtremity").json()["items"]
            assert rows[0]["conversation_id"] == "millbrook-40"
    finally:
        process.process.kill()  # the rest of the analysis is not waited for
        process.end()


def test_an_export_that_cannot_be_read_is_said_in_a_sentence(
    tmp_path: Path, example_environment: dict[str, str]
) -> None:
    code, said = run(tmp_path, example_environment, str(tmp_path / "nowhere"))
    assert code == 2
    assert said.startswith("polis: ") and "is not a folder" in said and "Traceback" not in said


def test_a_folder_that_cannot_be_made_is_said_in_a_sentence(
    tmp_path: Path, example_environment: dict[str, str]
) -> None:
    (tmp_path / "file").touch()
    code, said = run(tmp_path, example_environment, "--folder", str(tmp_path / "file" / "below"))
    assert code == 2
    assert said.startswith("polis: ") and len(said.splitlines()) == 1


def test_pages_and_sample_are_whole_though_two_write_them_at_once_or_one_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)  # as in a container: that of the killed one, too
    reports, pages = tmp_path / "reports" / "c", {f"{number}.html": b"x" * 999 for number in range(20)}
    with ThreadPoolExecutor(4) as threads:
        for made in [threads.submit(write_pages, pages, reports) for _ in range(40)]:
            made.result()
    assert {path.name for path in reports.iterdir()} == pages.keys()
    with ThreadPoolExecutor(2) as threads:
        made = [threads.submit(sample, tmp_path, 10) for _ in range(2)]
        assert made[0].result() == made[1].result()
    assert [path.name for path in (tmp_path / "exports").iterdir()] == [made[0].result().name]


def test_strict_moderation_by_option_is_an_analysis_of_its_own(tmp_path: Path) -> None:
    export = two_groups(tmp_path / "36324")
    for path in export.iterdir():
        path.chmod(0o400)  # as an export on a medium that cannot be written
    strict = strictly_moderated(tmp_path / "demo", export)
    assert strict == strictly_moderated(tmp_path / "demo", export) == tmp_path / "demo" / "exports" / "36324-strict"
    assert read_export(strict, "36324-strict").strict and not read_export(export, "36324").strict
    assert read_export(strict, "1").digest != read_export(export, "1").digest


async def test_an_analysis_that_fails_says_which_stage_and_why(tmp_path: Path) -> None:
    app = Backstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("PCA")
    async def pca(payload: None) -> None:
        raise Discard("there is nothing to analyse")

    @app.job("UMAP")
    async def umap(payload: None) -> None: ...

    whole = app.pipeline("FULL_PIPELINE", [Stage("PCA", pca), Stage("UMAP", umap)])
    async with app:
        root = await whole.submit({"stages": [{"stage": "PCA", "config": None}, {"stage": "UMAP", "config": None}]})
        await drain(app)
        jobs = {job.job_type: job for job in (await app.tree(root.job_id)).jobs.values()}
    said = io.StringIO()
    assert failed(jobs, Console(file=said)) == 1
    assert said.getvalue().splitlines() == [
        "PCA failed: Discard: there is nothing to analyse",
        "Start it again to go on from there.",
    ]
