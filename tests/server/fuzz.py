"""Schemathesis over the whole API of a real server: what it found, and every status that was answered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx

from backstay.server.gate import Bounds
from tests.server import unsayable
from tests.server.background import in_background
from tests.server.gated import sample_app

CONFIGURATION = """
[auth.openapi.bearer]
bearer = "{key}"

[auth.openapi.header]
api_key = "{key}"
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
        configuration = f"{CONFIGURATION.format(key=server.key)}\n{unsayable.configuration()}"
        (folder / "schemathesis.toml").write_text(configuration)
        document = httpx.get(f"{server.address}/openapi.json", headers={"X-API-Key": server.key}, timeout=60)
        (folder / "openapi.json").write_bytes(document.content)
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.address),
            *("--checks", "all", "--phases", "examples,coverage,fuzzing,stateful"),
            *("--max-examples", str(examples), "--seed", str(seed), "--generation-database", "none"),
            *("--request-timeout", "20", "--continue-on-failure", "--no-color"),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=folder, env=_with_hooks(), timeout=seconds, check=False
        )
    return Fuzzed(done.returncode == 0, done.stdout + done.stderr, server.answers)


def _with_hooks() -> dict[str, str]:
    here = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": here, "SCHEMATHESIS_HOOKS": unsayable.__name__}
