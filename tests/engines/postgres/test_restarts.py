"""Workers and submitters in processes of their own, on a server that is restarted and a line that loses replies.

The same with large counts is `scripts/campaign postgres`.
"""

from pathlib import Path

from tests.campaigns.outages import FIRST_CLAIM_SECONDS, lose_replies, restart
from tests.support.servers.postgres import Postgres


async def test_restarts_lose_nothing_and_every_worker_works_on(tmp_path: Path) -> None:
    with Postgres() as server:
        suffered = await restart(tmp_path, server, ["fast", "immediate", "kill"])

    assert suffered.faults == []
    assert len(suffered.first_claims) == 3
    assert max(suffered.first_claims) < FIRST_CLAIM_SECONDS
    assert suffered.jobs["completed"] > 200


async def test_replies_that_are_lost_after_the_commit_complete_nothing_twice(
    tmp_path: Path, postgres: Postgres
) -> None:
    suffered = await lose_replies(tmp_path, postgres, 40)

    assert suffered.faults == []
    assert suffered.lost_replies == 40
    assert suffered.jobs["completed"] > 100
