from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., Holdfast]:
    """Apps on the same file."""

    def make(**options: Any) -> Holdfast:
        return Holdfast(f"sqlite:///{tmp_path}/jobs.db", **options)

    return make


@pytest.fixture
def app(make_app: Callable[..., Holdfast]) -> Holdfast:
    return make_app()
