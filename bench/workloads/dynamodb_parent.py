"""Measures settlements when eight stores end children of one parent at once, on DynamoDB Local behind a proxy that
delays transactions and cancels conflicting ones, as DynamoDB does.

    scripts/bench dynamodb-parent [--json bench/results/dynamodb-parent.json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from backstay.clock import SystemClock
from backstay.core.records import Staged, Verdict
from backstay.engines.dynamodb.store import DynamoStore
from backstay.errors import StoreBusy
from backstay.limits import CHILDREN_PART_MAX
from backstay.testing.conformance.factories import Claim, new_job, record, request, running
from tests.support.servers.dynamo_proxy import DynamoProxy
from tests.support.servers.dynamodb import DynamoDB

clock = SystemClock()


@dataclass
class Outcome:
    stores: int
    together: int  # children of one settlement
    children: int
    seconds: float
    median: float
    worst_hundredth: float
    longest: float
    conflicts: int


async def measure(server: DynamoDB, stores: int, together: int, children: int, transaction: float) -> Outcome:
    with DynamoProxy(server.port) as proxy:
        url = server.url(f"p_{secrets.token_hex(4)}", wake="false").replace(f":{server.port}", f":{proxy.port}")
        crowd = [DynamoStore(url) for _ in range(stores)]
        for store in crowd:
            await store.open()
        parent = await waiting(crowd[0], children)
        shares = await claimed(crowd, together, children)
        proxy.contend(transaction)
        took: list[float] = []
        begun = time.perf_counter()
        await asyncio.gather(*(settle(store, share, took) for store, share in zip(crowd, shares, strict=True)))
        seconds = time.perf_counter() - begun
        proxy.heal()
        assert (await record(crowd[0], parent)).status == "pending"
        conflicts = sum(store.meter.conflicts for store in crowd)
        for store in crowd:
            await store.close()
    worst = statistics.quantiles(took, n=100, method="inclusive")[-1]
    return Outcome(stores, together, children, seconds, statistics.median(took), worst, max(took), conflicts)


async def waiting(store: DynamoStore, children: int) -> str:
    """Return a parent that waits for this many children."""
    parent = await running(store, now=clock.now())
    jobs = [new_job(parent_job_id=parent.job_id, own_id=True, scheduled_for=0) for _ in range(children)]
    parts = range(0, children, CHILDREN_PART_MAX)
    for number, start in enumerate(parts):
        await store.stage(parent.hold, number, jobs[start : start + CHILDREN_PART_MAX], clock.now())
    await store.apply([parent.waits(staged=Staged(len(parts), children))], clock.now())
    return parent.job_id


async def claimed(crowd: list[DynamoStore], together: int, children: int) -> list[list[list[Claim]]]:
    """Return, by store, the jobs that each of its calls settles."""
    shares: list[list[list[Claim]]] = [[] for _ in crowd]
    for number in range(-(-children // together)):
        asked = request(limit=together)
        store = number % len(crowd)
        shares[store].append([Claim(job, asked.token) for job in await crowd[store].claim(asked, clock.now())])
    return shares


async def settle(store: DynamoStore, share: list[list[Claim]], took: list[float]) -> None:
    for claims in share:
        begun = time.perf_counter()
        verdicts = await settled(store, claims)
        took.append(time.perf_counter() - begun)
        assert set(verdicts) == {Verdict.APPLIED}


async def settled(store: DynamoStore, claims: list[Claim]) -> list[Verdict]:
    """Settle as a worker does: repeat what was refused because of contention."""
    while True:
        with contextlib.suppress(StoreBusy):
            return await store.apply([claim.completes() for claim in claims], clock.now())


def main() -> int:
    parser = argparse.ArgumentParser(description="Settlements of the children of one parent.")
    parser.add_argument("--children", type=int, default=400)
    parser.add_argument("--transaction", type=float, default=0.025, help="seconds that one takes")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file, too")
    given = parser.parse_args()
    outcomes = []
    print("stores  together  children/s  median    99 %   longest  cancelled")
    with DynamoDB() as server:
        for stores, together in ((1, 1), (8, 1), (8, 10)):
            each = asyncio.run(measure(server, stores, together, given.children, given.transaction))
            outcomes.append(each)
            print(
                f"{each.stores:6d} {each.together:9d} {each.children / each.seconds:11.0f} {each.median:6.2f} s"
                f" {each.worst_hundredth:5.2f} s {each.longest:7.2f} s {each.conflicts:10d}",
                flush=True,
            )
    if given.json is not None:
        settings = {"transaction": given.transaction}
        text = json.dumps({"settings": settings, "outcomes": [asdict(each) for each in outcomes]}, indent=1)
        given.json.write_text(f"{text}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
