"""Error reports to Sentry: every failed attempt as a warning, every dead letter as fatal.

Reports are grouped by job type and error. The program's own `sentry_sdk.init` takes precedence; without one, the DSN
given here starts a client, with no integrations except the one that flushes at exit: a failure is reported once, by us.

Frames are parsed from the text of the traceback, because the attempt may have run in another process, on another
machine, in another language. The text has no local variables, so none are sent.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from backstay import settings
from backstay.core.checks import how_to_install
from backstay.core.records import ErrorEntry
from backstay.errors import ConfigurationError
from backstay.observers.base import Attempted, Ending, Observer
from backstay.observers.redaction import Redaction

try:
    import sentry_sdk
    from sentry_sdk.integrations.atexit import AtexitIntegration
    from sentry_sdk.utils import BadDsn, Dsn
except ModuleNotFoundError as error:
    raise ConfigurationError(f"error reports need Sentry's SDK ({error.name}): {how_to_install('sentry')}") from error

if TYPE_CHECKING:
    from sentry_sdk.types import Event


_FRAME = re.compile(
    r'^ +File "(?P<path>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)\n(?: {4,}(?P<code>[^\n]+)\n)?',
    re.MULTILINE,
)
_HEAD = "Traceback (most recent call last):"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


def frames_of(traceback: str) -> list[dict[str, Any]]:
    """Return the frames, oldest call first. If an exception was raised while another was handled, only its own
    frames."""
    last = traceback.rpartition(_HEAD)[2]
    return [_frame(each) for each in _FRAME.finditer(f"{last}\n")]


def _frame(found: re.Match[str]) -> dict[str, Any]:
    path = found["path"]
    frame: dict[str, Any] = {
        "filename": path.rpartition("/")[2],
        "abs_path": path,
        "function": found["function"],
        "lineno": int(found["line"]),
        "in_app": not any(each in path for each in _LIBRARIES),
    }
    if found["code"] is not None and not set(found["code"]) <= {"^", "~", " "}:
        frame["context_line"] = found["code"]
    return frame


log = logging.getLogger("backstay.observers")


class Sentry(Observer):
    """Reports to Sentry. `redact`: names of fields to mask, in addition to those that look like secrets."""

    def __init__(self, dsn: str | None = None, *, redact: Sequence[str] = ()) -> None:
        self._dsn = settings.sentry_dsn(dsn)
        self._redaction = Redaction(redact)
        self._ready = False
        if self._dsn:
            _check(self._dsn)

    @contextmanager
    def running(self, jobs: Sequence[Attempted]) -> Iterator[None]:
        """Attach the job to errors that the handler itself reports, and keep out what another handler has set."""
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
        """Start at first use: the program's own init may come after this object was created."""
        if self._ready:
            return
        self._ready = True
        if sentry_sdk.is_initialized():
            return
        if not self._dsn:
            log.warning("errors are not reported: call sentry_sdk.init(dsn=…), or set BACKSTAY_SENTRY_DSN")
            return
        sentry_sdk.init(
            dsn=self._dsn,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[AtexitIntegration(callback=lambda pending, timeout: None)],
            include_local_variables=False,
        )

    def _event(self, job: Attempted, ending: Ending, error: ErrorEntry) -> Event:
        redacted = self._redaction.redact(job.payload, ending.sensitive)
        traceback = redacted.scrubbed(error.traceback)
        exception: dict[str, Any] = {
            "type": error.type,
            "value": redacted.scrubbed(error.message),
            "mechanism": {"type": "backstay", "handled": True},
        }
        if frames := frames_of(traceback):
            exception["stacktrace"] = {"frames": frames}
        return {
            "level": "fatal" if ending.is_dead else "warning",
            "logger": "backstay",
            "transaction": job.job_type,
            "fingerprint": ["backstay", job.job_type, error.type],
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
            "extra": {"payload": redacted.payload, "traceback": traceback},
        }


def _tags(job: Attempted) -> dict[str, Any]:
    return {"job_type": job.job_type, "queue": job.queue}


def _check(dsn: str) -> None:
    try:
        Dsn(dsn)
    except BadDsn:
        raise ConfigurationError(
            "BACKSTAY_SENTRY_DSN (or Sentry(dsn)) is not a DSN: copy it from the project's settings, https://key@host/number"
        ) from None
