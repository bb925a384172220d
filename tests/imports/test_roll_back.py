"""Rolling back as the pages say: what has run here since the cut-over is ended in the old system, and nothing else."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pytest

from backstay import Backstay
from backstay.imports import opened
from backstay.imports.importer import Importer, Part
from backstay.testing import drain
from tests.docs.pages import run_by
from tests.imports import (
    celery_source,
    delphi_source,
    pgqueuer_source,
    procrastinate_source,
    rq_source,
    scheduled_source,
)
from tests.imports.conftest import Place, database, imported, planned

EACH = 3
CODE = {
    page.stem.removeprefix("import-"): code for page, code in run_by("tests/imports/test_roll_back.py").items()
}  # what the pages say, by system


class Old(NamedTuple):
    """A queue of another system: its address, and what its page has to say instead of what it says."""

    name: str
    address: str
    instead: dict[str, str]


@pytest.fixture(params=CODE)
def old(request: pytest.FixtureRequest) -> Old:
    match request.param:
        case "rq" | "celery" as name:
            address = request.getfixturevalue("redis_url")
            if name == "rq":
                rq_source.make(address, EACH)
            else:
                celery_source.celery(celery_source.make, address, EACH)
                celery_source.celery(celery_source.taken, address)
            return Old(name, address, {"redis://host:6379/0": address})
        case "procrastinate" | "pgqueuer" as name:
            address = database(request.getfixturevalue("postgres"))
            source = {"procrastinate": procrastinate_source, "pgqueuer": pgqueuer_source}[name]
            asyncio.run(source.make(address, EACH))  # type: ignore[attr-defined]
            return Old(name, address, {"postgresql://host/shop": address})
        case "delphi" | "scheduled" as name:
            address = request.getfixturevalue("table_address")
            resource, table = delphi_source.resource(address), urlsplit(address).netloc
            if name == "delphi":
                delphi_source.make(delphi_source.create_as_the_text_says(resource, table), 20)
            else:
                scheduled_source.make(scheduled_source.create_table(resource, table), 24)
            made = f"__import__('tests.imports.delphi_source', fromlist=['_']).resource({address!r})"
            names = {"DelphiJobQueue": table, '"companion"': f'"{table}"'}
            return Old(name, address, {'boto3.resource("dynamodb")': made, **names})
        case name:
            raise NotImplementedError(f"a source for {name}")


async def test_what_has_run_here_is_ended_in_the_old_system_and_nothing_else(
    old: Old, place: Place, tmp_path: Path
) -> None:
    app = Backstay(place("sqlite"))
    async with app:
        waiting = (await planned(app, old.name, old.address, Part.ACTIVE)).lines
    for job_type in {line.job_type for line in waiting}:
        app.job(job_type)(_done)
    async with app:
        await imported(app, old.name, old.address)
        await drain(app)
        async with opened(old.name, old.address) as source:
            ran = await Importer(app, old.name, source).differences()
        assert ran and {each.here for each in ran} == {"completed"}
        (tmp_path / "ran.json").write_bytes(msgspec.json.encode(ran))

        await asyncio.to_thread(_roll_back, old, tmp_path)

        left = (await planned(app, old.name, old.address, Part.ACTIVE)).jobs
        assert left == sum(line.count for line in waiting) - len(ran)
        async with opened(old.name, old.address) as source:
            assert await Importer(app, old.name, source, part=Part.ACTIVE).differences() == []


async def _done(payload: Any) -> None: ...


def _roll_back(old: Old, folder: Path) -> None:
    """Run the page's block."""
    code = CODE[old.name]
    for said, meant in {**old.instead, '"ran.json"': repr(os.fspath(folder / "ran.json"))}.items():
        code = code.replace(said, meant)
    exec(compile(code, f"import-{old.name}.md", "exec"), {})  # noqa: S102
