"""A limit on the file size, which simulates a full disk without root. Prints a JSON report."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from backstay import StoreError
from backstay.testing.history import Evidence, Outcome
from backstay.testing.history.checker import check
from tests.campaigns.crash_app import make_app, record_calls
from tests.campaigns.fleet import calls_in, dump, opened

LIMIT = 768 * 1024  # file size: room for the schema and some jobs


async def main(folder: Path) -> dict[str, Any]:
    record_calls(folder, "submitter")
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    url = f"sqlite:///{folder / 'jobs.db'}"
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = 0
    async with make_app(url) as app:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, most))
        for _ in range(200):
            try:
                await app.submit("bulky", "x" * 8_000, delay=3600)
            except StoreError:
                refused += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        await app.submit("bulky", "x" * 8_000, delay=3600)
    async with opened(url) as store:
        evidence = Evidence(await dump(store), calls_in(folder), ended=False)
    return {
        "refused": refused,
        "acknowledged": sum(1 for _ in evidence.of("insert", Outcome.OK)),
        "present": len(evidence.records),
        "violations": [str(each) for each in check(evidence)],
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
