"""Mistakes of ours, in the log: what kind, and where it was made. The message is left out: it may quote a payload."""

from __future__ import annotations

import logging
import traceback

log = logging.getLogger("holdfast.server")


def tell(what: str, error: BaseException) -> None:
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("%s broke: %s\n%s", what, type(error).__qualname__, where)
