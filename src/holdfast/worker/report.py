"""What an attempt says of itself while it runs, and how that is stored: progress, logs, metrics, artifacts, effects."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import msgspec

from holdfast import limits
from holdfast.files import StoredFile
from holdfast.lifecycle import Effect, Said
from holdfast.store.types import ClaimedJob, Hold, Note
from holdfast.worker.family import Family
from holdfast.worker.mistakes import clean

PROGRESS_DIGITS = 6  # nobody sees more, and what is smaller some engines cannot keep
_NOTHING: Said = {}


class Report:
    """Of one attempt, by whoever holds its claim. Most say nothing: what that needs is a default of the class."""

    job: ClaimedJob
    token: str
    progress: float | None = None
    stage: str | None = None
    metrics: dict[str, float] | None = None
    log_location: str | None = None
    dirty = False
    effects: tuple[Effect, ...] = ()
    artifacts: dict[str, StoredFile] | None = None
    family: Family | None = None  # children
    _logs: list[dict[str, str]] | None = None
    _log_text: list[str] | None = None

    def __init__(self, job: ClaimedJob, token: str) -> None:
        self.job = job
        self.token = token

    @property
    def hold(self) -> Hold:
        return Hold(self.job.job_id, self.job.attempt, self.token)

    # What the handler says

    def say_progress(self, fraction: float, stage: str | None) -> None:
        self.progress = round(min(1.0, max(0.0, float(fraction))), PROGRESS_DIGITS)
        if stage is not None:
            self.stage = clean(str(stage))[: limits.STAGE_LENGTH_MAX]
        self.dirty = True

    def say_effects(self, statements: list[Effect]) -> None:
        self.effects = (*self.effects, *statements)

    def say_artifact(self, stored: StoredFile) -> None:
        if self.artifacts is None:
            before = msgspec.json.decode(self.job.artifacts, type=list[StoredFile]) if self.job.artifacts else []
            self.artifacts = {each.name: each for each in before}
        self.artifacts[stored.name] = stored
        self.dirty = True

    def say_metric(self, name: str, value: float) -> None:
        if not math.isfinite(value):
            self.say_log(None, "WARNING", f"metric {name} is {value}, which is no number to keep")
            return
        metrics = self.metrics if self.metrics is not None else {}
        if name in metrics or len(metrics) < limits.METRICS_MAX:
            metrics[clean(str(name))[: limits.NAME_LENGTH_MAX]] = value
        self.metrics = metrics
        self.dirty = True

    def say_log(self, created: float | None, level: str, message: str, item: int | None = None) -> None:
        moment = datetime.now(UTC) if created is None else datetime.fromtimestamp(created, UTC)
        at = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        text = clean(message, limit=limits.LOG_FILE_BYTES_MAX)
        if self._logs is None or self._log_text is None:
            self._logs = msgspec.json.decode(self.job.logs) if self.job.logs else []
            self._log_text = []
        self._logs.append({"timestamp": at, "level": level, "message": text[: limits.LOG_MESSAGE_MAX]})
        del self._logs[: -limits.LOG_ENTRIES_MAX]
        self._log_text.append(f"{at} {level} [{self.job.attempt}] {text}\n")
        self.dirty = True

    # What is written of it

    def note(self) -> Note:
        self.dirty = False
        return Note(
            self.hold,
            progress=self.progress,
            stage=self.stage,
            logs=self.logs_json(),
            log_location=self.log_location,
            metrics=self.metrics_json(),
            artifacts=self.artifacts_json(),
        )

    def said(self) -> Said:
        if (
            self._logs is None
            and self.metrics is None
            and self.artifacts is None
            and self.family is None
            and not self.effects
        ):
            return _NOTHING
        said = Said(
            logs=self.logs_json(),
            log_location=self.log_location,
            metrics=self.metrics_json(),
            artifacts=self.artifacts_json(),
            effects=self.effects,
        )
        if self.family is not None:
            said.update(self.family.said())
        return said

    def logs_json(self) -> str | None:
        return None if self._logs is None else msgspec.json.encode(self._logs).decode()

    def metrics_json(self) -> str | None:
        return None if self.metrics is None else msgspec.json.encode(self.metrics).decode()

    def artifacts_json(self) -> str | None:
        return None if self.artifacts is None else msgspec.json.encode(list(self.artifacts.values())).decode()

    def take_log_text(self) -> str:
        if not self._log_text:
            return ""
        text = "".join(self._log_text)
        self._log_text.clear()
        return text
