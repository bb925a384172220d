"""Tools for agents: a server of the Model Context Protocol, whose tools look at a queue and change it.

An agent sees only the tools that its scopes allow, and only jobs of its queues; sensitive fields are dots unless it has
the scope `work`. Every tool that changes something can be tried with `dry_run`, and leaves the same audit entry as any
other change, with `mcp` as the way that it came in. Answers are bounded: a language model has to read them.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar, cast

import msgspec

from backstay import limits
from backstay.app import Backstay
from backstay.clock import to_datetime
from backstay.core import stats
from backstay.core.access_keys import SCOPES
from backstay.core.checks import check_priority, did_you_mean, how_to_install
from backstay.errors import BackstayError, ConfigurationError, InvalidOption
from backstay.job import Job
from backstay.ops.audit import Actor
from backstay.ops.jobs import BulkResult
from backstay.ops.presentation import note

try:
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations

    from backstay.options import SubmitOptions, build
    from backstay.server import metrics, submit, visibility
    from backstay.server.auth import Principal, check_queue, visible
    from backstay.server.problems import Problem
except ModuleNotFoundError as error:
    if error.name is not None and error.name.startswith("backstay"):
        raise
    raise ConfigurationError(f"the server for agents needs {error.name}: {how_to_install('mcp')}") from error

P = ParamSpec("P")
R = TypeVar("R")
Answer = dict[str, Any]
StatusName = Literal[
    "waiting", "scheduled", "pending", "processing", "retrying", "completed", "failed", "cancelled"
]  # as a Literal, it is part of the tools' schemas

_INSTRUCTIONS = """\
Backstay is a durable job queue. A job has an id, a type, a queue, a payload and a status: waiting (on other jobs),
scheduled (for later), pending (ready), processing, retrying, completed, failed (a dead letter) or cancelled.
To find out why something does not run: list_jobs, then explain_job, then doctor.
Before a change of many jobs, call the tool with dry_run=true, and show the user what would happen."""

_LOOKS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def principal(name: str, scopes: Sequence[str], queues: Sequence[str] = ()) -> Principal:
    """Return an agent by its rights: scopes as those of a key, and patterns of the queues that it sees."""
    for scope in scopes:
        if scope not in SCOPES:
            raise InvalidOption(f"unknown scope {scope!r:.80}{did_you_mean(scope, SCOPES)}: use {', '.join(SCOPES)}")
    return Principal(name, frozenset(scopes), tuple(queues))


def server(app: Backstay, who: Principal) -> MCPServer:
    """Return the server of an open app, with the tools that `who` may use."""
    return _Tools(app, who).server


def _told(tool: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """Return the tool with errors that a model can read and act on."""

    @functools.wraps(tool)
    async def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return await tool(*args, **kwargs)
        except BackstayError as error:
            raise ToolError(f"{type(error).__name__}: {error}") from None
        except Problem as problem:
            raise ToolError(problem.detail or problem.title) from None

    return called


class _Tools:
    """One method for each tool. Its docstring is what a model reads about it."""

    def __init__(self, app: Backstay, who: Principal) -> None:
        self._app = app
        self._who = who
        self._by = Actor(who.name, "mcp", None, () if who.sees_all else who.queues)
        self.server = MCPServer("backstay", instructions=_INSTRUCTIONS, log_level="ERROR")
        if who.may("read"):
            self._add(
                _LOOKS,
                self.list_jobs,
                self.show_job,
                self.job_history,
                self.explain_job,
                self.list_queues,
                self.list_job_types,
                self.stats,
            )
            if who.sees_all:  # these tell about all queues
                self._add(_LOOKS, self.dead_letters, self.doctor)
        if who.may("submit"):
            self._add(_ADDS, self.submit_job)
            self._add(_CHANGES, self.cancel_job, self.retry_job)
        if who.may("admin"):
            self._add(_CHANGES, self.cancel_jobs, self.retry_jobs, self.pause_queue, self.resume_queue)

    def _add(self, annotations: ToolAnnotations, *tools: Callable[..., Awaitable[Answer]]) -> None:
        for tool in tools:
            self.server.tool(annotations=annotations)(_told(tool))

    # Look

    async def list_jobs(
        self,
        status: StatusName | None = None,
        job_type: str | None = None,
        queue: str | None = None,
        subject: str | None = None,
        tag: str | None = None,
        worker: str | None = None,
        created_by: str | None = None,
        after: str | None = None,
        limit: int = 20,
    ) -> Answer:
        """List jobs, newest first, each with one line on how it is going. To continue, pass `next` as `after`."""
        given = {
            "status": status,
            "job_type": job_type,
            "queue": queue,
            "subject": subject,
            "tag": tag,
            "worker": worker,
            "created_by": created_by,
            "after": after,
        }
        conditions: Any = {name: value for name, value in given.items() if value is not None}
        page = await visibility.page_of(self._app, self._who, limit=min(limit, limits.AGENT_JOBS_MAX), **conditions)
        return {"jobs": [self._line(job) for job in page], "next": page.next}

    def _line(self, job: Job) -> Answer:
        return {
            "job_id": job.job_id,
            "job_type": job.job_type,
            "queue": job.queue,
            "status": str(job.status),
            "subject": job.subject,
            "created_at": job.created_at.isoformat(),
            "details": note(job, to_datetime(self._app.clock.now())),
        }

    async def show_job(self, job_id: str) -> Answer:
        """Show everything about a job: payload, result, errors with tracebacks, last log lines, attempts, times. Long
        values are cut."""
        job = await visible(self._app, self._who, job_id)
        return _plain(await visibility.document(self._app, self._who, job))

    async def job_history(self, job_id: str) -> Answer:
        """Show every change of a job: when, which attempt, who, why."""
        job = await visible(self._app, self._who, job_id)
        [shown] = await visibility.without_foreign(self._app, self._who, [job])
        return _plain({"history": shown.history})

    async def explain_job(self, job_id: str) -> Answer:
        """Say in a sentence why a job is not running, what it waits for, or how it ended."""
        job = await visible(self._app, self._who, job_id)
        found = await visibility.explained(self._app, self._who, job)
        return {"reason": str(found.reason), "explanation": str(found), "job_ids": list(found.job_ids)}

    async def list_queues(self) -> Answer:
        """List the queues: how many jobs wait and run in each, whether it is paused, and why."""
        return _plain({"queues": [each for each in await self._app.queues() if self._who.sees(each.name)]})

    async def list_job_types(self) -> Answer:
        """List the job types that can be submitted, each with the JSON Schema of its payload."""
        seen = await visibility.types_seen(self._app, self._who)
        types = [
            {"job_type": each.job_type, "queue": each.queue, "payload_schema": _schema(each.payload_schema)}
            for each in await self._app.job_types()
            if each.job_type in seen
        ]
        return _plain({"job_types": types})

    async def stats(self, minutes: int = 60) -> Answer:
        """Read the figures of the last minutes: jobs submitted, completed, failed, and how long they took, by type and
        queue; and how many jobs are in each status now."""
        now = self._app.clock.now()
        since, until = stats.span(now, minutes)
        by_kind = [each for each in await self._app.counters(since, until) if self._who.sees(each.queue)]
        depths = [each for each in await self._app.depths() if self._who.sees(each.queue)]
        counts = await self._app.counts() if self._who.sees_all else metrics.counts(depths)
        return _plain(stats.summary(by_kind, by_kind, counts, since, until))

    async def dead_letters(self) -> Answer:
        """Show the failed jobs, grouped by type and error, with an example of each group."""
        groups = await self._app.dead(limits.AGENT_JOBS_MAX)
        return _plain(
            {"groups": [{**msgspec.to_builtins(each), "newest_at": to_datetime(each.newest_at)} for each in groups]}
        )

    async def doctor(self) -> Answer:
        """Run all health checks of the queue. Each finding says what is wrong and what to do about it."""
        return _plain({"findings": await self._app.check_up()})

    # Change

    async def submit_job(
        self,
        job_type: str,
        payload: Any,
        queue: str | None = None,
        priority: int | Literal["low", "normal", "high", "urgent"] | None = None,
        delay_seconds: float | None = None,
        subject: str | None = None,
        tags: list[str] | None = None,
        dedup_key: str | None = None,
        dry_run: bool = False,
    ) -> Answer:
        """Submit a job; list_job_types has the schema of its payload. With `dedup_key`, a job that is still active
        under this key is returned instead of a second one. With `dry_run`, all is checked and nothing is stored."""
        given = {
            "queue": queue,
            "priority": priority,
            "delay": delay_seconds,
            "subject": subject,
            "tags": tags,
            "dedup_key": dedup_key,
        }
        options = cast(SubmitOptions, {name: value for name, value in given.items() if value is not None})
        options["created_by"] = self._who.name
        if dry_run:
            target = await submit.target_of(self._app, self._who, job_type)
            now = self._app.clock.now()
            job = build(target, payload, "0" * 36, now, options)
            check_queue(self._who, job.queue)
            due = to_datetime(job.scheduled_for).isoformat()
            would = {"job_type": job_type, "queue": job.queue, "priority": check_priority(job.priority), "due": due}
            return {"dry_run": True, "would_submit": would}
        handle = await submit.submit(self._app, self._who, submit.Asked(job_type, payload, options))
        return {"job_id": handle.job_id, "status": str(handle.status), "deduplicated": handle.deduplicated}

    async def cancel_job(self, job_id: str, reason: str, subtree: bool = False, dry_run: bool = False) -> Answer:
        """Cancel a job that has not ended; a running handler is stopped. `subtree` also cancels the jobs below it. Give
        the reason: people read it in the job's history."""
        job = await visible(self._app, self._who, job_id)
        if subtree:
            await visibility.check_tree(self._app, self._who, job.job_id)
        if dry_run:
            return await self._would(self._app.cancel_many([job.job_id], dry_run=True, by=self._by), subtree)
        changed = await self._app.cancel(job.job_id, subtree=subtree, reason=reason, by=self._by)
        return {"job_id": changed.job_id, "status": str(changed.status)}

    async def retry_job(self, job_id: str, reason: str, subtree: bool = False, dry_run: bool = False) -> Answer:
        """Run an ended job again, with its attempts reset. `subtree` retries the failed and cancelled jobs of its tree
        and keeps completed ones. Give the reason: people read it in the job's history."""
        job = await visible(self._app, self._who, job_id)
        if subtree:
            await visibility.check_tree(self._app, self._who, job.job_id)
        if dry_run:
            return await self._would(self._app.retry_many([job.job_id], dry_run=True, by=self._by), subtree)
        changed = await self._app.retry(job.job_id, subtree=subtree, reason=reason, by=self._by)
        return {"job_id": changed.job_id, "status": str(changed.status)}

    async def _would(self, trial: Awaitable[BulkResult], subtree: bool) -> Answer:
        found = _bulk(await trial)
        return {**found, "and_jobs_below_it": True} if subtree else found

    async def cancel_jobs(
        self,
        reason: str,
        status: StatusName | None = None,
        job_type: str | None = None,
        queue: str | None = None,
        subject: str | None = None,
        dry_run: bool = True,
    ) -> Answer:
        """Cancel up to 1,000 jobs that match. By default it only says what it would do: call it with dry_run=false once
        the user agrees. If `more` is true, repeat the call to continue."""
        conditions = self._conditions(status, job_type, queue, subject)
        return _bulk(await self._app.cancel_many(dry_run=dry_run, reason=reason, by=self._by, **conditions))

    async def retry_jobs(
        self,
        reason: str,
        status: Literal["completed", "failed", "cancelled"] | None = None,
        job_type: str | None = None,
        queue: str | None = None,
        subject: str | None = None,
        dry_run: bool = True,
    ) -> Answer:
        """Run up to 1,000 ended jobs again that match; without a status, failed and cancelled ones. By default it only
        says what it would do: call it with dry_run=false once the user agrees."""
        conditions = self._conditions(status, job_type, queue, subject)
        return _bulk(await self._app.retry_many(dry_run=dry_run, reason=reason, by=self._by, **conditions))

    def _conditions(self, status: str | None, job_type: str | None, queue: str | None, subject: str | None) -> Any:
        given = {"status": status, "job_type": job_type, "queue": queue, "subject": subject}
        found = {name: value for name, value in given.items() if value is not None}
        if not found:
            raise InvalidOption("give at least one condition: status, job_type, queue or subject")
        return found

    async def pause_queue(self, name: str, reason: str, dry_run: bool = False) -> Answer:
        """Stop the claims from a queue until it is resumed. Running jobs continue; new jobs wait."""
        check_queue(self._who, name)
        if dry_run:
            return await self._would_set(name, "paused")
        return _plain(await self._app.pause_queue(name, reason=reason, by=self._by))

    async def resume_queue(self, name: str, dry_run: bool = False) -> Answer:
        """Resume a paused queue."""
        check_queue(self._who, name)
        if dry_run:
            return await self._would_set(name, "resumed")
        return _plain(await self._app.resume_queue(name, by=self._by))

    async def _would_set(self, name: str, what: str) -> Answer:
        queues = {each.name: each for each in await self._app.queues()}
        return _plain({"dry_run": True, "would_be": what, "queue": queues.get(name), "is_known": name in queues})


def _bulk(found: BulkResult) -> Answer:
    return {
        "dry_run": found.dry_run,
        "jobs": len(found.changed),
        "examples": list(found.changed[: limits.AGENT_EXAMPLES]),
        "by_status": {str(status): number for status, number in found.by_status.items()},
        "refused": found.reasons,
        "more": found.more,
    }


def _schema(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)


def _plain(value: Any) -> Answer:
    """Return the answer as JSON values, with long texts cut."""
    found: Answer = _cut(msgspec.json.decode(msgspec.json.encode(value, enc_hook=str)))
    return found


def _cut(value: Any) -> Any:
    match value:
        case str() if len(value) > limits.AGENT_TEXT_MAX:
            return f"{value[: limits.AGENT_TEXT_MAX]}… ({len(value)} characters in all)"
        case list() if len(value) > limits.AGENT_ITEMS_MAX:
            return [*map(_cut, value[: limits.AGENT_ITEMS_MAX]), f"… ({len(value)} items in all)"]
        case list():
            return [_cut(each) for each in value]
        case dict():
            return {name: _cut(each) for name, each in value.items()}
        case _:
            return value
