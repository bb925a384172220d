"""holdfast show ID: everything that is kept of a job."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, output
from holdfast.cli.options import AppName, AsJson, JobId, Url
from holdfast.cli.output import STATUS_STYLES
from holdfast.cli.text import away, safe, safe_lines, span, utc
from holdfast.clock import to_datetime
from holdfast.job import HistoryEntry, Job
from holdfast.job_json import whole
from holdfast.lifecycle import Status

_LINES_MAX = 60  # of one document; a person who wants more wants the file
_REASON_MAX = 80  # an error in full stands under Errors
_LABEL = 14
_TIME = 13  # what an event's time takes; the rest of the event stands beside it


def show(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Show everything that is kept of a job."""

    async def work(app: Holdfast) -> None:
        job = await app.get(await lookup.job_id(app, job_id))
        if as_json:
            output.emit_json({**whole(job), "history": job.history})
            return
        why = await app.explain(job.job_id) if job.status is Status.PENDING else None
        _Sheet(job, why, to_datetime(app.clock.now())).print()

    apps.run(url, app, work)


class _Sheet:
    def __init__(self, job: Job, why: str | None, now: datetime) -> None:
        self._job = job
        self._why = why
        self._now = now
        self._console = output.console()

    def print(self) -> None:
        for label, value in self._facts():
            self._fact(label, value)
        if self._job.archived_at is None:
            self._document("Payload", self._job.payload)
            if self._job.status is Status.COMPLETED:
                self._document("Result", self._job.result)
        self._errors()
        self._history()
        self._logs()

    # The parts

    def _facts(self) -> Iterator[tuple[str, str]]:
        job = self._job
        yield "job", job.job_id
        yield "type", job.job_type
        yield "status", job.status.value
        if self._why is not None:
            yield "why", self._why
        if job.archived_at is not None:
            yield "archived", f"{self._moment(job.archived_at)}; payload, result, logs and history are gone"
        if job.progress or job.status is Status.PROCESSING:
            yield "progress", f"{job.progress:.0%} {job.stage}".rstrip()
        yield "queue", f"{job.queue}, priority {job.priority}"
        yield from self._times()
        yield "attempts", self._attempts()
        if job.status is Status.PROCESSING and job.worker_id is not None:
            yield "worker", f"{job.worker_id} (release {job.worker_version})"
        elif job.worker_id is not None:
            yield "last worker", job.worker_id
        yield from self._relations()

    def _times(self) -> Iterator[tuple[str, str]]:
        job = self._job
        yield "created", self._moment(job.created_at) + (f", by {job.created_by}" if job.created_by else "")
        if job.scheduled_for != job.created_at:
            yield "due", self._moment(job.scheduled_for)
        if job.started_at is not None:
            yield "started", self._moment(job.started_at)
        if job.status is Status.PROCESSING and job.lease_expires_at is not None:
            yield "lease until", self._moment(job.lease_expires_at)
        if job.completed_at is not None:
            yield "ended", self._moment(job.completed_at)
        if job.processing_time_ms is not None:
            yield "took", span(job.processing_time_ms / 1000)

    def _attempts(self) -> str:
        job = self._job
        failures = "no failure" if job.failures == 0 else f"{job.failures} failed"
        left = f", {job.max_attempts} allowed, {span(job.timeout_seconds)} each"
        return f"{job.attempt} ({failures}{left})"

    def _relations(self) -> Iterator[tuple[str, str]]:
        job = self._job
        named: dict[str, Any] = {
            "last error": None if job.errors else job.last_error,
            "subject": job.subject,
            "tags": ", ".join(job.tags),
            "dedup key": job.dedup_key,
            "content hash": job.content_hash,
            "reused from": job.reused_from,
            "parent": job.parent_job_id,
            "root": job.root_job_id if job.root_job_id != job.job_id else None,
            "job stage": job.job_stage,
            "depends on": ", ".join(job.dependencies),
            "needed by": ", ".join(job.dependent_jobs)
            + (f" and {more} more" if (more := job.dependent_count - len(job.dependent_jobs)) > 0 else ""),
            "schedule": job.schedule and f"{job.schedule}, for {utc(job.tick_at) if job.tick_at else 'a run by hand'}",
            "limited by": job.concurrency_key and f"concurrency key {job.concurrency_key}",
            "paced by": job.rate_key and f"rate key {job.rate_key}",
            "takes turns": job.fairness_key and f"under the fairness key {job.fairness_key}",
            "result tables": ", ".join(job.result_tables),
            "artifacts": ", ".join(job.artifacts),
            "metrics": ", ".join(f"{name} {value:g}" for name, value in job.metrics.items()),
        }
        yield from ((label, value) for label, value in named.items() if value)

    def _errors(self) -> None:
        if not self._job.errors:
            return
        self._title("Errors")
        for error in reversed(self._job.errors):
            line = f"attempt {error['attempt']}, {away(error['at'], self._now)}: {error['type']}: {error['message']}"
            self._lines(line, style="red")
            if error["traceback"]:
                self._lines(error["traceback"].rstrip("\n"), indent=4)

    def _history(self) -> None:
        entries = self._job.history
        if not entries:
            return
        self._title("History")
        previous: HistoryEntry | None = None
        for entry in entries:
            if previous is not None and entry.version > previous.version + 1:
                self._lines(f"… {entry.version - previous.version - 1} events were dropped …")
            day = "" if previous is not None and previous.at.date() == entry.at.date() else f"{entry.at:%Y-%m-%d} UTC"
            if day:
                self._lines(day, style="dim")
            self._lines(_event(entry), hang=_TIME)
            previous = entry

    def _logs(self) -> None:
        logs = self._job.logs
        if not logs["entries"]:
            return
        self._title(f"Logs{': ' + logs['log_location'] if logs['log_location'] else ''}")
        for entry in logs["entries"]:
            self._lines(f"{entry['timestamp'][11:-1]} {entry['level']:<7} {entry['message']}")

    # How they look

    def _moment(self, moment: datetime) -> str:
        return f"{utc(moment)}, {away(moment, self._now)}"

    def _fact(self, label: str, value: str) -> None:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_column(width=_LABEL, no_wrap=True, style="bold")
        row.add_column(overflow="fold")
        row.add_row(Text(label), Text(safe(value), STATUS_STYLES[self._job.status] if label == "status" else ""))
        self._print(Padding(row, 0, expand=False))

    def _title(self, title: str) -> None:
        self._console.print()
        self._console.print(safe(title), style="bold", soft_wrap=True)

    def _document(self, title: str, value: Any) -> None:
        self._title(title)
        lines = output.as_json(value, self._console.width - 2).split("\n")
        self._lines("\n".join(lines[:_LINES_MAX]))
        if len(lines) > _LINES_MAX:
            self._lines(f"… {len(lines) - _LINES_MAX:,} more lines; --json has them all", style="dim")

    def _lines(self, text: str, *, style: str = "", indent: int = 2, hang: int = 0) -> None:
        from rich.padding import Padding
        from rich.text import Text

        shown = safe_lines(text)
        if hang and output.width() is not None:
            shown = textwrap.fill(shown, self._console.width - indent, subsequent_indent=" " * hang)
        body = Text(shown, style, overflow="fold")
        self._print(Padding(body, (0, 0, 0, indent), expand=False))

    def _print(self, body: Any) -> None:
        """Without the blanks with which rich fills up lines."""
        with self._console.capture() as captured:
            self._console.print(body)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _event(entry: HistoryEntry) -> str:
    at = f"{entry.at:%H:%M:%S}.{entry.at.microsecond // 1000:03d}"
    parts = [at, f"{entry.event.value:<12}", f"{output.arrow()} {entry.target.value:<10}"]
    if entry.attempt:
        parts.append(f"attempt {entry.attempt}")
    if entry.by:
        parts.append(f"by {entry.by}")
    if entry.reason:
        parts.append(f"({entry.reason[:_REASON_MAX]}{'…' if len(entry.reason) > _REASON_MAX else ''})")
    return " ".join(parts).rstrip()
