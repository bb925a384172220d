"""Reads a DynamoDB table that another system keeps its jobs in. Never writes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from backstay.engines.dynamodb import address
from backstay.engines.dynamodb.schema import Item, decode, encode
from backstay.engines.dynamodb.transport import Lane, Refused, Unanswered, Wire, translate
from backstay.errors import ConfigurationError
from backstay.limits import IMPORT_PAGE

_SECONDS = 60.0  # a table with little capacity answers slowly
_NO_TABLE = "ResourceNotFoundException"


class ForeignTable:
    """A table named by an address such as dynamodb://DelphiJobQueue?region=…; or with ?table=…, if its name cannot be
    written there."""

    def __init__(self, url: str) -> None:
        parsed = address.parse(url)
        self.name = parsed.prefix if parsed.jobs == f"{parsed.prefix}_jobs" else parsed.jobs
        self._wire = Wire(parsed)
        self.location = f"dynamodb://{self.name}?region={parsed.region}"
        if parsed.named:
            self.location += f"&endpoint={parsed.scheme}://{parsed.host_header}"

    async def described(self) -> dict[str, Any]:
        """Return the description of the table; ConfigurationError if there is none."""
        try:
            answer = await self._wire.persist(
                "DescribeTable", {"TableName": self.name}, lane=Lane.USUAL, seconds=_SECONDS
            )
        except Refused as error:
            if error.code == _NO_TABLE:
                raise ConfigurationError(f"there is no table {self.name} at {self.location}") from None
            raise translate(error, self.location) from None
        except Unanswered as error:
            raise translate(error, self.location) from None
        table: dict[str, Any] = answer["Table"]
        return table

    async def scan(self, **options: Any) -> AsyncIterator[list[Item]]:
        """Yield all items in pages, read consistently. `options` are those of the request, in its own form."""
        async for page in self._pages("Scan", options):
            yield page

    async def query(self, **options: Any) -> AsyncIterator[list[Item]]:
        async for page in self._pages("Query", options):
            yield page

    async def count(self, operation: str, **options: Any) -> int:
        total = 0
        body = {"TableName": self.name, "ConsistentRead": True, "Select": "COUNT", **options}
        while True:
            reply = await self._call(operation, body)
            total += int(reply["Count"])
            if not reply.get("LastEvaluatedKey"):
                return total
            body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}

    async def _pages(self, operation: str, options: dict[str, Any]) -> AsyncIterator[list[Item]]:
        body = {"TableName": self.name, "ConsistentRead": True, "Limit": IMPORT_PAGE, **options}
        while True:
            reply = await self._call(operation, body)
            yield [decode(wired) for wired in reply.get("Items", ())]
            if not reply.get("LastEvaluatedKey"):
                return
            body = {**body, "ExclusiveStartKey": reply["LastEvaluatedKey"]}

    async def _call(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._wire.persist(operation, body, lane=Lane.IDLE, seconds=_SECONDS)
        except (Refused, Unanswered) as error:
            raise translate(error, self.location) from None

    async def close(self) -> None:
        await self._wire.close()


def values(**given: Any) -> dict[str, Any]:
    """Return values of an expression in the form of a request: name="x" is :name."""
    return {f":{name}": value for name, value in encode(given).items()}
