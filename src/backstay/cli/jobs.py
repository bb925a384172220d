"""`backstay list`, `watch` and `show`: find jobs, follow one, and show everything stored about one."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from backstay.app import Backstay, Page
from backstay.cli import app_loader, options, output
from backstay.cli import watch as cli_watch
from backstay.cli.options import AppName, AsJson, JobId, Url
from backstay.cli.output import STATUS_STYLES, Column, Exit, safe, safe_lines
from backstay.clock import to_datetime
from backstay.core.checks import away, count, span, utc
from backstay.core.states import Status
from backstay.job import HistoryEntry, Job, whole
from backstay.ops.events import StepEntry, says


def list_jobs(
    status: options.OnlyStatus = None,
    job_type: options.OnlyType = None,
    queue: options.OnlyQueue = None,
    subject: options.OnlySubject = None,
    worker: options.OnlyWorker = None,
    tag: options.OnlyTag = None,
    created_by: options.OnlyCreatedBy = None,
    root: options.OnlyRoot = None,
    content_hash: options.OnlyContentHash = None,
    order: Annotated[
        str, typer.Option(metavar="ORDER", help="created (newest first) or priority (next to be claimed first).")
    ] = "created",
    limit: Annotated[int, typer.Option(metavar="N", help="Maximum number of jobs; default 20.")] = 20,
    after: Annotated[str | None, typer.Option(metavar="CURSOR", help="Continue after this cursor.")] = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> None:
    """List jobs, newest first."""

    async def work(app: Backstay) -> None:
        page = await app.find(
            status=status,
            job_type=job_type,
            queue=queue,
            subject=subject,
            worker=worker,
            tag=tag,
            created_by=created_by,
            root=None if root is None else await app_loader.job_id(app, root),
            content_hash=content_hash,
            order=order,
            after=after,
            limit=limit,
        )
        if as_json:
            output.emit_json({"items": [whole(job) for job in page], "next": page.next})
        else:
            _print(page, to_datetime(app.clock.now()), first=after is None)

    app_loader.run(url, app, work)


def _print(page: Page, now: datetime, *, first: bool) -> None:
    if page:
        output.emit_table(_columns(now), page)
    else:
        output.say("no jobs match" if first else "no more jobs")
    if page.next is not None:
        output.say(f"more jobs: add --after {shlex.quote(page.next)}")


def _columns(now: datetime) -> list[Column[Job]]:
    return [
        Column("ID", lambda job: job.job_id, is_id=True),
        Column("TYPE", lambda job: job.job_type, cut=True),
        Column("STATUS", lambda job: job.status.value, style=lambda job: STATUS_STYLES[job.status]),
        Column("PRIORITY", lambda job: str(job.priority), wide=True, right=True),
        Column("QUEUE", lambda job: job.queue, wide=True, cut=True),
        Column("AGE", lambda job: span(max(0.0, (now - job.created_at).total_seconds())), right=True),
        Column("ATTEMPT", lambda job: str(job.attempt or ""), wide=True, right=True),
        Column("SUBJECT", lambda job: job.subject or "", wide=True, cut=True),
        Column("NOTE", lambda job: output.note(job, now), cut=True),
    ]


def watch(
    job_id: JobId,
    timeout: options.Timeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Show a job's progress until its end, then its result."""

    async def work(app: Backstay) -> Exit:
        whole = await app_loader.job_id(app, job_id)
        return cli_watch.report(await cli_watch.follow(app, whole, timeout), as_json)

    return app_loader.run(url, app, work)


_LINES_MAX = 60  # per document; anyone who wants more can read the file
_WHY_MAX = 120  # errors are shown in full under Errors
_LABEL = 14
_TIME = 13  # width of an event's time; the rest of the event is to its right


def show(job_id: JobId, as_json: AsJson = False, url: Url = None, app: AppName = None) -> None:
    """Show everything stored about a job."""

    async def work(app: Backstay) -> None:
        job = await app.get(await app_loader.job_id(app, job_id))
        if as_json:
            steps = await app.steps(job.job_id)
            output.emit_json({**msgspec.structs.asdict(whole(job)), "history": job.history, "steps": steps})
            return
        explained = job.status is Status.PENDING or job.waits_for == "event"
        why = await app.explain(job.job_id) if explained else None
        steps = await app.steps(job.job_id) if job.attempt else []
        _Sheet(job, None if why is None else str(why), steps, to_datetime(app.clock.now())).print()

    app_loader.run(url, app, work)


class _Sheet:
    def __init__(self, job: Job, why: str | None, steps: list[StepEntry], now: datetime) -> None:
        self._job = job
        self._why = why
        self._steps = steps
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
        self._recorded()
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
            yield "archived", f"{self._moment(job.archived_at)}; payload, result, logs and history were deleted"
        if job.progress or job.status is Status.PROCESSING:
            yield "progress", f"{job.progress:.0%} {job.stage}".rstrip()
        yield "queue", f"{job.queue}, priority {job.priority}"
        yield from self._times()
        yield "attempts", self._attempts()
        if job.status is Status.PROCESSING and job.worker_id is not None:
            yield "worker", f"{job.worker_id} (version {job.worker_version})"
        elif job.worker_id is not None:
            yield "last worker", job.worker_id
        yield from self._relations()

    def _times(self) -> Iterator[tuple[str, str]]:
        job = self._job
        yield "created", self._moment(job.created_at) + (f", by {job.created_by}" if job.created_by else "")
        never_ran = job.status is Status.CANCELLED and job.started_at is None  # and never will
        if job.scheduled_for != job.created_at and not never_ran:
            yield "due", self._moment(job.scheduled_for)
        if job.expires_at is not None:
            yield "expires", self._moment(job.expires_at)
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
        failures = f"{job.failures:,} of {count(job.max_attempts, 'allowed failure')}"
        return f"{job.attempt:,} so far, {failures}, timeout {span(job.timeout_seconds)} each"

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
            "schedule": job.schedule and f"{job.schedule}, for {utc(job.tick_at) if job.tick_at else 'a manual run'}",
            "limited by": job.concurrency_key and f"concurrency key {job.concurrency_key}",
            "paced by": job.rate_key and f"rate key {job.rate_key}",
            "rate cost": f"{job.rate_cost:,}" if job.rate_cost > 1 else None,
            "takes turns": job.fairness_key and f"by fairness key {job.fairness_key}",
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

    def _recorded(self) -> None:
        if not self._steps:
            return
        self._title("Steps")
        width = max(len(step.name) for step in self._steps)
        for step in self._steps:
            self._lines(f"{step.kind.value:<6}{step.name:<{width}}  {says(step)}", hang=8 + width)

    def _history(self) -> None:
        entries = self._job.history
        if not entries:
            return
        self._title("History")
        previous: HistoryEntry | None = None
        width = max(12, *(len(entry.event.value) for entry in entries))
        for entry in entries:
            if previous is not None and entry.version > previous.version + 1:
                self._lines(f"… {entry.version - previous.version - 1} events not kept …")
            day = "" if previous is not None and previous.at.date() == entry.at.date() else f"{entry.at:%Y-%m-%d} UTC"
            if day:
                self._lines(day, style="dim")
            self._lines(_event(entry, width), hang=_TIME)
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
        """Print without the blanks that rich adds at the ends of lines."""
        with self._console.capture() as captured:
            self._console.print(body)
        print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _event(entry: HistoryEntry, width: int) -> str:
    at = f"{entry.at:%H:%M:%S}.{entry.at.microsecond // 1000:03d}"
    parts = [at, f"{entry.event.value:<{width}}", f"{output.arrow()} {entry.target.value:<10}"]
    if entry.attempt:
        parts.append(f"attempt {entry.attempt}")
    if entry.by:
        parts.append(f"by {entry.by}")
    if why := entry.why:
        parts.append(f"({why[:_WHY_MAX]}{'…' if len(why) > _WHY_MAX else ''})")
    return " ".join(parts).rstrip()
