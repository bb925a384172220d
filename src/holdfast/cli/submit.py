"""holdfast submit TYPE JSON"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from holdfast.app import Holdfast
from holdfast.cli import apps, lookup, options, output, payloads, watching
from holdfast.cli import job_options as take
from holdfast.cli.exits import Exit
from holdfast.cli.options import AppName, AsJson, Url
from holdfast.job_json import whole
from holdfast.submission import SubmitOptions


def submit(
    context: typer.Context,
    job_type: options.JobType,
    payload: options.Payload = "{}",
    priority: take.Priority = None,
    delay: take.Delay = None,
    run_at: take.RunAt = None,
    queue: take.Queue = None,
    subject: take.Subject = None,
    tag: take.Tags = None,
    dedup_key: take.DedupKey = None,
    dedup_for: take.DedupFor = None,
    dedup_conflict: take.DedupConflict = None,
    content_hash: take.ContentHash = None,
    reuse: take.Reuse = None,
    depends_on: take.DependsOn = None,
    trigger_rule: take.TriggerRule = None,
    on_dependency_failure: take.OnDependencyFailure = None,
    parent: take.Parent = None,
    stage: take.Stage = None,
    concurrency_key: take.ConcurrencyKey = None,
    rate_key: take.RateKey = None,
    fairness_key: take.FairnessKey = None,
    fairness_weight: take.FairnessWeight = None,
    max_attempts: take.MaxAttempts = None,
    job_timeout: take.JobTimeout = None,
    job_id: take.OwnId = None,
    created_by: take.CreatedBy = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show its progress to the end, then print its result.")] = False,
    timeout: options.Timeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Store a job; print its id, or with --wait its result."""
    chosen = _chosen(context, wait, timeout)
    body = payloads.read(payload)
    return apps.run(url, app, lambda each: _submit(each, job_type, body, chosen, wait, timeout, as_json), makes=True)


def _chosen(context: typer.Context, wait: bool, timeout: timedelta | None) -> SubmitOptions:
    if timeout is not None and not wait:
        raise typer.BadParameter(
            "it says how long to --wait; the job's own limit is --job-timeout", param_hint="--timeout"
        )
    found: SubmitOptions = take.chosen(context, SubmitOptions.__annotations__)
    return found


async def _submit(
    app: Holdfast,
    job_type: str,
    payload: Any,
    chosen: SubmitOptions,
    wait: bool,
    timeout: timedelta | None,
    as_json: bool,
) -> Exit:
    if chosen.get("depends_on"):
        chosen["depends_on"] = [await lookup.job_id(app, str(each)) for each in chosen["depends_on"]]
    if chosen.get("parent"):
        chosen["parent"] = await lookup.job_id(app, str(chosen["parent"]))
    handle = await app.submit(job_type, payload, **chosen)
    if handle.deduplicated:
        output.say(f"job {handle.job_id} answers for it already ({handle.status.value}); nothing new was stored")
    if wait:
        if not as_json:
            output.say(f"job {handle.job_id} is stored")
        job = await watching.follow(app, handle.job_id, timeout)
        job.deduplicated = handle.deduplicated
        return watching.report(job, as_json)
    if as_json:
        job = await handle.refresh()
        job.deduplicated = handle.deduplicated
        output.emit_json(whole(job))
    else:
        print(handle.job_id)
    return Exit.OK
