"""The page that shows what the commands print"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts/generate/generate_command_line_output.py"


def run(option: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), option], capture_output=True, text=True, check=False)


def test_the_page_of_output_is_current_and_fits_80_columns() -> None:
    ran = run("--check")
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout


def test_the_same_fits_140_columns_and_tells_more() -> None:
    ran = run("--wide")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "PRIORITY  QUEUE" in ran.stdout
