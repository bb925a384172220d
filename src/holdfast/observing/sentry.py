"""Errors to Sentry: every failed attempt as a warning, every dead letter as fatal, grouped by job type and error.

The program's own `sentry_sdk.init` counts; where there is none, the DSN that was given here starts a client. That one
has no integrations but the one that sends what is left at exit: a failure is told once, by us.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast import settings
from holdfast.errors import ConfigurationError
from holdfast.observing.frames import frames_of
from holdfast.observing.observer import Attempted, Ending, Observer
from holdfast.observing.redaction import Redaction
from holdfast.transition import ErrorEntry

try:
    import sentry_sdk
    from sentry_sdk.integrations.atexit import AtexitIntegration
    from sentry_sdk.utils import BadDsn, Dsn
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f'error reports need Sentry\'s SDK ({error.name}): pip install "holdfast[sentry]"'
    ) from error

if TYPE_CHECKING:
    from sentry_sdk.types import Event

log = logging.getLogger("holdfast.observing")


class Sentry(Observer):
    """`redact`: names of fields whose values are kept back, beside those that sound like secrets."""

    def __init__(self, dsn: str | None = None, *, redact: Sequence[str] = ()) -> None:
        self._dsn = settings.sentry_dsn(dsn)
        self._redaction = Redaction(redact)
        self._ready = False
        if self._dsn:
            _check(self._dsn)

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[None]:
        """What a handler reports itself carries its job, and nothing that another one has set."""
        self._start()
        with sentry_sdk.isolation_scope() as scope:
            scope.set_tags(_tags(jobs[0]))
            if len(jobs) == 1:
                scope.set_tag("job_id", jobs[0].job_id)
            yield

    def ended(self, job: Attempted, ending: Ending) -> None:
        if ending.error is not None:
            self._start()
            sentry_sdk.capture_event(self._event(job, ending, ending.error))

    def _start(self) -> None:
        """Not before the first use: the program's own init may come after this was made."""
        if self._ready:
            return
        self._ready = True
        if sentry_sdk.is_initialized():
            return
        if not self._dsn:
            log.warning("errors go nowhere: call sentry_sdk.init(dsn=…), or set HOLDFAST_SENTRY_DSN")
            return
        sentry_sdk.init(
            dsn=self._dsn,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[AtexitIntegration(callback=lambda pending, timeout: None)],
            include_local_variables=False,
        )

    def _event(self, job: Attempted, ending: Ending, error: ErrorEntry) -> Event:
        told = self._redaction.told(job.payload, ending.schema)
        traceback = told.scrubbed(error.traceback)
        exception: dict[str, Any] = {
            "type": error.type,
            "value": told.scrubbed(error.message),
            "mechanism": {"type": "holdfast", "handled": True},
        }
        if frames := frames_of(traceback):
            exception["stacktrace"] = {"frames": frames}
        return {
            "level": "fatal" if ending.is_dead else "warning",
            "logger": "holdfast",
            "transaction": job.job_type,
            "fingerprint": ["holdfast", job.job_type, error.type],
            "exception": {"values": [exception]},
            "tags": {
                **_tags(job),
                "job_id": job.job_id,
                "outcome": "dead letter" if ending.is_dead else ending.outcome,
            },
            "contexts": {
                "job": {
                    "job_id": job.job_id,
                    "job_type": job.job_type,
                    "queue": job.queue,
                    "attempt": job.attempt,
                    "max_attempts": job.max_attempts,
                    "worker_id": job.worker_id,
                    "subject": job.subject,
                    "ran_seconds": ending.ran_seconds,
                }
            },
            "extra": {"payload": told.payload, "traceback": traceback},
        }


def _tags(job: Attempted) -> dict[str, Any]:
    return {"job_type": job.job_type, "queue": job.queue}


def _check(dsn: str) -> None:
    try:
        Dsn(dsn)
    except BadDsn:
        raise ConfigurationError(
            "HOLDFAST_SENTRY_DSN (or Sentry(dsn)) is no DSN: copy it from the project's settings, https://key@host/number"
        ) from None
