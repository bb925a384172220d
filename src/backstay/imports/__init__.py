"""Imports: a queue of another system becomes jobs of this one (`backstay import`).

    Source.pages ─▶ Work | Unmapped ─▶ adopted() ─▶ Store.adopt ─▶ compare
    (one module each)                 (conversion)  (importer)

A source is one module: it reads the other system and says of each of its jobs what it is (`Work`), or why it cannot be
imported (`Unmapped`). It decides nothing about Backstay. What a `Work` becomes as a stored job is decided in one place
for all sources, `conversion`; storing it is `Store.adopt`, which writes whole jobs as a transfer does.

An import may be repeated, and may be killed at any point. A job keeps its id, or gets one that is derived from it, so
that a job which is here already is recognised, and left as it is: it belongs to this queue by then. The same row of a
source always becomes the same job, whatever the time, so that both sides can be compared afterwards. Nothing is written
to a source.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from backstay.core.checks import did_you_mean, how_to_install
from backstay.errors import ConfigurationError
from backstay.imports.source import Source


class Kind(NamedTuple):
    """A source by its name on the command line: its class, as module.name, what its address looks like, and the extra
    that it needs."""

    made_by: str
    address: str
    extra: str = ""


SOURCES = {
    "analysis": Kind("analysis.AnalysisJobs", "/cache/jobs.db"),
    "celery": Kind("celery.Celery", "redis://…/0"),
    "delphi": Kind("delphi.Delphi", "dynamodb://DelphiJobQueue?region=…"),
    "embedding-jobs": Kind("embedding_jobs.EmbeddingJobs", "postgresql://…", "postgres"),
    "pgqueuer": Kind("pgqueuer.PgQueuer", "postgresql://…", "postgres"),
    "procrastinate": Kind("procrastinate.Procrastinate", "postgresql://…", "postgres"),
    "rq": Kind("rq.Rq", "redis://…/0"),
    "scheduled": Kind("scheduled.Scheduled", "dynamodb://TABLE?region=…"),
}


@asynccontextmanager
async def opened(name: str, address: str) -> AsyncIterator[Source]:
    """Open a source by its name."""
    source = _source_at(name, address)
    try:
        await source.open()
        yield source
    finally:
        await source.close()


def _source_at(name: str, address: str) -> Source:
    if name not in SOURCES:
        raise ConfigurationError(f"unknown source {name!r:.40} ({did_you_mean(name, SOURCES)})")
    if not address:
        raise ConfigurationError(f"give the address of the source after its name, such as {SOURCES[name].address}")
    module, _, made_by = SOURCES[name].made_by.partition(".")
    try:
        loaded = importlib.import_module(f"backstay.imports.{module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is not installed, which this source needs: {how_to_install(SOURCES[name].extra)}"
        ) from None
    found: Source = getattr(loaded, made_by)(address)
    return found
