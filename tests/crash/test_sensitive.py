"""An administrator's process that is killed while it takes a mark off a sensitive field: the field is shown only if the
mark was taken off for good, no other field ever is, and the audit trail has the attempt in any case."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backstay import Backstay
from backstay.core.records import JobType
from tests.support.servers.postgres import Postgres

# And the marks that are left.
UNMARK_POINTS = {"unmark.uncommitted": ("/card", "/pin"), "unmark.committed": ("/pin",)}
CHARGE = JobType(
    job_type="charge",
    queue="default",
    priority=50,
    max_attempts=5,
    timeout_micros=1_000_000,
    payload_schema=None,
    version=1,
    last_seen=0,
    sensitive=("/card", "/pin"),
)
UNMARK = """
import asyncio, sys
from backstay import Backstay
async def main():
    async with Backstay(sys.argv[1]) as app:
        await app.unmark_sensitive("charge", "/card")
asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.url(schema=f"sensitive_{secrets.token_hex(4)}")


def killed_at(point: str, url: str) -> int:
    return subprocess.run(
        [sys.executable, "-c", UNMARK, url],
        env={**os.environ, "BACKSTAY_FAILPOINTS": f"{point}=kill9@1"},
        timeout=60,
        check=False,
    ).returncode


async def marks(app: Backstay) -> tuple[str, ...]:
    [found] = await app.store.job_types()
    return found.sensitive


@pytest.mark.parametrize("point", UNMARK_POINTS)
async def test_a_killed_administrator_uncovers_no_other_field_and_can_ask_again(url: str, point: str) -> None:
    async with Backstay(url) as app:
        await app.store.announce([CHARGE])

        assert await asyncio.to_thread(killed_at, point, url) == -signal.SIGKILL

        assert await marks(app) == UNMARK_POINTS[point]
        assert [(each.action, each.target, each.outcome) for each in await app.audit_trail()] == [
            ("type.unmark", "charge", None)
        ]
        await app.store.unmark("charge", ["/card"])
        assert await marks(app) == ("/pin",)
