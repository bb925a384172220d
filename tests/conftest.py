"""Settings that all tests share."""

import gc
import importlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.servers.dynamodb import DynamoDB, shared, wait_for_replies
from tests.support.servers.postgres import Postgres, installed_binaries

# The gate draws the same examples every time, and a busy machine fails nothing. Campaigns draw anew.
settings.register_profile("gate", derandomize=True, deadline=None, database=None)
settings.load_profile("gate")

gc.disable()  # until all tests are collected: what there is by then stays, and would be looked through again and again


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let each worker of a whole run import another part of the modules first. On a fresh clone, all of them would
    otherwise rewrite the asserts of the same module at the same time, instead of finding it compiled."""
    config = session.config
    if _is_a_worker(config) and config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        settings = config.workerinput  # type: ignore[attr-defined]
        modules = sorted(Path(__file__).parent.rglob("test_*.py"))
        for module in modules[int(settings["workerid"].removeprefix("gw")) :: settings["workercount"]]:
            with suppress(Exception, pytest.skip.Exception):  # collecting it says what is wrong
                importlib.import_module(".".join(module.relative_to(config.rootpath).with_suffix("").parts))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if _is_a_worker(config):
        items[:] = _slow_first(items, config.workerinput["workercount"])  # type: ignore[attr-defined]


def _slow_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Give each worker, whose part is as large as any other's, some of the slow tests to begin with: one that began
    last would keep all others waiting."""
    slow = [item for item in items if item.get_closest_marker("slow")]
    others = iter(item for item in items if not item.get_closest_marker("slow"))
    ordered: list[pytest.Item] = []
    for number in range(workers):
        size = (len(items) - len(ordered)) // (workers - number)
        own = slow[number::workers]
        ordered += [*own, *islice(others, max(0, size - len(own)))]
    return [*ordered, *others]


def _is_a_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server for all tests of this process."""
    with Postgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_15() -> Iterator[Postgres]:
    """An older one, where the machine has it."""
    binaries = installed_binaries()
    if binaries is None:
        pytest.skip("there is no PostgreSQL 15 on this machine")
    with Postgres(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def dynamodb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DynamoDB:
    """One server for all tests of all workers; each test takes tables of its own."""
    folder = tmp_path_factory.getbasetemp()
    until_the_end = ExitStack()  # longer than any test, whose time limit is not for waiting for the other workers
    request.config.add_cleanup(until_the_end.close)
    return until_the_end.enter_context(shared(folder.parent if _is_a_worker(request.config) else folder))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores wait for DynamoDB as long as it takes: a server that shares a busy machine is slow, not gone."""
    wait_for_replies(monkeypatch)


@pytest.fixture
def logging_restored() -> Iterator[None]:
    """Undo the logging of `worker` and `serve` run in this process: their stderr is closed after the test."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in root.handlers[:]:
        if type(handler) is logging.StreamHandler and handler not in handlers:
            root.removeHandler(handler)
