"""Jobs one by one against the same jobs in batches of fifty, with a handler that costs what an embedding costs: 20 ms
for the call and 0.2 ms for each text.

`scripts/bench batches [--jobs 2000] [--rounds 3] [--url …]`; a line for each round, then medians and their
ratio. Both sides have one slot: what is compared is the work of one such model, not how many of them there are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from statistics import median

from backstay import Backstay

CALL_SECONDS, TEXT_SECONDS, SIZE = 0.020, 0.0002, 50


async def embed(texts: Sequence[str]) -> list[int]:
    await asyncio.sleep(CALL_SECONDS + TEXT_SECONDS * len(texts))
    return [len(text) for text in texts]


def app_at(url: str) -> Backstay:
    app = Backstay(url)

    @app.job("single")
    async def single(payload: str) -> int:
        return (await embed([payload]))[0]

    @app.batch_job("together", max_size=SIZE, max_wait=0.05)
    async def batch(payloads: list[str]) -> list[int]:
        return await embed(payloads)

    return app


async def rate(url: str, job_type: str, jobs: int) -> float:
    """Return jobs per second, from the start of a worker to the end of the last job."""
    async with app_at(url) as app:
        handles = await app.submit_many([(job_type, f"text {n}") for n in range(jobs)])
        began = time.perf_counter()
        async with app.worker(concurrency=1, job_types=[job_type]):
            await asyncio.gather(*(handle.result(timeout=600) for handle in handles))
            return jobs / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--url", help="a queue that may be filled; a new file by default")
    asked = parser.parse_args()
    rounds = []
    for number in range(asked.rounds):
        with tempfile.TemporaryDirectory() as folder:
            url = asked.url or f"sqlite:///{folder}/jobs.db"
            single = asyncio.run(rate(url, "single", max(SIZE, asked.jobs // 10)))
            batch = asyncio.run(rate(url, "together", asked.jobs))
        rounds.append((single, batch))
        print(json.dumps({"round": number, "single_per_second": round(single, 1), "batch_per_second": round(batch, 1)}))
    singles, batches = (median(each) for each in zip(*rounds, strict=True))
    ratio = median(batch / single for single, batch in rounds)
    print(json.dumps({"single": round(singles, 1), "batch": round(batches, 1), "ratio": round(ratio, 1)}))


if __name__ == "__main__":
    main()
