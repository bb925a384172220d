"""A worker whose queue moves has nothing to do there, and says so once. It looks again as often as it looks for jobs: a
move may be given up."""

from __future__ import annotations

import logging

from holdfast.errors import StoreMoved

log = logging.getLogger("holdfast.worker")
_said: set[str] = set()  # what this process has said; there are few things to say


def say_once(error: StoreMoved) -> None:
    if str(error) not in _said:
        _said.add(str(error))
        log.warning("nothing to do: %s", error)
