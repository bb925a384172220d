"""Where a test keeps its jobs."""

from __future__ import annotations

import os
from pathlib import Path


def throwaway_url(folder: str | os.PathLike[str], name: str = "jobs.db") -> str:
    """The URL of a queue in a folder that goes away, as pytest's tmp_path: `Holdfast(throwaway_url(tmp_path))`."""
    return f"sqlite:///{Path(folder).absolute() / name}"
