"""Every error that a user can encounter. All derive from BackstayError, and their messages say what to do next."""

from __future__ import annotations

from collections.abc import Sequence


class BackstayError(Exception):
    """The base class of every error that Backstay raises."""


# Submitting


class InvalidSubmission(BackstayError, ValueError):
    """The submission is invalid; nothing was stored."""


class UnknownJobType(InvalidSubmission):
    """No handler with this name is registered here, and no worker has ever announced one."""


class InvalidPayload(InvalidSubmission):
    """The payload does not match the handler's model, or is not JSON that every engine can store unchanged. `places`
    lists what is wrong by path in the payload; it is empty if the error has no particular place."""

    def __init__(self, message: str, *, places: Sequence[tuple[tuple[str | int, ...], str]] = ()) -> None:
        super().__init__(message)
        self.places = tuple(places)


class PayloadTooLarge(InvalidPayload):
    """The payload exceeds the size limit. Store the data elsewhere and submit its name."""


class InvalidOption(InvalidSubmission):
    """An option has an invalid value. `option` is its name, where there is one to blame."""

    def __init__(self, message: str, *, option: str | None = None) -> None:
        super().__init__(message)
        self.option = option


class UnknownDependency(InvalidSubmission):
    """`depends_on` or `parent` names a job that does not exist."""


class DependencyCycle(InvalidSubmission):
    """The submitted jobs wait for one another, or one waits for itself: none of them could ever start."""


class ChildMismatch(InvalidSubmission):
    """A child with this key already exists and has another type, or this run submitted it with another payload. Use a
    different key."""


class DedupConflict(InvalidSubmission):
    """The dedup key belongs to a job with another payload, and `dedup="error"` was set."""


class QueueFull(InvalidSubmission):
    """The queue has reached its limit of pending jobs. Submit again later."""

    def __init__(self, message: str, *, queue: str = "") -> None:
        super().__init__(message)
        self.queue = queue


class InvalidSchedule(InvalidSubmission):
    """A schedule's cron expression, time zone or policy is invalid."""


# Reading and changing jobs


class JobNotFound(BackstayError, LookupError):
    """No job has this id."""


class ArtifactNotFound(BackstayError, LookupError):
    """The job has no file with this name."""


class ScheduleNotFound(BackstayError, LookupError):
    """No schedule has this name."""


class KeyNotFound(BackstayError, LookupError):
    """No API key has this id."""


class IllegalTransition(BackstayError):
    """The job's state does not allow this change."""


class VersionConflict(BackstayError):
    """The job has changed since it was read: read it again before you decide."""


class JobFailed(BackstayError):
    """The awaited job failed for good."""

    def __init__(self, message: str, *, job_id: str = "", last_error: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.last_error = last_error


class JobCancelled(BackstayError):
    """The awaited job was cancelled."""

    def __init__(self, message: str, *, job_id: str = "", reason: str | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id
        self.reason = reason


class ResultTimeout(BackstayError, TimeoutError):
    """The awaited job did not end in time. It continues to run; ask again later."""


class ResultGone(BackstayError, LookupError):
    """The job completed, but retention has archived it: the archive keeps its figures, not its result."""


class RowsWithdrawn(BackstayError):
    """The job whose rows are being read is running again, or has run again since. Read the rows again once it has
    completed."""


# Inside a handler


class EventTimeout(BackstayError, TimeoutError):
    """The event that `ctx.wait_for_event` waited for did not come in time. It is recorded: the job's next attempts get
    it again, unless it is retried without its steps."""


class InvalidEvent(BackstayError, ValueError):
    """The payload of an event is not what the wait has declared, or is not JSON that every engine can store."""


class EventsFull(BackstayError):
    """The job or the key has as many events as it may have, or too many jobs wait for the key."""


class EventRefused(BackstayError):
    """The job has ended, so that it receives no events."""


class ClaimLost(BackstayError):
    """This run no longer holds its job: another worker has it, it was cancelled, or its handler has returned. Stop;
    nothing is recorded."""


class EffectFailed(BackstayError):
    """A statement of `ctx.transaction()` failed when the completion was committed: neither was applied."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class InvalidRow(BackstayError, ValueError):
    """A row does not match its result table, or has a value that some engine cannot store unchanged."""


class DuplicateRow(InvalidRow):
    """One run of a job wrote two rows with the same key: give each its own key, or write only one."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class ResultTooLarge(BackstayError):
    """The handler's result exceeds the hard limit. Store it as a file and return its name."""


class OutputTooLarge(BackstayError):
    """The handler streamed an entry that is too large, or more than a job's output may hold. Stream less, or store the
    rest as a file."""


class InvalidResult(BackstayError):
    """The handler returned a value that is not JSON."""


# Setting up and operating


class ConfigurationError(BackstayError):
    """A setting is missing or invalid, or the server refuses the key of a client."""


class LifespanFailed(BackstayError):
    """The function registered with @app.lifespan raised, so the worker did not start: the log has its traceback."""


class MiddlewareFailed(BackstayError):
    """A middleware did not do its part: it must call `call_next()`, or yield, exactly once, or raise."""


class UnknownTable(ConfigurationError):
    """No result table with this name was ever declared in this queue. Open the app whose handlers declare it once."""


class InvalidPipeline(ConfigurationError):
    """The stages do not form a valid pipeline."""


class EncryptionKeyMissing(BackstayError):
    """A field is to be encrypted or decrypted, and this process does not have the key."""


class DecryptionFailed(BackstayError):
    """An encrypted field was changed, or belongs to another job type or field."""


class NotOpen(BackstayError, RuntimeError):
    """The app is used outside `async with app:`, or on another event loop."""


class SchemaMismatch(BackstayError):
    """The store has the schema of another release of Backstay, or has none and may not be given one."""


class StoreError(BackstayError):
    """The store could not carry out the call. Nothing was acknowledged that is not stored."""


class StoreBusy(StoreError):
    """Other processes locked the store for longer than the busy timeout. Repeating is safe."""


class StoreUnavailable(StoreError):
    """The server cannot be reached, or is not ready. Repeating is safe."""


class StoreFull(StoreError):
    """No space is left. New jobs are refused; running ones can still finish. Free some disk space."""


class StoreUnsafe(StoreError):
    """The store cannot guarantee durability where it is (network file system, no fsync, foreign file)."""


class StoreGone(StoreError):
    """The store disappeared or was replaced under a running app."""


class ForkedStore(StoreError):
    """A store was carried over fork(). Open a new app in the child process."""


class StoreMoved(StoreError):
    """This queue is being or has been transferred to another store, or a transfer into this one has not finished."""


class MoveFailed(BackstayError):
    """A queue could not be transferred to another store. Nothing is lost: the message says how to continue."""


class ExportFailed(BackstayError):
    """A job could not be exported, or a file cannot be replayed here. The message says what to do."""


class ImportFailed(BackstayError):
    """A queue of another system could not be imported completely. Nothing is lost: the message says how to continue."""


# Over HTTP

PROBLEM_MEDIA_TYPE = "application/problem+json"  # RFC 9457

# The status and the problem type of each error; servers write them, clients read them. The first class that an error is
# an instance of counts: put the special before the general.
PROBLEMS: dict[type[BackstayError], tuple[int, str]] = {
    PayloadTooLarge: (413, "payload-too-large"),
    InvalidPayload: (422, "invalid-payload"),
    UnknownJobType: (404, "unknown-job-type"),
    UnknownDependency: (404, "unknown-dependency"),
    DedupConflict: (409, "dedup-conflict"),
    QueueFull: (429, "queue-full"),
    InvalidSubmission: (422, "invalid-submission"),
    JobNotFound: (404, "job-not-found"),
    ArtifactNotFound: (404, "artifact-not-found"),
    ScheduleNotFound: (404, "schedule-not-found"),
    KeyNotFound: (404, "key-not-found"),
    UnknownTable: (404, "unknown-table"),
    IllegalTransition: (409, "illegal-transition"),
    VersionConflict: (412, "version-conflict"),
    InvalidEvent: (422, "invalid-event"),
    EventRefused: (409, "event-refused"),
    EventsFull: (429, "events-full"),
    ClaimLost: (409, "claim-lost"),
    ResultGone: (410, "result-gone"),
    RowsWithdrawn: (409, "rows-withdrawn"),
    InvalidRow: (422, "invalid-row"),
    ResultTooLarge: (413, "result-too-large"),
    OutputTooLarge: (413, "output-too-large"),
    InvalidResult: (422, "invalid-result"),
    EncryptionKeyMissing: (503, "encryption-key-missing"),
    DecryptionFailed: (422, "decryption-failed"),
    StoreFull: (507, "store-full"),
    StoreBusy: (503, "store-busy"),
    StoreUnavailable: (503, "store-unavailable"),
    StoreMoved: (503, "store-moved"),
    StoreError: (503, "store-unavailable"),
    SchemaMismatch: (503, "schema-mismatch"),
    NotOpen: (503, "not-open"),
}
