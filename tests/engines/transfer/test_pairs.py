"""A queue is the same on any other engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from backstay import Backstay, StoreMoved
from backstay import transfer as transfers
from backstay.core.dumps import FROM
from backstay.engines.dynamodb import transfer
from tests.engines.transfer.full_queue import app_at, fill, run_the_rest, same

ENGINES = ("sqlite", "postgres", "dynamodb")
PAIRS = [(here, there) for here in ENGINES for there in ENGINES if here != there]

Place = Callable[[str], str]


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Place:
    def made(engine: str) -> str:
        name = secrets.token_hex(4)
        if engine == "sqlite":
            return f"sqlite:///{tmp_path}/{name}.db"
        server = request.getfixturevalue(engine)
        return str(server.url(f"m_{name}") if engine == "dynamodb" else server.url(schema=f"m_{name}"))

    return made


@pytest.fixture(autouse=True)
def _nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "SETTLING_SECONDS", 0.0)


@pytest.mark.parametrize(("here", "there"), PAIRS)
async def test_a_queue_is_the_same_on_another_engine_and_goes_on_there(here: str, there: str, place: Place) -> None:
    old, new = app_at(place(here)), app_at(place(there))
    await fill(old)

    report = await transfers.move(old.url, new.url)

    assert report.copied["jobs"] == await same(old, new)
    assert (report.missing_count, report.shortened) == (0, 0)
    begun = await run_the_rest(new)
    assert set(begun.values()) <= {0, 1, 2}  # a parent that waits is entered once more
    await _refuses(old)


async def _refuses(old: Backstay) -> None:
    async with old:
        state = await old.store.moving()
        assert state is not None and (state.role, state.done) == (FROM, True)
        with pytest.raises(StoreMoved, match="was transferred to"):
            await old.submit("plain", 1)
