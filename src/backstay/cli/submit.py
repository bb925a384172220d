"""`backstay submit TYPE JSON`: submits a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from backstay.app import Backstay
from backstay.cli import app_loader, options, output, watch
from backstay.cli.options import AppName, AsJson, Url
from backstay.cli.output import Exit
from backstay.job import whole
from backstay.options import SubmitOptions


def submit(
    context: typer.Context,
    job_type: options.JobType,
    payload: options.Payload = "{}",
    priority: options.Priority = None,
    delay: options.Delay = None,
    run_at: options.RunAt = None,
    queue: options.Queue = None,
    subject: options.Subject = None,
    tag: options.Tags = None,
    expires: options.Expires = None,
    dedup_key: options.DedupKey = None,
    dedup_by: options.DedupBy = None,
    dedup_for: options.DedupFor = None,
    dedup: options.Dedup = None,
    debounce_max: options.DebounceMax = None,
    content_hash: options.ContentHash = None,
    reuse: options.Reuse = None,
    depends_on: options.DependsOn = None,
    trigger_rule: options.TriggerRule = None,
    on_dependency_failure: options.OnDependencyFailure = None,
    parent: options.Parent = None,
    stage: options.Stage = None,
    concurrency_key: options.ConcurrencyKey = None,
    rate_key: options.RateKey = None,
    rate_cost: options.RateCost = None,
    fairness_key: options.FairnessKey = None,
    fairness_weight: options.FairnessWeight = None,
    max_attempts: options.MaxAttempts = None,
    job_timeout: options.JobTimeout = None,
    job_id: options.OwnId = None,
    created_by: options.CreatedBy = None,
    wait: Annotated[bool, typer.Option("--wait", help="Show progress until it ends, then print its result.")] = False,
    timeout: options.Timeout = None,
    as_json: AsJson = False,
    url: Url = None,
    app: AppName = None,
) -> int:
    """Submit a job; print its id, or with --wait its result."""
    chosen = _chosen(context, wait, timeout)
    body = options.read(payload)
    return app_loader.run(
        url, app, lambda each: _submit(each, job_type, body, chosen, wait, timeout, as_json), makes=True
    )


def _chosen(context: typer.Context, wait: bool, timeout: timedelta | None) -> SubmitOptions:
    if timeout is not None and not wait:
        raise typer.BadParameter(
            "it limits --wait; for a time limit on the job use --job-timeout", param_hint="--timeout"
        )
    found: SubmitOptions = options.chosen(context, SubmitOptions.__annotations__)
    return found


async def _submit(
    app: Backstay,
    job_type: str,
    payload: Any,
    chosen: SubmitOptions,
    wait: bool,
    timeout: timedelta | None,
    as_json: bool,
) -> Exit:
    if chosen.get("depends_on"):
        chosen["depends_on"] = [await app_loader.job_id(app, str(each)) for each in chosen["depends_on"]]
    if chosen.get("parent"):
        chosen["parent"] = await app_loader.job_id(app, str(chosen["parent"]))
    handle = await app.submit(job_type, payload, **chosen)
    if handle.deduplicated:
        output.say(f"already submitted as job {handle.job_id} ({handle.status.value}); nothing new was stored")
    if wait:
        if not as_json:
            output.say(f"submitted job {handle.job_id}")
        job = await watch.follow(app, handle.job_id, timeout)
        job.deduplicated = handle.deduplicated
        return watch.report(job, as_json)
    if as_json:
        job = await handle.record()
        job.deduplicated = handle.deduplicated
        output.emit_json(whole(job))
    else:
        print(handle.job_id)
    return Exit.OK
