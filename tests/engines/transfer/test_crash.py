"""A move that is killed goes on where it was: nothing is lost, nothing is there twice."""

from __future__ import annotations

import secrets
from pathlib import Path

from backstay.core.dumps import INTO
from backstay.engines import open_url
from tests.campaigns.move_process import POINTS, run_move
from tests.engines.transfer.full_queue import app_at, fill, run_the_rest, same
from tests.support.servers.postgres import Postgres


async def test_a_large_move_that_is_killed_twice_ends_with_the_same_queue(tmp_path: Path, postgres: Postgres) -> None:
    old = app_at(f"sqlite:///{tmp_path}/old.db")
    new = app_at(postgres.url(schema=f"killed_{secrets.token_hex(4)}"))
    await fill(old, plain=2_000)

    run_move(old.url, new.url, dies_at="move.page@7")
    run_move(old.url, new.url, dies_at="restore.uncommitted@2")
    done = run_move(old.url, new.url)

    assert "both sides were compared" in done.stdout
    assert await same(old, new) > 2_000
    begun = await run_the_rest(new)
    assert len(begun) > 1_000
    assert set(begun.values()) <= {0, 1, 2}  # a parent that waits is entered once more


async def test_wherever_it_is_killed_jobs_run_on_one_side_at_most(tmp_path: Path) -> None:
    old, new = app_at(f"sqlite:///{tmp_path}/old.db"), app_at(f"sqlite:///{tmp_path}/new.db")
    await fill(old)

    for point in POINTS:
        run_move(old.url, new.url, dies_at=point)
        serve = [await _serves(app.url) for app in (old, new)]
        assert serve == [point == "move.marked", point == "move.opened"], point
    run_move(old.url, new.url)

    assert await same(old, new) > 20
    await run_the_rest(new)


async def _serves(url: str) -> bool:
    """Whether jobs are taken in and given out there."""
    store = open_url(url)
    await store.open()
    try:
        state = await store.moving()
        return state is None or (state.role == INTO and state.done)
    finally:
        await store.close()
