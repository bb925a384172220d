"""Durable jobs for Python: start on a file, and never lose one."""

from holdfast.app import Holdfast
from holdfast.context import BlockingContext, Context
from holdfast.errors import (
    ArtifactNotFound,
    ClaimLost,
    ConfigurationError,
    DedupConflict,
    EffectFailed,
    HoldfastError,
    IllegalTransition,
    InvalidOption,
    InvalidPayload,
    InvalidResult,
    InvalidSubmission,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotOpen,
    PayloadTooLarge,
    ResultTimeout,
    StoreError,
    StoreFull,
    UnknownDependency,
    UnknownJobType,
    VersionConflict,
)
from holdfast.handlers import JobHandler
from holdfast.job import HistoryEntry, Job, JobHandle
from holdfast.lifecycle import Event, Status
from holdfast.outcomes import Cancel, Discard, Retry, Snooze
from holdfast.retry import Backoff

__all__ = [
    "ArtifactNotFound",
    "Backoff",
    "BlockingContext",
    "Cancel",
    "ClaimLost",
    "ConfigurationError",
    "Context",
    "DedupConflict",
    "Discard",
    "EffectFailed",
    "Event",
    "HistoryEntry",
    "Holdfast",
    "HoldfastError",
    "IllegalTransition",
    "InvalidOption",
    "InvalidPayload",
    "InvalidResult",
    "InvalidSubmission",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobHandle",
    "JobHandler",
    "JobNotFound",
    "NotOpen",
    "PayloadTooLarge",
    "ResultTimeout",
    "Retry",
    "Snooze",
    "Status",
    "StoreError",
    "StoreFull",
    "UnknownDependency",
    "UnknownJobType",
    "VersionConflict",
]
