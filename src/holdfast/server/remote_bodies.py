"""What remote workers send. A field that does not exist is refused by name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast import limits
from holdfast.server.claim_tokens import TOKEN_LENGTH_MAX
from holdfast.server.fields import EXAMPLE_ID, NO_NUL, NO_OTHERS, Delay, Name, NewType, Reason, Stage, Whole, Word

TYPES_MAX = 200  # of one worker
QUEUES_MAX = 50  # of one worker; a claim asks each for each type
LINES_MAX = 200  # of a log, in one request
_EXAMPLE_TOKEN = "1.5f0c1f2e3d4c5b6a79880910a1b2c3d4.9c8b7a69584736251403f2e1d0c9b8a7"  # noqa: S105
_ID = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"

Token = Annotated[
    str,
    Field(
        min_length=1,
        max_length=TOKEN_LENGTH_MAX,
        description="Of the claim.",
        examples=[_EXAMPLE_TOKEN],
        json_schema_extra=NO_NUL,
    ),
]
Count = Annotated[int, Field(ge=1, le=1_000_000), Whole]
Metrics = Annotated[
    dict[Annotated[str, Field(pattern=r"^[^\x00]*$")], Annotated[float, Field(allow_inf_nan=False)]],
    Field(max_length=limits.METRICS_MAX, json_schema_extra=NO_OTHERS),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class RegisterBody(_Body):
    """Who works, and on what."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"worker_id": "gpu-7", "job_types": ["embedding"], "queues": ["default"], "version": "1.4.0"}]
        }
    )

    worker_id: Name
    job_types: Annotated[list[NewType], Field(min_length=1, max_length=TYPES_MAX)]
    queues: Annotated[list[Name], Field(min_length=1, max_length=QUEUES_MAX)] = ["default"]
    version: Word = "0"
    concurrency: Count = Field(1, description="How many jobs it runs at once, for people to see.")
    limits: dict[Name, Count] = Field(
        {},
        description="Types of which it holds only so many at once.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )
    schemas: dict[Name, dict[str, Any]] = Field(
        {},
        description="JSON Schema of the payload, by type: submits are checked against it.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )
    versions: dict[Name, Count] = Field(
        {},
        description="The newest payload version that it reads of a type; of others, any.",
        max_length=TYPES_MAX,
        json_schema_extra=NO_OTHERS,
    )


class HeldClaim(_Body):
    job_id: Annotated[str, Field(pattern=_ID, json_schema_extra={"format": "uuid"}, examples=[EXAMPLE_ID])]
    token: Token


class HeartbeatBody(_Body):
    """That a worker lives, and what it holds."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"jobs": [{"job_id": EXAMPLE_ID, "token": _EXAMPLE_TOKEN}]}]}
    )

    jobs: Annotated[list[HeldClaim], Field(max_length=limits.HEARTBEAT_JOBS_MAX)] = []
    state: Literal["working", "stopping", "stopped"] = Field(
        default="working", description="stopping: it takes no more jobs; stopped: it goes, and is listed no longer."
    )


class ClaimBody(_Body):
    """How many jobs, and how long to wait for one."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"limit": 1, "wait_seconds": 30, "request_id": "6b1f2c9a-0001"}]}
    )

    limit: Annotated[int, Field(ge=0, le=limits.REMOTE_CLAIMS_MAX), Whole] = Field(
        default=1, description="How many at most. 0: only what an earlier request of this request_id took."
    )
    wait_seconds: Annotated[float, Field(ge=0, le=limits.LONG_POLL_SECONDS_MAX, allow_inf_nan=False)] = 0.0
    request_id: Annotated[str, Field(min_length=1, max_length=limits.NAME_LENGTH_MAX, pattern=r"^[!-~]+$")] | None = (
        Field(
            default=None,
            description="Of your choice, another for each claim: a repeat gets the same jobs, with their tokens.",
        )
    )


class LogLine(_Body):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"] = "INFO"
    message: Annotated[str, Field(max_length=64 * limits.KIB, json_schema_extra=NO_NUL)]


class _Said(_Body):
    """What goes with everything that is said of a running attempt."""

    token: Token
    metrics: Metrics = Field({}, description="Figures to keep with the job.")
    logs: Annotated[list[LogLine], Field(max_length=LINES_MAX)] = Field([], description="Lines for the job's log.")


class ProgressBody(_Said):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "progress": 0.5, "stage": "writing"}]}
    )

    progress: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    stage: Stage | None = None


class ExtendBody(_Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN}]})

    token: Token
    seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = Field(
        None, description="From now on; the server's lease, unless something else is said."
    )


class CompleteBody(_Said):
    model_config = ConfigDict(json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "result": {"sent": True}}]})

    result: Any = None


class Failure(_Body):
    """What went wrong, as text: nothing is ever made of it but a page."""

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
    retry: bool = Field(True, description="false: it is a dead letter at once, whatever attempts are left.")
    retry_after: Delay | None = Field(None, description="Seconds; the job type's backoff, unless something is said.")


class OutcomeBody(_Said):
    """An end that is neither a success nor a failure."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token": _EXAMPLE_TOKEN, "outcome": "snooze", "seconds": 300}]}
    )

    outcome: Literal["snooze", "give_back", "cancel"] = Field(
        description="snooze: again after `seconds`, which costs no attempt; give_back: another worker shall run it;"
        " cancel: it need not be done."
    )
    seconds: Delay = 0.0
    reason: Reason | None = None
