"""scripts/campaign api: thousands of generated requests to the whole API, and a file of figures."""

from __future__ import annotations

import re
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.campaigns.rounds import versions
from tests.server.fuzz import fuzz

SECONDS_MAX = 6 * 3600.0


def ask(seed: int, examples: int) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="backstay-api-") as folder:
        fuzzed = fuzz(Path(folder), examples=examples, seed=seed, seconds=SECONDS_MAX)
    cases = re.search(r"(\d+) generated", fuzzed.said)
    passed = fuzzed.passed and not fuzzed.broken
    if not passed:
        print(fuzzed.said)
    return {
        "what": "api",
        "verdict": "passed" if passed else "failed",
        "asked": {"seed": seed, "examples": examples},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began),
        "versions": versions(),
        "cases": int(cases[1]) if cases else 0,
        "answers": {str(status): count for status, count in sorted(fuzzed.statuses.items())},
        "faults": fuzzed.broken,
    }
