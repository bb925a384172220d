"""Watching jobs from outside: traces, error reports, or an observer of one's own.

    submit ──submitting──▶ store ──▶ claim ──running──▶ handler ──ended──▶ settlement

`Holdfast(url, observers=[Tracing(), Sentry()])`. An observer is called where a job is submitted and where its attempts
run and end, in the process in which that happens; what it says is carried from one process to the other in the job's
`traceparent`. It never breaks a job: an error of its own is logged once. Without observers nothing of this is called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from holdfast.observing.observer import Attempted, Ending, Observer
from holdfast.observing.observers import Observers

if TYPE_CHECKING:
    from holdfast.observing.sentry import Sentry as Sentry
    from holdfast.observing.tracing import Tracing as Tracing

_EXTRAS = {"Sentry": "holdfast.observing.sentry", "Tracing": "holdfast.observing.tracing"}


def __getattr__(name: str) -> Any:
    """Packages that not everyone has installed are loaded by whoever names them."""
    if name not in _EXTRAS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_EXTRAS[name]), name)


__all__ = ["Attempted", "Ending", "Observer", "Observers", "Sentry", "Tracing"]
