"""The judge finds nothing in a sound engine, and finds each planted bug in a broken one."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from backstay.core.port import Store
from backstay.engines.postgres.store import PostgresStore
from backstay.engines.sqlite.store import SQLiteStore
from backstay.testing.history.checker import check, unfinished
from tests.campaigns.places import File, Place, Schema
from tests.campaigns.planted import operations as operating_planted  # noqa: F401 - plants bugs of its own
from tests.campaigns.planted.jobs import BUGS, Bug
from tests.campaigns.planted.postgres import MISSPELT, Misspelt
from tests.campaigns.planted.trees import TREE_BUGS
from tests.campaigns.scenes.jobs import SCENES, at_random
from tests.campaigns.scenes.operations import OPERATING
from tests.campaigns.scenes.trees import TREES
from tests.campaigns.stage import START, Gap, Missing, Stage
from tests.support.servers.postgres import Postgres

SEED = 20_240_601
Engine = tuple[Callable[[str], Store], Place]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is some: nothing here depends on a disk, and each bug has its own file."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="backstay-") as name:
        yield Path(name)


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, folder: Path) -> Engine:
    if request.param == "sqlite":
        return SQLiteStore, File(folder / "jobs.db")
    return PostgresStore, Schema.new(request.getfixturevalue("postgres"), clock="caller")


async def _play(stage: Stage, steps: int, *, planted: bool = False) -> None:
    scenes = SCENES + OPERATING
    for scene in scenes if planted else scenes + TREES:
        with suppress(Missing) if planted else nullcontext():
            await scene(stage)
    await at_random(stage, steps)
    await stage.drain()


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
async def test_a_planted_bug_is_caught(bug: Bug, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gap = Gap()
    async with Stage.open(folder, bug.plant(monkeypatch, gap), gap, SEED) as stage:
        await _play(stage, steps=60, planted=True)
        found = check(await stage.evidence())
    assert bug.caught_by <= {violation.invariant for violation in found}, [str(each) for each in found]


@pytest.mark.parametrize("bug", TREE_BUGS, ids=lambda bug: bug.name)
async def test_a_bug_planted_into_trees_is_caught(bug: Bug, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gap = Gap()
    async with Stage.open(folder, bug.plant(monkeypatch, gap), gap, SEED) as stage:
        for scene in TREES:
            await scene(stage)
        await stage.drain(rounds=10)
        found = check(await stage.evidence())
    assert bug.caught_by <= {violation.invariant for violation in found}, [str(each) for each in found]


@pytest.mark.parametrize("bug", MISSPELT, ids=lambda bug: bug.name)
async def test_a_bug_planted_into_postgresql_is_caught(bug: Misspelt, folder: Path, postgres: Postgres) -> None:
    place = Schema.new(postgres, clock="caller")
    async with Stage.open(folder, bug.plant(), Gap(), SEED, place) as stage:
        await _play(stage, steps=60, planted=True)
        found = check(await stage.evidence())
    assert bug.caught_by in {violation.invariant for violation in found}, [str(each) for each in found]


@pytest.mark.parametrize("seed", [SEED, 2, 3, 4])
async def test_the_engine_as_it_is_breaks_no_invariant(seed: int, folder: Path, engine: Engine) -> None:
    make, place = engine
    async with Stage.open(folder, make, Gap(), seed, place) as stage:
        await _play(stage, steps=400)
        evidence = await stage.evidence()
    assert [str(each) for each in check(evidence)] == []
    assert unfinished(evidence) == []


@pytest.mark.parametrize("seed", [5, 6])
async def test_safety_does_not_depend_on_clocks(seed: int, folder: Path, engine: Engine) -> None:
    def any_time(draw: random.Random, now: int) -> int:
        return draw.choice((now, START, 0, START - 86_400_000_000, 2**31 * 1_000_000, draw.randrange(2 * START)))

    make, place = engine
    async with Stage.open(folder, make, Gap(), seed, place) as stage:
        await at_random(stage, 400, any_time)
        evidence = await stage.evidence()
    assert [str(each) for each in check(evidence, clocks="arbitrary")] == []


def test_at_least_ten_bugs_are_planted() -> None:
    assert len(BUGS) >= 10
