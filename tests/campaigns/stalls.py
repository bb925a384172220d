"""Stops many workers past their lease, then resumes them: each must be refused."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass, field
from pathlib import Path

from backstay.testing.history import Outcome
from backstay.testing.history.checker import Violation, check, unfinished
from tests.campaigns.fleet import Fleet
from tests.campaigns.fleet_app import recording_app
from tests.campaigns.places import Place

STALLS = ("claim.committed", "handler.inside", "handler.after", "settle.before")


@dataclass
class Stalled:
    stops: int = 0
    settlements_refused: int = 0
    extensions_refused: int = 0
    accepted: list[str] = field(default_factory=list)
    deaths: list[str] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)


async def stall(folder: Path, where: str, workers: int, lease: float = 0.8, place: Place | None = None) -> Stalled:
    report = Stalled()
    async with Fleet.open(folder, lease=lease, place=place) as fleet, recording_app(fleet) as app:
        jobs = await app.submit_many(("quick", {"n": n}) for n in range(workers))
        stalled = [await fleet.stalling_worker(where, concurrency=1) for _ in jobs]
        async with asyncio.timeout(30):
            for process in stalled:
                await process.stopped.wait()
        await fleet.worker()
        await fleet.all_ended(app.store, seconds=30)
        for process in stalled:
            process.send(signal.SIGCONT)
        await fleet.terminate(within=30)
        evidence = await fleet.evidence(app.store)
    names = {process.name for process in stalled}
    for op in evidence.operations:
        if op.process.partition(".")[0] not in names or op.item.token is None:
            continue
        report.extensions_refused += op.verb == "extend" and op.outcome is Outcome.STALE
        if op.verb == "apply" and op.outcome is Outcome.STALE:
            report.settlements_refused += 1
        elif op.verb == "apply":
            report.accepted.append(f"{op.process}: {op.item.event} of attempt {op.attempt} was {op.outcome}")
    report.stops = len(stalled)
    report.deaths = [f"{each.name}: {each.death}" for each in fleet.all if each.death != "exited 0"]
    report.violations = check(evidence) + unfinished(evidence)
    return report
