"""The whole API, asked everything that its own document allows and much that it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from holdfast.server.gate import Bounds
from tests.server.background import in_background
from tests.server.gated import sample_app

EXAMPLES = int(os.environ.get("HOLDFAST_TEST_API_EXAMPLES", "2"))  # per operation; scripts/campaign asks for more
SECONDS = int(os.environ.get("HOLDFAST_TEST_API_SECONDS", "110"))
SEED = os.environ.get("HOLDFAST_TEST_API_SEED", "7")

CONFIGURATION = """
[auth.openapi.bearer]
bearer = "{key}"

[auth.openapi.header]
api_key = "{key}"

# What a schema cannot say: cursors, rules of schedules, ETags, options that exclude one another, what JSON every engine
# keeps. A status that is not documented, and any of 5xx, is found all the same.
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404", "405", "409", "412", "413", "422", "429"]
"""


@pytest.mark.timeout(SECONDS + 60)
def test_the_api_answers_everything_as_its_document_says(tmp_path: Path) -> None:
    app = sample_app(f"sqlite:///{tmp_path}/jobs.db")
    bounds = Bounds(rate=1e9, failures_burst=10**9)
    with in_background(app, bounds) as server:
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", "openapi.json", "--url", server.address),
            *("--checks", "all", "--phases", "examples,coverage,fuzzing,stateful"),
            # Below /jobs a method depends on whether an id or a type is asked for, which no path can say;
            # test_gate_answers.py has a test of its own for this header.
            *("--exclude-checks", "allow_header_conformance"),
            *("--max-examples", str(EXAMPLES), "--seed", SEED, "--generation-database", "none"),
            *("--request-timeout", "20", "--continue-on-failure", "--no-color"),
        ]
        (tmp_path / "schemathesis.toml").write_text(CONFIGURATION.format(key=server.key))
        document = httpx.get(f"{server.address}/openapi.json", headers={"X-API-Key": server.key})
        (tmp_path / "openapi.json").write_bytes(document.content)
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=SECONDS, check=False)
    if output := os.environ.get("HOLDFAST_TEST_API_OUTPUT"):
        Path(output).write_text(done.stdout)
    broken = [f"{method} {path} {status}" for method, path, status in server.answers if status >= 500]
    assert broken == []
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert sum(server.answers.values()) > 500
