"""A disk that runs full under load, on a tmpfs of a few megabytes that only this process and its children see.

Run as root by `unshare --mount`: python -m tests.campaigns.disk_full <folder for logs> <cycles>. Prints a JSON report.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from backstay import Backstay, StoreFull
from backstay.testing.history import Evidence, Outcome
from backstay.testing.history.checker import check
from tests.campaigns.fleet import Fleet, dump, opened
from tests.campaigns.fleet_app import recording_app
from tests.campaigns.places import File

SMALL, LARGE = "size=12m", "size=48m"
RUNNING = 20
FLOOD = "tests.campaigns.processes.flood:flood"


async def main(folder: Path, cycles: int) -> dict[str, Any]:
    reports = []
    for cycle in range(cycles):
        place = folder / f"cycle-{cycle}"
        disk = place / "disk"
        disk.mkdir(parents=True)
        _mount("-t", "tmpfs", "-o", SMALL, "tmpfs", str(disk))
        reports.append(await _cycle(place, disk))
        _run("umount", str(disk))
    return {"cycles": reports}


async def _cycle(place: Path, disk: Path) -> dict[str, Any]:
    async with Fleet.open(place, lease=10, place=File(disk / "jobs.db")) as fleet:
        async with recording_app(fleet) as app:
            settled_on_full_disk = await _fill(fleet, app, disk)
            still_full = await _is_full(app)
            _mount("-o", f"remount,{LARGE}", str(disk))
            goes_on = (await app.result((await app.submit("quick", {"n": 1})).job_id, timeout=20))["n"] == 1
        await fleet.terminate()
        async with opened(fleet.url) as store:
            evidence = Evidence(
                await dump(store),
                fleet.operations(),
                counts=await store.counts(),
                edges=await fleet.place.edges(),
                ended=False,
            )
    return {
        "settled_on_full_disk": settled_on_full_disk,
        "still_full": still_full,
        "goes_on": goes_on,
        "acknowledged": sum(1 for _ in evidence.of("insert", Outcome.OK)),
        "refused": sum(1 for _ in evidence.of("insert", Outcome.ERROR)),
        "unknown": sum(1 for _ in evidence.of("insert", Outcome.INFO)),
        "present": len(evidence.records),
        "violations": [str(each) for each in check(evidence)],
        "deaths": [f"{process.name}: {process.death}" for process in fleet.all if process.death != "exited 0"],
        "errors": fleet.errors()[-2000:],
    }


async def _fill(fleet: Fleet, app: Backstay, disk: Path) -> int:
    """Run jobs while two processes fill the disk completely and keep trying; return how many jobs could be settled."""
    await fleet.worker(concurrency=RUNNING)
    jobs = [await app.submit("slow", {"n": n, "millis": 1500 + 100 * n}) for n in range(RUNNING)]
    flooders = [await fleet.start(FLOOD, "flood", "") for _ in range(2)]
    async with asyncio.timeout(30):
        for flooder in flooders:
            await flooder.stopped.wait()
    for flooder in flooders:
        flooder.send(signal.SIGCONT)
    results = await asyncio.gather(*(app.result(job.job_id, timeout=15) for job in jobs), return_exceptions=True)
    return sum(not isinstance(result, BaseException) for result in results)


async def _is_full(app: Backstay) -> bool:
    try:
        for _ in range(50):
            await app.submit("bulky", "x" * 50_000, delay=3600)
    except StoreFull:
        return True
    return False


def _mount(*arguments: str) -> None:
    _run("mount", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))))
