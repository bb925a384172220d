from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., Backstay]:
    """Apps on the same file."""

    def make(**options: Any) -> Backstay:
        return Backstay(f"sqlite:///{tmp_path}/jobs.db", **options)

    return make


@pytest.fixture
def app(make_app: Callable[..., Backstay]) -> Backstay:
    return make_app()
