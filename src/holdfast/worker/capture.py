"""Log lines inside a handler, from ctx.log or any stdlib logger, find their way to the job that runs there."""

from __future__ import annotations

import contextvars
import logging
from typing import Protocol

from holdfast.context import ITEM, JOB_LOGGER


class TakesLogs(Protocol):
    def say_log(self, created: float, level: str, message: str, item: int | None = None) -> None: ...


current: contextvars.ContextVar[TakesLogs | None] = contextvars.ContextVar("holdfast_run", default=None)


class CaptureHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        run = current.get()
        if run is None:
            return
        try:
            run.say_log(record.created, record.levelname, self.format(record), getattr(record, ITEM, None))
        except Exception:
            self.handleError(record)


_handler = CaptureHandler()
_users = 0


def install() -> None:
    """Counted: several workers in one process share the one handler."""
    global _users
    if _users == 0:
        logging.getLogger().addHandler(_handler)
        logger = logging.getLogger(JOB_LOGGER)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.DEBUG)
    _users += 1


def remove() -> None:
    global _users
    _users -= 1
    if _users == 0:
        logging.getLogger().removeHandler(_handler)
