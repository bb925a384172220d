"""Common code of campaigns: rounds on fresh files, and the description of the run in a file of figures."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import apsw

from tests.campaigns.fleet import ROOT


async def in_a_folder(faults: list[str], name: str, run: Callable[[Path], Awaitable[None]]) -> None:
    """Run one round. The folder of a failed round is kept."""
    folder = Path(tempfile.mkdtemp(prefix=f"backstay-{name}-"))
    try:
        await run(folder)
    except (AssertionError, TimeoutError) as error:
        faults.append(f"{name}: {error!r}")
    if faults:
        print(f"\n{name} went wrong: its files are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)


def say(line: str) -> None:
    print(f"\r{line} ", end="", file=sys.stderr, flush=True)


def versions() -> dict[str, Any]:
    return {
        "backstay": _release(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }


def _release() -> str:
    described = ("git", "describe", "--always", "--dirty")
    commit = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    try:
        return f"{version('backstay')} ({commit})"
    except PackageNotFoundError:
        return commit
