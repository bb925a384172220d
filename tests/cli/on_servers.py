"""What the command line promises on every server: imported by the tests of each, which say where (`url`)."""

from __future__ import annotations

import asyncio

from backstay import Backstay
from tests.cli.conftest import Cli, sample_app


def test_a_large_result_is_shown_by_every_command_that_shows_results(cli: Cli, url: str) -> None:
    async def work() -> str:
        app: Backstay = sample_app(url)
        async with app, app.worker(queues=["default"]):
            job = await app.submit("echo", large)
            await job.result(timeout=20)
            found = await job.record()
        assert found.result == large  # after closing, too
        return job.job_id

    large = list(range(20_000))
    job_id = asyncio.run(work())

    assert "more lines" in cli("show", job_id).out
    assert cli("show", job_id, "--json").document["result"] == large
    assert cli("list", "--json").document["items"][0]["result"] == large
    assert cli("watch", job_id).document == large
