"""Graphs of up to 200 jobs, whatever happens to them: every job ends, and the judge finds nothing to say.

BACKSTAY_MODEL_EXAMPLES=1000 makes a campaign of it, with new graphs each time.
"""

import asyncio
import os
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backstay.core.port import Store
from backstay.testing.history import Edge, Evidence, OperationLog, read_operations, recorded
from backstay.testing.history.checker import check, unfinished
from tests.campaigns.fleet import dump
from tests.engines.model.engines import Engine, edges_of, on_dynamodb, on_postgres, on_sqlite
from tests.engines.model.graphs import Graph
from tests.support.servers.dynamodb import DynamoDB
from tests.support.servers.postgres import Postgres

CAMPAIGN = os.environ.get("BACKSTAY_MODEL_EXAMPLES")


def test_every_graph_of_jobs_comes_to_its_end_on_sqlite() -> None:
    _drive(on_sqlite, examples=25, size=200)


@pytest.mark.timeout(600)
def test_every_graph_of_jobs_comes_to_its_end_on_postgresql(postgres: Postgres) -> None:
    _drive(on_postgres(postgres), examples=6, size=120)


@pytest.mark.timeout(600)
def test_every_graph_of_jobs_comes_to_its_end_on_dynamodb(dynamodb: DynamoDB) -> None:
    _drive(on_dynamodb(dynamodb), examples=3, size=60)


def _drive(engine: Engine, examples: int, size: int) -> None:
    @settings(
        max_examples=int(CAMPAIGN or examples),
        derandomize=CAMPAIGN is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 2**32), size=st.integers(2, size))
    def drive(seed: int, size: int) -> None:
        loop = asyncio.new_event_loop()
        try:
            with engine(loop) as store:
                loop.run_until_complete(_run(store, Random(seed), size))
        finally:
            loop.close()

    drive()


async def _run(store: Store, draw: Random, size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = OperationLog(Path(folder) / "graph.jsonl")
        await Graph(recorded(store, log), draw, size).run()
        log.close()
        edges = await edges_of(store)
        evidence = await _evidence(store, Path(folder), edges)
    assert [*check(evidence), *unfinished(evidence)] == []


async def _evidence(store: Store, folder: Path, edges: list[Edge] | None) -> Evidence:
    return Evidence(
        await dump(store),
        read_operations(folder.glob("*.jsonl")),
        counts=await store.counts(),
        edges=edges,
        counters=await store.counters(0, 2**62),
    )
