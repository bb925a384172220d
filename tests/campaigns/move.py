"""Transfers a large queue from SQLite to PostgreSQL, with the command killed (SIGKILL) at random pages."""

from __future__ import annotations

import random
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backstay.limits import MOVE_PAGE
from tests.campaigns.move_process import run_move
from tests.campaigns.rounds import in_a_folder, say, versions
from tests.engines.transfer.full_queue import app_at, fill, run_the_rest, same
from tests.support.servers.postgres import Postgres

POINTS = ("move.page", "restore.uncommitted", "restore.committed")


async def move(seed: int, kills: int, jobs: int) -> dict[str, Any]:
    started = time.monotonic()
    found: dict[str, Any] = {"kills": []}
    faults: list[str] = []

    async def run(folder: Path) -> None:
        with Postgres() as server:
            await _move(folder, server, random.Random(seed), kills, jobs, found)

    await in_a_folder(faults, f"move-{seed}", run)
    complete = len(found["kills"]) >= kills and "compared" in found
    return {
        "what": "move",
        "verdict": "passed" if complete and not faults else "failed",
        "asked": {"kills": kills, "jobs": jobs, "seed": seed},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - started),
        "versions": versions(),
        "from": "SQLite",
        "to": "PostgreSQL",
        **found,
        "faults": faults[:50],
    }


async def _move(
    folder: Path, server: Postgres, draw: random.Random, kills: int, jobs: int, found: dict[str, Any]
) -> None:
    old = app_at(f"sqlite:///{folder}/old.db")
    new = app_at(server.url(schema=f"moved_{secrets.token_hex(4)}"))
    say(f"making {jobs:,} jobs")
    await fill(old, plain=jobs)
    pages = jobs // MOVE_PAGE // (kills + 1)  # so that each try makes some progress, and none finishes
    while len(found["kills"]) < kills:
        point = f"{draw.choice(POINTS)}@{draw.randint(pages // 2, pages)}"
        run_move(old.url, new.url, dies_at=point, seconds=3_600)
        found["kills"].append(point)
        say(f"{len(found['kills'])} of {kills} kills")
    began = time.monotonic()
    run_move(old.url, new.url, seconds=3_600)
    found["seconds of the last try"] = round(time.monotonic() - began, 1)
    say("comparing")
    found["compared"] = await same(old, new)
    begun = await run_the_rest(new, seconds=jobs / 50)
    assert set(begun.values()) <= {0, 1, 2}, "a job began more often than it should"
    found["run after the move"] = len(begun)
