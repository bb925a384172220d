from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import Holdfast, sync
from holdfast.testing import ManualClock, throwaway_url
from tests.testing.outside import Outside


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Holdfast:
    return Holdfast(throwaway_url(tmp_path), clock=clock)


@pytest.fixture
def blocking_app(tmp_path: Path, clock: ManualClock) -> sync.Holdfast:
    return sync.Holdfast(throwaway_url(tmp_path), clock=clock)


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)
