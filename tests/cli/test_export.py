"""backstay export, backstay replay"""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import APP, Cli, Queue

ELSEWHERE = """
from backstay import Backstay, Context

app = Backstay("sqlite:///elsewhere.db")


@app.job("echo")
async def echo(payload, ctx: Context):
    ctx.log.info("heard %s again", payload)
    return payload


@app.job("fail")
async def fail(payload):
    raise ValueError("still no")
"""


def test_a_job_is_written_to_a_file_and_replayed_elsewhere(cli: Cli, queue: Queue, folder: Path) -> None:
    job_id = queue.run(payload="knock")
    ran = cli("export", job_id)
    path = folder / f"{job_id}.backstay.zip"
    assert (ran.code, ran.out.startswith(f"{path.name}: 1 job, ")) == (0, True)
    (folder / "elsewhere.py").write_text(ELSEWHERE)

    ran = cli("replay", str(path), "--app", "elsewhere:app")
    assert ran.code == 0
    assert 'now       completed: "knock"' in ran.out
    assert "heard knock again" in ran.out
    assert not (folder / "elsewhere.db").exists()
    document = cli("replay", str(path), "--app", "elsewhere:app", "--json").document
    assert (document["outcome"], document["result"], document["attempt"]) == ("completed", "knock", 1)


def test_a_replay_that_fails_has_the_exit_code_1(cli: Cli, queue: Queue, folder: Path) -> None:
    job_id = queue.run(payload="knock")
    assert cli("export", job_id, "-o", "job.zip").code == 0
    (folder / "broken.py").write_text(ELSEWHERE.replace("return payload", "raise ValueError('broken')"))
    ran = cli("replay", "job.zip", "--app", "broken:app")
    assert ran.code == 1
    assert "now       failed: ValueError: broken" in ran.out
    assert "diverged  it failed: ValueError: broken; recorded was: completed" in ran.out


def test_what_cannot_be_exported_or_replayed_says_why(cli: Cli, queue: Queue, folder: Path) -> None:
    assert cli("export", "0198d0c2-6c1e-7001-8a3b-1f2e3d4c5b6a").code == 5
    (folder / "job.zip").write_text("no")
    ran = cli("replay", "job.zip", "--app", APP)
    assert (ran.code, "is not an exported job" in ran.err) == (1, True)


def test_a_key_for_encrypted_fields_is_printed(cli: Cli) -> None:
    first, second = (cli("encryption-key").out.strip() for _ in range(2))
    assert len(first) == len(second) == 43
    assert first != second
