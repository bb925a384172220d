"""Every error a user can meet. All derive from HoldfastError and say what to do next."""

from __future__ import annotations

from collections.abc import Sequence


class HoldfastError(Exception):
    """The root of every error that Holdfast raises."""


# Submitting


class InvalidSubmission(HoldfastError, ValueError):
    """What was submitted cannot be accepted; nothing was stored."""


class UnknownJobType(InvalidSubmission):
    """No handler of this name is registered here, and no worker has ever announced one."""


class InvalidPayload(InvalidSubmission):
    """The payload does not fit the handler's model, or is not JSON that every engine keeps unchanged. `places` has what
    is wrong, by the path in the payload; it is empty where no place is to blame."""

    def __init__(self, message: str, *, places: Sequence[tuple[tuple[str | int, ...], str]] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)


class PayloadTooLarge(InvalidPayload):
    """The payload is over the limit. Store the data elsewhere and submit its name."""


class InvalidOption(InvalidSubmission):
    """An option has a value that cannot be meant."""


class UnknownDependency(InvalidSubmission):
    """`depends_on` or `parent` names a job that does not exist."""


class DependencyCycle(InvalidSubmission):
    """Jobs that were submitted wait for one another, or one for itself: none of them could ever start."""


class ChildMismatch(InvalidSubmission):
    """A child of this key is there already and is a job of another type, or this run submitted it with another payload.
    Give the other one another key."""


class DedupConflict(InvalidSubmission):
    """The dedup key is taken by a job with another payload, and `dedup_conflict="error"` was asked for."""


class QueueFull(InvalidSubmission):
    """The queue holds as many pending jobs as it may. Submit again later."""

    def __init__(self, message: str, *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


class InvalidSchedule(InvalidSubmission):
    """A schedule's cron expression, time zone or policy cannot be meant."""


# Reading and changing jobs


class JobNotFound(HoldfastError, LookupError):
    """No job has this id."""


class ArtifactNotFound(HoldfastError, LookupError):
    """The job keeps no file of this name."""


class ScheduleNotFound(HoldfastError, LookupError):
    """No schedule has this name."""


class KeyNotFound(HoldfastError, LookupError):
    """No API key has this id."""


class IllegalTransition(HoldfastError):
    """The job's state does not allow this."""


class VersionConflict(HoldfastError):
    """The job changed since it was read: read it again and decide anew."""


class JobFailed(HoldfastError):
    """The awaited job is out of attempts."""

    def __init__(self, message: str, *, job_id: str = "", last_error: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.last_error = last_error


class JobCancelled(HoldfastError):
    """The awaited job was cancelled."""

    def __init__(self, message: str, *, job_id: str = "", reason: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.reason = reason


class ResultTimeout(HoldfastError, TimeoutError):
    """The awaited job did not end in time. It goes on; ask again later."""


class ResultGone(HoldfastError, LookupError):
    """The job completed, but retention has been there: the archive keeps its figures, not its result."""


class RowsWithdrawn(HoldfastError):
    """The job whose rows are being read runs again, or has run again since. Read them again once it has completed."""


# Inside a handler


class ClaimLost(HoldfastError):
    """This run no longer holds its job: another worker has it, or it was cancelled. Stop; nothing is recorded."""


class EffectFailed(HoldfastError):
    """A statement of `ctx.transaction()` failed in the commit of the completion: nothing of either was applied."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class InvalidRow(HoldfastError, ValueError):
    """A row does not fit its result table, or is not what every engine keeps unchanged."""


class DuplicateRow(InvalidRow):
    """One run of a job has put two rows of the same key: give each its own, or put one of them."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class ResultTooLarge(HoldfastError):
    """The handler's result is over the hard limit. Store it as a file and return its name."""


class InvalidResult(HoldfastError):
    """The handler returned something that is not JSON."""


# Setting up and operating


class ConfigurationError(HoldfastError):
    """A setting is missing or cannot be meant."""


class UnknownTable(ConfigurationError):
    """No result table of this name was ever declared here. Open the app whose handlers declare it once."""


class InvalidPipeline(ConfigurationError):
    """The stages of a pipeline do not make one."""


class NotOpen(HoldfastError, RuntimeError):
    """The app is used outside `async with app:`."""


class SchemaMismatch(HoldfastError):
    """The store has the schema of another release of Holdfast, or none and may not be given one."""


class StoreError(HoldfastError):
    """The store could not do what was asked. Nothing was acknowledged that is not stored."""


class StoreBusy(StoreError):
    """Other processes held the store for longer than the busy timeout. Repeating is safe."""


class StoreUnavailable(StoreError):
    """The server cannot be reached, or is not ready. Repeating is safe."""


class StoreFull(StoreError):
    """No space is left. New jobs are refused; running ones can still finish. Free some disk space."""


class StoreUnsafe(StoreError):
    """The store cannot keep its promises where it is (network file system, no fsync, foreign file)."""


class StoreGone(StoreError):
    """The store vanished or was replaced under a running app."""


class ForkedStore(StoreError):
    """A store was carried over fork(). Open the app anew in the child."""


class StoreMoved(StoreError):
    """This queue moves, or has moved, to another store, or a move into this one has not finished."""


class MoveFailed(HoldfastError):
    """A queue could not be moved to another store. Nothing is lost: the message says how to go on."""
