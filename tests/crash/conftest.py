"""The engines that are crashed."""

from pathlib import Path

import pytest

from tests.campaigns.places import File, Place, Schema


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "sqlite":
        return File(tmp_path / "jobs.db")
    return Schema.new(request.getfixturevalue("postgres"))
