"""Schemathesis over the whole API of a real server: what it found, and every status that was answered."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx

from holdfast.server.gate import Bounds
from tests.server.background import in_background
from tests.server.gated import sample_app

CONFIGURATION = """
[auth.openapi.bearer]
bearer = "{key}"

[auth.openapi.header]
api_key = "{key}"

# What a schema cannot say: cursors, rules of schedules, ETags, options that exclude one another, what JSON every engine
# keeps. A status that is not documented, and any of 5xx, is found all the same.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404", "405", "409", "412", "413", "422", "429"]

# A text that is too long for its field can make a body that is too long for any: 413 refuses it as well.
[checks.negative_data_rejection]
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
"""


@dataclass(frozen=True, slots=True)
class Fuzzed:
    passed: bool
    said: str
    answers: Counter[tuple[str, str, int]]

    @property
    def statuses(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for (_, _, status), count in self.answers.items():
            found[status] += count
        return found

    @property
    def broken(self) -> list[str]:
        return sorted({f"{method} {path} {status}" for method, path, status in self.answers if status >= 500})


def fuzz(folder: Path, *, examples: int, seed: int, seconds: float) -> Fuzzed:
    app = sample_app(f"sqlite:///{folder}/jobs.db")
    with in_background(app, Bounds(rate=1e9, failures_burst=10**9)) as server:
        (folder / "schemathesis.toml").write_text(CONFIGURATION.format(key=server.key))
        document = httpx.get(f"{server.address}/openapi.json", headers={"X-API-Key": server.key}, timeout=60)
        (folder / "openapi.json").write_bytes(document.content)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.address),
            *("--checks", "all", "--phases", "examples,coverage,fuzzing,stateful"),
            # Below /jobs a method depends on whether an id or a type is asked for, which no path can say;
            # test_gate_answers.py has a test of its own for this header.
            *("--exclude-checks", "allow_header_conformance"),
            *("--max-examples", str(examples), "--seed", str(seed), "--generation-database", "none"),
            *("--request-timeout", "20", "--continue-on-failure", "--no-color"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=seconds, check=False)
    return Fuzzed(done.returncode == 0, done.stdout + done.stderr, server.answers)
