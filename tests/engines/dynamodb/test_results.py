"""How the rows of a job are read: by the table's own key, and strongly consistent."""

from __future__ import annotations

from typing import Any

import pytest

from backstay import Backstay, Context, ResultRow
from backstay.engines.dynamodb.store import DynamoStore
from backstay.testing import drain
from tests.support.servers.dynamodb import DynamoDB

READS = ("Query", "BatchGetItem", "GetItem")


class Mark(ResultRow, table="marks", key="number", subject="about"):
    number: int
    about: str


async def test_rows_of_a_job_are_read_by_their_key_and_strongly_consistent(
    dynamodb: DynamoDB, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Backstay(dynamodb.url())

    @app.job("mark", results=[Mark])
    async def mark(payload: None, ctx: Context) -> None:
        await ctx.results(Mark).put([Mark(number=number, about="trees") for number in range(3)])

    async with app:
        job = await mark.submit(None)
        await drain(app)
        assert isinstance(app.store, DynamoStore)
        asked = watched(app.store, monkeypatch)
        rows = app.results(Mark)
        assert len(await rows.all(job.job_id)) == len(await rows.all(job.job_id, subject="trees")) == 3
        assert await rows.get(job.job_id, 1) is not None

    of_rows = [body for body in asked if "_marks" in str(body)]
    assert len(of_rows) == 3
    assert all("'ConsistentRead': True" in str(body) for body in of_rows)
    assert not any("IndexName" in body for body in of_rows)


def watched(store: DynamoStore, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is asked of DynamoDB from now on."""
    wire = store._open().tables.wire
    persist, asked = wire.persist, list[dict[str, Any]]()

    async def noting(operation: str, body: dict[str, Any], **how: Any) -> dict[str, Any]:
        if operation in READS:
            asked.append(body)
        return await persist(operation, body, **how)

    monkeypatch.setattr(wire, "persist", noting)
    return asked
