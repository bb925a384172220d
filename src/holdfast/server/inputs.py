"""What clients send: the fields of each body, checked strictly; a field that does not exist is refused by name."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, cast

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from holdfast import limits
from holdfast.schedules import ScheduleOptions
from holdfast.server import fields
from holdfast.server.fields import Delay, Name, Reason, Span, Stage, Tag, Text, Timeout, Whole, Word
from holdfast.submission import SubmitOptions

BATCH_MAX = 100  # jobs of one request: each is answered for itself


def _moment(value: Any) -> Any:
    """A text of RFC 3339; a number would be taken for seconds by some and for milliseconds by others."""
    if not isinstance(value, str):
        raise ValueError("write a time as 2026-11-15T09:30:00Z")
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("write a time as 2026-11-15T09:30:00Z") from None


Moment = Annotated[AwareDatetime, BeforeValidator(_moment, json_schema_input_type=AwareDatetime)]
Priority = Annotated[int, Field(ge=0, le=100), Whole] | Literal["low", "normal", "high", "urgent"]
Id = Annotated[str, Field(json_schema_extra={"format": "uuid"})]
_CRON = r"^\s*(@[a-z]+.*|\S+(\s+\S+){4})\s*$"  # no more than its form: five fields, or a word such as @daily
_WEIGHTED = fields.needs("fairness_weight", "fairness_key", unless=(None, 1))
_AT_ONE_TIME = fields.excludes("run_at", "delay")


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    def _given(self, *left_out: str) -> dict[str, Any]:
        """Fields that were sent; null is the same as leaving one out."""
        found = {name: getattr(self, name) for name in self.model_fields_set if name not in left_out}
        return {name: value for name, value in found.items() if value is not None}


class _JobOptions(_Body):
    """How a job is submitted, once or by a schedule."""

    payload: Any = Field(None, description="What the handler gets; it has to fit the job type's schema.")
    priority: Priority | None = Field(None, description="0 to 100, or a name: 25, 50, 75, 100. Higher goes first.")
    queue: Name | None = None
    subject: Text | None = Field(None, description="What the job is about, to find it by.")
    tags: Annotated[list[Tag], Field(max_length=limits.TAGS_MAX)] | None = None
    content_hash: Text | None = None
    max_attempts: Annotated[int, Field(ge=1, le=limits.MAX_ATTEMPTS_MAX), Whole] | None = None
    timeout: Timeout | None = Field(None, description="Seconds.")
    concurrency_key: Text | None = None
    rate_key: Text | None = None
    fairness_key: Text | None = None
    fairness_weight: Annotated[int, Field(ge=1, le=limits.FAIRNESS_WEIGHT_MAX), Whole] | None = None


class SubmitBody(_JobOptions):
    """A job: its payload, and the options of `submit`."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                _AT_ONE_TIME,
                _WEIGHTED,
                fields.needs("dedup_for", "dedup_key"),
                fields.needs("trigger_rule", "depends_on", unless=(None, "all_success")),
            ],
            "examples": [{"payload": {"user_id": 7, "day": "2026-11-15"}, "priority": "high", "subject": "user:7"}],
        }
    )

    run_at: Moment | None = None
    delay: Delay | None = Field(None, description="Seconds from now; instead of run_at.")
    job_id: Id | None = Field(
        None, examples=[fields.EXAMPLE_ID], description="The id that it shall have: a repeat then returns the same job."
    )
    dedup_key: Text | None = None
    dedup_for: Literal["active", "forever"] | Span | None = None
    dedup_conflict: Literal["return", "error"] | None = None
    reuse: bool | Span | None = Field(None, description="Take the result of an identical job, if there is one.")
    depends_on: Annotated[list[Id], Field(max_length=limits.DEPENDENCIES_MAX)] | None = None
    trigger_rule: Literal["all_success", "all_done", "one_success", "none_failed"] | None = None
    on_dependency_failure: Literal["cancel", "fail"] | None = None
    parent: Id | None = None
    stage: Annotated[Stage, Field(min_length=1)] | None = None
    created_by: Word | None = Field(None, description="The key's name, unless something else is said.")

    def options(self) -> SubmitOptions:
        return cast(SubmitOptions, self._given("payload", "job_type"))


class BatchJob(SubmitBody):
    """One of a batch."""

    job_type: Name


class BatchBody(_Body):
    """Up to 100 jobs, each with its type. They are looked at one by one: a mistake in one keeps none of the others."""

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
    """Why, as the job's history shall keep it."""

    reason: Reason | None = None


class PatchBody(_Body):
    """A job's other place in line, or other time."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                _AT_ONE_TIME,
                {"anyOf": [fields.given(**{name: fields.SOMETHING}) for name in ("priority", "run_at", "delay")]},
            ],
            "examples": [{"priority": "urgent"}],
        }
    )

    priority: Priority | None = None
    run_at: Moment | None = None
    delay: Delay | None = Field(None, description="Seconds from now; instead of run_at. 0: now.")
    reason: Reason | None = None

    @model_validator(mode="after")
    def _says_what(self) -> PatchBody:
        if self.priority is None and self.run_at is None and self.delay is None:
            raise ValueError("name what to change: priority, run_at or delay")
        if self.run_at is not None and self.delay is not None:
            raise ValueError("run_at and delay exclude each other: give one")
        return self


class LimitBody(_Body):
    """How many pending jobs a queue takes before it refuses more; null: as many as come."""

    max_pending: Annotated[int, Field(ge=1, le=limits.MAX_PENDING_MAX), Whole] | None


class ScheduleBody(_JobOptions):
    """When, and what."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [_WEIGHTED],
            "examples": [
                {"cron": "30 3 * * *", "job_type": "daily_summary", "payload": {"user_id": 7, "day": "today"}}
            ],
        }
    )

    cron: Annotated[str, Field(min_length=1, max_length=200, json_schema_extra={"pattern": _CRON})]
    job_type: Name
    timezone: Annotated[str, Field(min_length=1, max_length=100, json_schema_extra=fields.NO_NUL)] = "UTC"
    missed: Literal["skip", "one", "all"] = Field("one", description="Of ticks at which no worker ran.")

    def options(self) -> ScheduleOptions:
        return cast(ScheduleOptions, self._given("payload", "cron", "job_type", "timezone", "missed"))


class DeadRetryBody(_Body):
    """Which dead letters run again; without either, all."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"job_type": "embedding", "error_type": "TimeoutError"}]})

    job_type: Name | None = None
    error_type: Text | None = None
