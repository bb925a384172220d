"""A job to insert, as it travels from whoever asks for it to a store."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant

FOREVER: Instant = 2**62


class Rate(msgspec.Struct, frozen=True, gc=False):
    """At most `count` starts in any span of `micros`, roughly: a bucket of `count` that refills evenly."""

    count: int
    micros: int


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job to insert: validated, with its id."""

    job_id: str
    job_type: str
    queue: str
    priority: int
    payload: str
    scheduled_for: Instant
    max_attempts: int
    timeout_micros: int
    subject: str | None = None
    tags: str | None = None  # JSON array
    created_by: str | None = None
    job_stage: str | None = None
    parent_job_id: str | None = None
    root_job_id: str | None = None
    content_hash: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    on_dependency_failure: str = "cancel"
    payload_version: int = 1
    fairness_key: str | None = None  # jobs of one key take turns with those of others
    fairness_weight: int = 1
    traceparent: str | None = None  # the trace that it was submitted in, as W3C writes it; an observer's business
    # What makes an insert more than a row. `special` tells a store at a glance that one of these is set.
    special: bool = False
    own_id: bool = False  # the caller chose the id: a repeat answers with the job that has it
    dedup_key: str | None = None
    dedup_until: Instant | None = None  # None: while the job is active; FOREVER; or the end of the window
    dedup_conflict_is_error: bool = False
    depends_on: tuple[str, ...] = ()
    trigger_rule: str = "all_success"  # see trees.TriggerRule; another needs depends_on
    reuse_since: Instant | None = None  # reuse an identical job completed at or after this
    rate_key: str | None = None
    rate: Rate | None = None
    schedule: str | None = None  # the schedule that made it, and for which of its ticks
    tick_at: Instant | None = None
