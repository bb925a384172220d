"""The applications are packages of `examples/`, imported here by the names that their own commands use."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"

sys.path.append(str(EXAMPLES))


@pytest.fixture
def example_environment() -> dict[str, str]:
    """What `python -m <name>` needs to find an application; nothing of this machine's own settings is in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("BACKSTAY_", "AWS_"))}
    return {**kept, "PYTHONPATH": str(EXAMPLES), "PYTHONUNBUFFERED": "1"}
