"""The fixture of the routes: `from tests.server.routes_fixtures import stage as stage`."""

from collections.abc import AsyncIterator

import pytest

from tests.server.routes_stage import Stage, fresh_stage


@pytest.fixture
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    async with fresh_stage(tmp_path_factory.getbasetemp() / "routes") as found:
        yield found
