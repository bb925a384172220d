"""An app of the harness itself on a fleet's store, whose calls are evidence as the fleet's are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import holdfast.app
from holdfast import Holdfast
from tests.crash.crash_app import make_app, recording
from tests.crash.fleet import Fleet


@asynccontextmanager
async def recording_app(fleet: Fleet) -> AsyncIterator[Holdfast]:
    """Only while it is open: other tests of this process open stores that nobody listens in on."""
    with patch.object(holdfast.app, "open_url", recording(fleet.calls, "harness")):
        async with make_app(fleet.url) as app:
            yield app
