"""Inside another application: its lifespan opens ours."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from holdfast.app import Holdfast


def opened(
    app: Holdfast, worker: bool, worker_options: Mapping[str, Any]
) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        async with app, app.worker(**worker_options) if worker else app.chores("service"):
            yield

    return lifespan
