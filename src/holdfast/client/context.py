"""What a handler of a remote worker gets beside its payload."""

from __future__ import annotations

import logging
import threading
from collections.abc import MutableMapping
from typing import Any

import msgspec

from holdfast.client.records import RemoteJob
from holdfast.limits import METRICS_MAX

LINES_MAX = 200  # of a log in one request; older ones go first where a handler says more in a second
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


class Said(msgspec.Struct):
    """What a handler has said and the server has not heard yet."""

    progress: float | None = None
    stage: str | None = None
    metrics: dict[str, float] = {}
    logs: list[dict[str, str]] = []

    @property
    def is_empty(self) -> bool:
        return self.progress is None and self.stage is None and not self.metrics and not self.logs

    def fields(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, {}, [])}


class _Telling:
    """Shared by the two below. A handler in a thread writes it, the event loop takes it."""

    def __init__(self, job: RemoteJob) -> None:
        self.job = job
        self.log = _JobLog(self)
        self._lock = threading.Lock()
        self._said = Said()
        self._stopped = threading.Event()

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def attempt(self) -> int:
        return int(self.job.attempt)

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled, lost or is to be given back: stop as soon as you can."""
        return self._stopped.is_set()

    @property
    def idempotency_key(self) -> str:
        """The same over all attempts, for those who can be asked to do a thing once."""
        return self.job_id

    def metric(self, name: str, value: float) -> None:
        """A figure to keep with the job."""
        with self._lock:
            if name in self._said.metrics or len(self._said.metrics) < METRICS_MAX:
                self._said.metrics[name] = float(value)

    def say_progress(self, fraction: float, stage: str | None) -> None:
        with self._lock:
            self._said.progress = min(1.0, max(0.0, float(fraction)))
            self._said.stage = self._said.stage if stage is None else str(stage)

    def say_line(self, level: str, message: str) -> None:
        with self._lock:
            self._said.logs.append({"level": level if level in _LEVELS else "INFO", "message": message})
            del self._said.logs[:-LINES_MAX]

    def take(self) -> Said:
        """What is to be sent; from here on it counts as said."""
        with self._lock:
            said, self._said = self._said, Said()
            return said

    def put_back(self, said: Said) -> None:
        """It did not arrive: what was said since counts more."""
        with self._lock:
            now = self._said
            now.progress = said.progress if now.progress is None else now.progress
            now.stage = said.stage if now.stage is None else now.stage
            now.metrics = said.metrics | now.metrics
            now.logs = (said.logs + now.logs)[-LINES_MAX:]

    def stop(self) -> None:
        self._stopped.set()


class RemoteContext(_Telling):
    """For `async def`."""

    async def progress(self, fraction: float, *, stage: str | None = None) -> None:
        """How far the job is, from 0 to 1. Sent about once a second."""
        self.say_progress(fraction, stage)


class BlockingRemoteContext(_Telling):
    """For `def`, which runs in a thread."""

    def progress(self, fraction: float, *, stage: str | None = None) -> None:
        """How far the job is, from 0 to 1. Sent about once a second."""
        self.say_progress(fraction, stage)


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    """`ctx.log.info(…)`: to this process's log, and to the job's."""

    def __init__(self, telling: _Telling) -> None:
        super().__init__(logging.getLogger("holdfast.job"), {})
        self._telling = telling

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def isEnabledFor(self, level: int) -> bool:
        return level >= logging.INFO or super().isEnabledFor(level)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            text = str(msg) % args if args else str(msg)
            self._telling.say_line(logging.getLevelName(level), text)
            self.logger.log(level, msg, *args, **kwargs)
