"""An app of the harness itself on a fleet's store, whose calls are recorded as evidence, too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

import backstay.app
from backstay import Backstay
from tests.campaigns.crash_app import make_app, recording
from tests.campaigns.fleet import Fleet


@asynccontextmanager
async def recording_app(fleet: Fleet) -> AsyncIterator[Backstay]:
    """Open an app that records its calls, only while it is open: other tests of this process open unrecorded stores."""
    with patch.object(backstay.app, "open_url", recording(fleet.calls, "harness")):
        async with make_app(fleet.url) as app:
            yield app
