"""A job of the queue in plain Python."""

from dataclasses import dataclass, field

from backstay.clock import Instant
from backstay.core.dependencies import Awaits, TriggerRule
from backstay.core.lifecycle import allowed
from backstay.core.records import Hold, Kind, NewJob
from backstay.core.states import TERMINAL, Event, Status

BADLY = (Status.FAILED, Status.CANCELLED)


@dataclass
class Job:
    new: NewJob
    arrival: int
    status: Status
    scheduled_for: Instant
    priority: int
    version: int = 1
    attempt: int = 0
    failures: int = 0
    snoozes: int = 0
    give_backs: int = 0
    suspicion: int = 0
    token: str | None = None
    settled_as: tuple[Event, Status] | None = None  # by the holder of `token`
    lease: Instant | None = None
    worker: str | None = None
    started_at: Instant | None = None
    completed_at: Instant | None = None
    progress: float = 0.0
    stage: str = ""
    result: str | None = None
    reused_from: str | None = None
    root: str | None = None
    joins: str | None = None
    unmet: set[str] = field(default_factory=set)
    ends: dict[str, Status] = field(default_factory=dict)  # of those that it depends on, as far as they count
    awaits: Awaits | None = None  # set: it waits for its children
    waits: int = 0
    possible_results: set[str | None] = field(default_factory=set)  # of identical jobs that completed at once
    errors: list[str] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)
    history: list[tuple[int, Event, Status | None, Status, int]] = field(default_factory=list)
    archived_at: Instant | None = None

    @property
    def order(self) -> tuple[int, Instant, str]:
        return -self.priority, self.scheduled_for, self.new.job_id

    @property
    def kind(self) -> Kind:
        return self.new.job_type, self.new.queue, self.priority

    def move(self, event: Event, target: Status, now: Instant) -> None:
        assert allowed(event, self.status, target)
        self.version += 1
        self.history.append((self.version, event, self.status, target, self.attempt))
        self.status = target
        self.completed_at = now if target in TERMINAL else None
        self.awaits = self.awaits if event is Event.REPRIORITISE else None
        if target is not Status.PROCESSING:
            self.lease = None

    def stands(self) -> str:
        """What its rule says of those that it depends on: `bad`, `ready`, or to wait on."""
        succeeded, failed = Status.COMPLETED in self.ends.values(), Status.FAILED in self.ends.values()
        match TriggerRule(self.new.trigger_rule):
            case TriggerRule.ALL_SUCCESS:
                bad, ready = any(end in BADLY for end in self.ends.values()), not self.unmet
            case TriggerRule.ALL_DONE:
                bad, ready = False, not self.unmet
            case TriggerRule.ONE_SUCCESS:
                bad, ready = bool(self.ends) and not self.unmet and not succeeded, succeeded or not self.unmet
            case TriggerRule.ONE_FAILED:
                bad, ready = bool(self.ends) and not self.unmet and not failed, failed or not self.unmet
            case TriggerRule.NONE_FAILED:
                bad, ready = failed, not self.unmet
        return "bad" if bad else "ready" if ready else "wait"

    @property
    def took(self) -> int:
        started, ended = self.started_at, self.completed_at
        return 0 if started is None or ended is None else max(0, ended - started)

    def held_by(self, hold: Hold) -> bool:
        return self.status is Status.PROCESSING and (self.attempt, self.token) == (hold.attempt, hold.token)
