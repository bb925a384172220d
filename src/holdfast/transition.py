"""A decided change of a job: under which guards it holds, and what it writes."""

from __future__ import annotations

import msgspec

from holdfast.clock import Instant
from holdfast.newjob import NewJob
from holdfast.statuses import Event, Status
from holdfast.trees import Awaits

LEASE_LOST = "LeaseLost"  # the error of an attempt whose worker died or stalled; claims look for it


class ErrorEntry(msgspec.Struct, frozen=True):
    """One failure as the job keeps it. Strings only: an error is never rebuilt from storage."""

    attempt: int
    at: Instant
    type: str
    message: str
    traceback: str = ""


Kind = tuple[str, str, int]  # job type, queue, priority: what counters are kept by
Effect = tuple[str, tuple[object, ...]]  # a statement and its parameters


class Staged(msgspec.Struct, frozen=True, gc=False):
    """Children that `stage` has taken under this job and attempt: in how many parts, and how many they are."""

    parts: int
    jobs: int


class Transition(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A decided change: guards, then what to write. A field left at None keeps what is stored."""

    job_id: str
    event: Event
    source: Status
    target: Status
    attempt: int
    version: int | None = None  # guard of editors
    token: str | None = None  # guard of the claim's holder
    lease: Instant | None = None  # guard of a rescue: the expiry it saw; an extension in between defeats it

    kind: Kind  # with the two spans, what the counters add when this is applied
    ran_micros: int = 0
    waited_micros: int = 0
    parent_job_id: str | None = None  # of the job itself: where its end counts, without a look at its record

    by: str | None = None
    reason: str | None = None
    failures: int | None = None
    snoozes: int | None = None
    give_backs: int | None = None
    waits: int | None = None  # how often it has waited for its children
    scheduled_for: Instant | None = None
    priority: int | None = None
    progress: float | None = None
    stage: str | None = None
    error: ErrorEntry | None = None
    result: str | None = None  # JSON text
    result_artifact: str | None = None  # JSON text: where a large result lies, its hash and size
    clear_result: bool = False
    logs: str | None = None  # JSON text
    log_location: str | None = None
    metrics: str | None = None  # JSON text
    artifacts: str | None = None  # JSON text
    effects: tuple[Effect, ...] = ()  # statements of the handler's own, for the same commit; SQL engines only

    # Children that come with it, at most CHILDREN_INLINE_MAX; of more, what `stage` was given. Only one of the two.
    children: tuple[NewJob, ...] = ()
    staged: Staged | None = None
    # Of WAIT_FOR_CHILDREN alone: what it waits for, and which function is entered then; None: the handler itself.
    awaits: Awaits | None = None
    join: str | None = None
    rewait: bool = False  # a manual retry of a job that may wait again, for what it depends on and what runs again too
