"""How long `backstay move` takes, by step: copying, and comparing both sides.

`scripts/bench move [--jobs 20000] [--to postgres|sqlite|dynamodb]`; half of the jobs have run. The queue
comes from a file; a server that the run starts takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import tempfile
import time
from collections.abc import Iterator

from backstay import Backstay, transfer
from backstay.testing import drain
from backstay.transfer import Progress
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres

SOME = 5_000


async def fill(url: str, jobs: int) -> None:
    app = Backstay(url)

    @app.job("echo")
    async def echo(payload: dict[str, int]) -> dict[str, int]:
        return payload

    async with app:
        for ran in (True, False):
            for start in range(0, jobs // 2, SOME):
                count = min(SOME, jobs // 2 - start)
                await app.submit_many([("echo", {"n": start + n}) for n in range(count)])
            if ran:
                await drain(app)


@contextlib.contextmanager
def target(engine: str, folder: str) -> Iterator[str]:
    name = f"moved_{secrets.token_hex(4)}"
    match engine:
        case "postgres":
            with Postgres() as server:
                yield server.url(schema=name)
        case "dynamodb":
            with DynamoDB() as server:
                yield server.url(name)
        case _:
            yield f"sqlite:///{folder}/{name}.db"


async def measure(source: str, there: str) -> dict[str, float]:
    began = time.perf_counter()
    ends: dict[str, float] = {}

    def show(progress: Progress) -> None:
        ends["comparing" if progress.step == "verifying" else "copying"] = time.perf_counter() - began

    report = await transfer.move(source, there, show=show)
    jobs = report.copied["jobs"]
    copying, comparing = ends["copying"], ends["comparing"] - ends["copying"]
    return {
        "jobs": jobs,
        "copied_per_second": round(jobs / copying),
        "compared_per_second": round(jobs / comparing),
        "seconds": round(report.seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--to", choices=("postgres", "sqlite", "dynamodb"), default="postgres")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, target(asked.to, folder) as there:
        source = f"sqlite:///{folder}/jobs.db"
        asyncio.run(fill(source, asked.jobs))
        print(json.dumps({"to": asked.to, **asyncio.run(measure(source, there))}))


if __name__ == "__main__":
    main()
