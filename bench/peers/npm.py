"""The packages of the peers that run on Node.js: where npm puts them, and whether they are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "node"
PACKAGES = FOLDER / "node_modules"
INSTALL_SECONDS = 300


def install() -> None:
    """Install the packages. Without Node.js or the registry, say so; the run continues without these peers."""
    if (PACKAGES / "pg").exists():
        return
    if shutil.which("npm") is None:
        print("There is no npm: pg-boss and graphile-worker are left out.", file=sys.stderr)
        return
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    try:
        subprocess.run(command, cwd=FOLDER, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        reason = str(error.stderr or error).strip().splitlines()[-1:]
        print(f"npm could not install pg-boss and graphile-worker, which are left out: {reason}", file=sys.stderr)


def is_installed(package: str) -> bool:
    return (PACKAGES / package).exists()
