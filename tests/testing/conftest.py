from datetime import UTC, datetime
from pathlib import Path

import pytest

from backstay import Backstay, sync
from backstay.testing import ManualClock, throwaway_url
from tests.testing.side_effects import Outside


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def app(tmp_path: Path, clock: ManualClock) -> Backstay:
    return Backstay(throwaway_url(tmp_path), clock=clock)


@pytest.fixture
def blocking_app(tmp_path: Path, clock: ManualClock) -> sync.Backstay:
    return sync.Backstay(throwaway_url(tmp_path), clock=clock)


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)
