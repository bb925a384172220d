"""Request bodies and parameters: their fields, checked strictly; an unknown field is refused by name.

A rule that is applied elsewhere, with a better message than a model has, is only in the schema: NUL is refused by the
gate, a wrong ETag where it is compared.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from backstay import limits
from backstay.core import checks
from backstay.core.schedules import ScheduleOptions, TimingOptions
from backstay.core.states import Status
from backstay.options import JobFilter, SubmitOptions
from backstay.server.auth import TOKEN_LENGTH_MAX

NAME = r"^[A-Za-z0-9._:-]{1,128}$"
NO_NUL: dict[str, Any] = {"not": {"pattern": r"\x00"}}
NO_OTHERS: dict[str, Any] = {"additionalProperties": False}  # where names have a pattern: one that does not fit
EXAMPLE_ID = "019a8d3e-7c11-7a3b-9f52-0c6f1f2e3d4c"
_NO_TYPE = {"anyOf": [{"enum": [*sorted(checks.ROUTE_WORDS), ".", ".."]}, {"pattern": f"^{checks.UUID.pattern}$"}]}
_MICROSECOND = 1e-6
MARK = r"^(/[^\u0000]*)?$"  # the path of a sensitive field; see core/sensitive.py


def _whole(value: Any) -> Any:
    """Accept 1.0 as an integer: in JSON it is one, and some languages cannot write it otherwise."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = BeforeValidator(_whole)
Name = Annotated[str, Field(pattern=NAME)]
NewType = Annotated[str, Field(pattern=NAME, json_schema_extra={"not": _NO_TYPE})]
Text = Annotated[str, Field(min_length=1, max_length=limits.KEY_LENGTH_MAX, json_schema_extra=NO_NUL)]
Word = Annotated[str, Field(min_length=1, max_length=limits.NAME_LENGTH_MAX, json_schema_extra=NO_NUL)]
Mark = Annotated[str, Field(max_length=limits.KEY_LENGTH_MAX, pattern=MARK)]
Marks = Annotated[list[Mark], Field(max_length=limits.SENSITIVE_FIELDS_MAX)]
Tag = Annotated[str, Field(min_length=1, max_length=limits.TAG_LENGTH_MAX, json_schema_extra=NO_NUL)]
Stage = Annotated[str, Field(max_length=limits.STAGE_LENGTH_MAX, json_schema_extra=NO_NUL)]
Reason = Annotated[str, Field(min_length=1, max_length=limits.REASON_LENGTH_MAX, json_schema_extra=NO_NUL)]
Delay = Annotated[float, Field(ge=0, le=limits.DELAY_SECONDS_MAX, allow_inf_nan=False)]
Span = Annotated[float, Field(ge=0, le=limits.SPAN_SECONDS_MAX, allow_inf_nan=False)]
Timeout = Annotated[float, Field(ge=_MICROSECOND, le=limits.TIMEOUT_SECONDS_MAX)]


# Rules between fields. Null is the same as leaving a field out.


def given(**fields: dict[str, Any]) -> dict[str, Any]:
    """The objects whose fields match these schemas, all of which are required."""
    return {"required": list(fields), "properties": fields}


def needs(name: str, other: str, unless: tuple[Any, ...] = (None,)) -> dict[str, Any]:
    """A body with the one field, unless it has one of these values, must have the other too."""
    return {"if": given(**{name: {"not": {"enum": list(unless)}}}), "then": given(**{other: SOMETHING})}


def excludes(name: str, other: str) -> dict[str, Any]:
    return {"not": given(**{name: SOMETHING, other: SOMETHING})}


SOMETHING: dict[str, Any] = {"not": {"enum": [None, []]}}


BATCH_MAX = 100  # jobs of one request: each is answered for itself


def _moment(value: Any) -> Any:
    """A time as RFC 3339 text; numbers are refused, since they could be seconds or milliseconds."""
    if not isinstance(value, str):
        raise ValueError("write a time as 2026-11-15T09:30:00Z")
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("write a time as 2026-11-15T09:30:00Z") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_moment, json_schema_input_type=AwareDatetime)]
Priority = Annotated[int, Field(ge=0, le=100), Whole] | Literal["low", "normal", "high", "urgent"]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
_RATE = r"^[1-9][0-9]{0,8}/([1-9][0-9]{0,5})?[smhd]$"
_CRON = r"^\s*(@[a-z]+.*|\S+(\s+\S+){4})\s*$"  # only its form: five fields, or a word such as @daily
_WEIGHTED = needs("fairness_weight", "fairness_key", unless=(None, 1))
_UNTIL = "created_until"
_AT_ONE_TIME = excludes("run_at", "delay")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    def _given(self, *left_out: str) -> dict[str, Any]:
        """Fields that were sent; null is the same as leaving one out."""
        found = {name: getattr(self, name) for name in self.model_fields_set if name not in left_out}
        return {name: value for name, value in found.items() if value is not None}


class _JobOptions(_Body):
    """How a job is submitted, once or by a schedule."""

    payload: Any = Field(None, description="Passed to the handler; must match the schema of the job type.")
    priority: Priority | None = Field(
        None, description="0 to 100, or low (25), normal (50), high (75), urgent (100). Higher runs first."
    )
    queue: Name | None = None
    subject: Text | None = Field(None, description="What the job is about; searchable.")
    tags: Annotated[list[Tag], Field(max_length=limits.TAGS_MAX)] | None = None
    content_hash: Text | None = None
    max_attempts: Annotated[int, Field(ge=1, le=limits.MAX_ATTEMPTS_MAX), Whole] | None = None
    timeout: Timeout | None = Field(None, description="Seconds.")
    concurrency_key: Text | None = None
    rate_key: Text | None = None
    rate_cost: Annotated[int, Field(ge=1, le=limits.RATE_COST_MAX), Whole] | None = Field(
        None, description="How much of its rate a start takes: tokens, cents."
    )
    fairness_key: Text | None = None
    fairness_weight: Annotated[int, Field(ge=1, le=limits.FAIRNESS_WEIGHT_MAX), Whole] | None = None


class SubmitBody(_JobOptions):
    """A job: its payload, and the options of `submit`."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                _AT_ONE_TIME,
                _WEIGHTED,
                excludes("dedup_key", "dedup_by"),
                needs("trigger_rule", "depends_on", unless=(None, "all_success")),
            ],
            "examples": [{"payload": {"user_id": 7, "day": "2026-11-15"}, "priority": "high", "subject": "user:7"}],
        }
    )

    run_at: Moment | None = None
    delay: Delay | None = Field(None, description="Seconds from now; instead of run_at.")
    expires: Span | Moment | None = Field(
        None, description="Seconds from now, or a time: cancelled if it has not started by then."
    )
    job_id: Id | None = Field(
        None, examples=[EXAMPLE_ID], description="Id of the job: submitting it again returns the same job."
    )
    dedup_key: Text | None = None
    dedup_by: Annotated[list[Text], Field(min_length=1, max_length=limits.DEDUP_FIELDS_MAX)] | None = Field(
        None, description="Fields of the payload that make the key; instead of dedup_key."
    )
    dedup_for: Literal["active", "forever"] | Span | None = None
    dedup: Literal["return", "error", "replace"] | None = Field(
        None, description="What a repeat does: return the job, fail if the payload differs, or replace it."
    )
    debounce_max: Span | None = Field(
        None, description="With replace: seconds after the first submit beyond which the job is not put off."
    )
    reuse: bool | Span | None = Field(None, description="Reuse the result of an identical job, if there is one.")
    depends_on: Annotated[list[Id], Field(max_length=limits.DEPENDENCIES_MAX)] | None = None
    trigger_rule: Literal["all_success", "all_done", "one_success", "one_failed", "none_failed"] | None = None
    on_dependency_failure: Literal["cancel", "fail"] | None = None
    parent: Id | None = None
    stage: Annotated[Stage, Field(min_length=1)] | None = None
    created_by: Word | None = Field(None, description="Default: the name of the key.")

    def options(self) -> SubmitOptions:
        return cast(SubmitOptions, self._given("payload", "job_type"))


class BatchJob(SubmitBody):
    """One job of a batch."""

    job_type: Name


class BatchBody(_Body):
    """Up to 100 jobs, each with its type. Each is checked on its own: a mistake in one does not affect the others."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "jobs": [
                        {"job_type": "daily_summary", "payload": {"user_id": 7, "day": "2026-11-15"}},
                        {"job_type": "daily_summary", "payload": {"user_id": 8, "day": "2026-11-15"}, "delay": 60},
                    ]
                }
            ]
        }
    )

    jobs: list[dict[str, Any]] = Field(
        min_length=1, max_length=BATCH_MAX, description="Each as the body of POST /jobs/{type}, with `job_type`."
    )


class ReasonBody(_Body):
    """The reason, kept in the history of the job."""

    reason: Reason | None = None


class PauseBody(_Body):
    """Why, and until when: without a time, until someone resumes it."""

    reason: Reason | None = None
    until: Moment | None = Field(None, description="It resumes by itself then.")


ForgetSteps = Annotated[bool, Field(description="Start without the answers that `ctx.once` has recorded.")]


EventId = Annotated[
    Word, Field(description="Sending again with this id has no further effect; one is made if there is none.")
]


class EventBody(_Body):
    """The payload of an event."""

    payload: Any = Field(None, description="What ctx.wait_for_event returns.")
    event_id: EventId | None = None


class KeyEventBody(EventBody):
    """An event for whichever job waits for a correlation key."""

    key: Text
    name: Word


class RetryBody(ReasonBody):
    """The reason, and whether to start without recorded steps."""

    forget_steps: ForgetSteps = False


class PatchBody(_Body):
    """A new priority, time or payload for a job."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                _AT_ONE_TIME,
                {
                    "anyOf": [
                        *(given(**{name: SOMETHING}) for name in ("priority", "run_at", "delay")),
                        {"required": ["payload"]},
                    ]
                },
            ],
            "examples": [{"priority": "urgent"}],
        }
    )

    priority: Priority | None = None
    run_at: Moment | None = None
    delay: Delay | None = Field(None, description="Seconds from now; instead of run_at. 0: now.")
    payload: Any = Field(None, description="Of a job that waits; must match the schema of the job type.")
    reason: Reason | None = None

    @property
    def has_payload(self) -> bool:
        return "payload" in self.model_fields_set

    @model_validator(mode="after")
    def _says_what(self) -> PatchBody:
        if self.priority is None and self.run_at is None and self.delay is None and not self.has_payload:
            raise ValueError("give what to change: priority, run_at, delay or payload")
        if self.run_at is not None and self.delay is not None:
            raise ValueError("run_at and delay are mutually exclusive: give one")
        return self


class BulkFilter(_Body):
    """Conditions that a job must match, all of them."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [given(**{name: SOMETHING}) for name in (*JobFilter.__annotations__, _UNTIL)]}
    )

    status: Annotated[Status, Field(strict=False)] | None = None
    job_type: Name | None = None
    queue: Name | None = None
    subject: Text | None = None
    worker: Text | None = None
    tag: Text | None = None
    created_by: Text | None = None
    root: Id | None = Field(None, description="Only jobs below this one in its tree.")
    content_hash: Text | None = None
    created_until: Moment | None = Field(None, description="Only jobs that were submitted until then.")

    @model_validator(mode="after")
    def _has_one(self) -> BulkFilter:
        if not self._given():
            raise ValueError("give one or more conditions, such as job_type")
        return self


class BulkBody(_Body):
    """Jobs by id, or by a filter."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [given(job_ids=SOMETHING), given(filter=SOMETHING)],
            "examples": [{"filter": {"job_type": "embedding", "status": "pending"}, "dry_run": True}],
        }
    )

    job_ids: Annotated[list[Id], Field(min_length=1, max_length=limits.BULK_MAX)] | None = None
    filter: BulkFilter | None = None
    dry_run: bool = Field(False, description="Only count what would be changed.")
    reason: Reason | None = None

    @model_validator(mode="after")
    def _says_which(self) -> BulkBody:
        if (self.job_ids is None) == (self.filter is None):
            raise ValueError("give job_ids or filter, one of the two")
        return self

    def conditions(self) -> dict[str, Any]:
        return {} if self.filter is None else self.filter._given()


class BulkRetryBody(BulkBody):
    """Jobs by id, or by a filter, and whether they start without recorded steps."""

    forget_steps: ForgetSteps = False


class UnmarkBody(_Body):
    field: Mark = Field(description="The path of the field, as `GET /types` lists it.")


class RunLimitBody(_Body):
    """What holds at run time; null, or leaving a field out, removes the limit."""

    concurrency: Annotated[int, Field(ge=1, le=limits.RUN_CONCURRENCY_MAX), Whole] | None = Field(
        None, description="How many jobs run at once, over all workers."
    )
    rate: Annotated[str, Field(min_length=3, max_length=20, json_schema_extra={"pattern": _RATE})] | None = Field(
        None, description="How many jobs start in a span of time, or what they cost: 100/m.", examples=["100/m"]
    )


class LimitBody(_Body):
    """How many pending jobs a queue accepts before it rejects more; null for no limit."""

    max_pending: Annotated[int, Field(ge=1, le=limits.MAX_PENDING_MAX), Whole] | None


class ScheduleBody(_JobOptions):
    """When to run, and what."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [_WEIGHTED, needs("dedup_for", "dedup_key")],
            "examples": [
                {"cron": "30 3 * * *", "job_type": "daily_summary", "payload": {"user_id": 7, "day": "today"}}
            ],
        }
    )

    cron: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra={"pattern": _CRON})]
    job_type: Name
    timezone: Annotated[str, Field(min_length=1, max_length=100, json_schema_extra=NO_NUL)] = "UTC"
    missed: Literal["skip", "one", "all"] = Field(
        "one", description="What to do about ticks missed while no worker ran."
    )
    overlap: Literal["queue", "skip", "replace"] = Field(
        "queue", description="What a tick does while the job of the last one is active; replace cancels that job."
    )
    jitter: Annotated[float, Field(ge=0, le=limits.JITTER_SECONDS_MAX, allow_inf_nan=False)] = Field(
        0.0, description="Seconds by which a job may be due after its tick: each tick's by its own share."
    )
    starts_at: Moment | None = Field(None, description="No tick before this.")
    ends_at: Moment | None = Field(None, description="No tick after this.")
    dedup_key: Text | None = Field(None, description="While a job has this key, a tick submits none.")
    dedup_for: Literal["active", "forever"] | Span | None = Field(None, description="A window counts from the tick.")
    reuse: bool | Span | None = Field(None, description="Reuse the result of an identical job, if there is one.")

    def options(self) -> ScheduleOptions:
        return cast(ScheduleOptions, self._given("payload", "cron", "job_type", *TimingOptions.__annotations__))


class BackfillBody(_Body):
    """The span whose ticks get their jobs."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"from": "2026-11-01T00:00:00Z", "to": "2026-11-08T00:00:00Z"}]}
    )

    from_: Moment = Field(alias="from", description="The first instant of the span.")
    to: Moment = Field(description="The last instant; not in the future.")
    dry_run: bool = Field(False, description="Only tell which jobs would be submitted.")


class DeadRetryBody(_Body):
    """Which dead letters to retry; without either, all."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"job_type": "embedding", "error_type": "TimeoutError"}]})

    job_type: Name | None = None
    error_type: Text | None = None
    forget_steps: ForgetSteps = False


TYPES_MAX = 200  # per worker
QUEUES_MAX = 50  # per worker; a claim asks each for each type
LINES_MAX = 200  # of a log, in one request
STUCK_MAX = 100  # jobs that one heartbeat names
# Stricter than checks.UUID, which paths accept: format "uuid" in OpenAPI means the form with hyphens.
_ID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_EXAMPLE_TOKEN = "1.5f0c1f2e3d4c5b6a79880910a1b2c3d4.9c8b7a69584736251403f2e1d0c9b8a7"  # noqa: S105

Token = Annotated[
    str,
    Field(
        min_length=1,
        max_length=TOKEN_LENGTH_MAX,
        description="Token of the claim.",
        examples=[_EXAMPLE_TOKEN],
        json_schema_extra=NO_NUL,
    ),
]
Count = Annotated[int, Field(ge=1, le=1_000_000), Whole]
Metrics = Annotated[
    dict[Annotated[str, Field(pattern=r"^[^\x00]*$")], Annotated[float, Field(allow_inf_nan=False)]],
    Field(max_length=limits.METRICS_MAX, json_schema_extra=NO_OTHERS),
]


class _RemoteBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RegisterBody(_RemoteBody):
    """The worker, and what it works on."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"worker_id": "gpu-7", "job_types": ["embedding"], "queues": ["default"], "version": "1.4.0"}]
        }
    )

    worker_id: Name
    job_types: Annotated[list[NewType], Field(min_length=1, max_length=TYPES_MAX)]
    queues: Annotated[list[Name], Field(min_length=1, max_length=QUEUES_MAX)] = ["default"]
    version: Word = "0"
    concurrency: Count = Field(1, description="How many jobs it runs at once; for display only.")
    limits: dict[Name, Count] = Field(
        {},
        description="Maximum number of jobs it runs at once, by type.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )
    schemas: dict[Name, dict[str, Any]] = Field(
        {},
        description="JSON Schema of the payload, by type; submissions are checked against it.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )
    sensitive: dict[Name, Marks] = Field(
        {},
        description="Paths of sensitive payload fields, by type, in addition to those that the schema marks.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )
    versions: dict[Name, Count] = Field(
        {},
        description="Newest payload version it can read, by type; default: any.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )


class HeldClaim(_RemoteBody):
    job_id: Annotated[str, Field(pattern=_ID, json_schema_extra={"format": "uuid"}, examples=[EXAMPLE_ID])]
    token: Token


class BlockedBody(_RemoteBody):
    """A handler keeps the worker's event loop from running."""

    seconds: Span = Field(description="For how long.")
    job_type: Name | None = None
    job_id: Annotated[str, Field(pattern=_ID, json_schema_extra={"format": "uuid"})] | None = None
    where: Annotated[str, Field(max_length=limits.REASON_LENGTH_MAX, json_schema_extra=NO_NUL)] | None = Field(
        None, description="The line of code that it is at."
    )


class HeartbeatBody(_RemoteBody):
    """Reports that a worker is alive, and the claims it holds."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"jobs": [{"job_id": EXAMPLE_ID, "token": _EXAMPLE_TOKEN}]}]}
    )

    jobs: Annotated[list[HeldClaim], Field(max_length=limits.HEARTBEAT_JOBS_MAX)] = []
    state: Literal["working", "stopping", "stopped"] = Field(
        default="working", description="stopping: it claims no more jobs; stopped: it leaves and is no longer listed."
    )
    blocked: BlockedBody | None = Field(default=None, description="Shown to operators, who see which handler it is.")
    stuck: Annotated[
        list[Annotated[str, Field(pattern=_ID, json_schema_extra={"format": "uuid"})]],
        Field(max_length=STUCK_MAX),
    ] = Field(default=[], description="Jobs that have ended, but whose handlers do not stop and keep their slots.")


class ClaimBody(_RemoteBody):
    """How many jobs, and how long to wait for one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"limit": 1, "wait_seconds": 30, "request_id": "6b1f2c9a-0001"}]}
    )

    limit: Annotated[int, Field(ge=0, le=limits.REMOTE_CLAIMS_MAX), Whole] = Field(
        default=1,
        description="Maximum number of jobs. 0: only those claimed by an earlier request with this request_id.",
    )
    wait_seconds: Annotated[float, Field(ge=0, le=limits.LONG_POLL_SECONDS_MAX, allow_inf_nan=False)] = 0.0
    request_id: Annotated[str, Field(min_length=1, max_length=limits.NAME_LENGTH_MAX, pattern=r"^[!-~]+$")] | None = (
        Field(
            default=None,
            description="Your own id, different for each claim: a retry gets the same jobs, with their tokens.",
        )
    )


class LogLine(_RemoteBody):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    message: Annotated[str, Field(max_length=64 * limits.KIB, json_schema_extra=NO_NUL)]


class _Said(_RemoteBody):
    """Common fields of every report on a running attempt."""

    token: Token
    metrics: Metrics = Field({}, description="Metrics to store with the job.")
    logs: Annotated[list[LogLine], Field(max_length=LINES_MAX)] = Field([], description="Lines for the job's log.")


class ProgressBody(_Said):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "progress": 0.5, "stage": "writing"}]}
    )

    progress: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    stage: Stage | None = None


class OutputBody(_RemoteBody):
    """Entries that a running handler has streamed."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "first": 1, "entries": ["Once ", "upon "]}]}
    )

    token: Token
    first: Annotated[int, Field(ge=1, le=limits.OUTPUT_ENTRIES_MAX), Whole] = Field(
        description="The number of the first of these entries: 1 for the first of the attempt, then one more for each."
    )
    entries: Annotated[list[Any], Field(min_length=1, max_length=limits.OUTPUT_REQUEST_ENTRIES_MAX)] = Field(
        description="JSON values. Send them again as they were if there was no answer."
    )


class StepBody(_RemoteBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "name": "charge"}]})

    token: Token
    name: Word
    record: bool = Field(False, description="Record `answer`, unless the step has one.")
    answer: Any = None


class WaitBody(_RemoteBody):
    """A sleep, or a wait for an event."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "name": "cooldown", "seconds": 60}]}
    )

    token: Token
    name: Word = Field(description="The name of this wait, which tells it from others of the job.")
    event: Word | None = Field(None, description="The event to wait for; without it, this is a sleep.")
    key: Text | None = None
    seconds: Delay | None = Field(None, description="How long to sleep, or the timeout of the event.")
    json_schema: Annotated[str, Field(max_length=limits.EVENT_SCHEMA_BYTES_MAX)] | None = None


class ExtendBody(_RemoteBody):
    model_config = ConfigDict(json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN}]})

    token: Token
    seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = Field(
        None, description="Seconds from now; default: the server's lease."
    )


class CompleteBody(_Said):
    model_config = ConfigDict(json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "result": {"sent": True}}]})

    result: Any = None


class Failure(_RemoteBody):
    """What went wrong, as text for people."""

    type: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra=NO_NUL)] = "Error"
    message: Annotated[str, Field(max_length=64 * limits.KIB, json_schema_extra=NO_NUL)] = ""
    traceback: Annotated[str, Field(max_length=256 * limits.KIB, json_schema_extra=NO_NUL)] = ""


class FailBody(_Said):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"token": _EXAMPLE_TOKEN, "error": {"type": "Timeout", "message": "no answer in 30 s"}}]
        }
    )

    error: Failure = Field(default_factory=Failure)
    retry: bool = Field(True, description="false: it becomes a dead letter at once, even if attempts are left.")
    retry_after: Delay | None = Field(None, description="Seconds; default: the backoff of the job type.")


class OutcomeBody(_Said):
    """An outcome that is neither success nor failure."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "outcome": "snooze", "seconds": 300}]}
    )

    outcome: Literal["snooze", "give_back", "cancel", "sleep", "wait_for_event"] = Field(
        description="snooze: run it again after `seconds`, without using up an attempt; give_back: let another worker"
        " run it; cancel: it is no longer needed; sleep, wait_for_event: run it again when the wait `name` is over, for"
        " an event having `seen` so many."
    )
    name: Word | None = None
    seen: Annotated[int, Field(ge=0), Whole] | None = None
    seconds: Delay = 0.0
    reason: Reason | None = None
