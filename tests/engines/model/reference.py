"""A queue in plain Python: what a store must do, said as simply as it can be said. No time of its own, no I/O.

It leaves to the engine what no promise fixes: which jobs of a full concurrency key stand aside, and the wording of
reasons. `claimed` therefore checks an answer instead of predicting it where keys are in play.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

from backstay.clock import MICROS, Instant
from backstay.core.dependencies import Brood, TriggerRule
from backstay.core.records import ClaimRequest, Hold, Inserted, Kind, Lost, NewJob, Note, Transition, Verdict
from backstay.core.states import TERMINAL, Counted, Event, Status, also_counted, bucket_of, counted
from backstay.errors import DedupConflict, EffectFailed, InvalidSubmission, QueueFull, UnknownDependency
from backstay.limits import ERRORS_KEPT_MAX
from tests.engines.model.jobs import Job

WRITTEN = [
    *("failures", "snoozes", "give_backs", "waits", "suspicion"),
    *("scheduled_for", "priority", "progress", "stage", "result"),
]
CounterKey = tuple[Instant, Kind, Counted]


class Queue:
    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.archive: dict[str, Job] = {}
        self.guards: dict[str, tuple[str, Instant | None]] = {}
        self.paused: set[str] = set()
        self.paused_types: set[str] = set()
        self.most: dict[str, int] = {}  # jobs of a type that may run at once, as set at run time
        self.max_pending: dict[str, int] = {}
        self.counters: dict[CounterKey, list[int]] = defaultdict(lambda: [0, 0, 0])
        self.buckets: dict[CounterKey, Counter[int]] = defaultdict(Counter)
        self.arrivals = 0
        self.staged: dict[tuple[str, int], dict[int, Sequence[NewJob]]] = {}
        self.unpacking: set[str] = set()  # parents whose staged children are on their way

    def known(self, job_id: str) -> Job | None:
        return self.jobs.get(job_id) or self.archive.get(job_id)

    def count(
        self,
        kind: Kind,
        outcome: Counted | None,
        now: Instant,
        ran: int = 0,
        waited: int = 0,
        source: Status | None = None,
    ) -> None:
        if outcome is None:
            return
        key = (now - now % (60 * MICROS), kind, outcome)
        sums = self.counters[key]
        sums[:] = [sums[0] + 1, sums[1] + ran, sums[2] + waited]
        if source is Status.PROCESSING and (bucket := bucket_of(outcome, source, ran, waited)):
            self.buckets[key][bucket] += 1

    # insert

    def insert(self, batch: Sequence[NewJob], now: Instant, answers: Sequence[Inserted] | None) -> None:
        """What must follow from a batch; `answers` is None where the store refused it."""
        for i, new in enumerate(batch):
            answer = answers[i] if answers is not None else None
            self._insert_one(new, now, answer)
        self._release([], now)

    def _insert_one(self, new: NewJob, now: Instant, answer: Inserted | None, admitted: bool = False) -> None:
        existing = self._existing(new, now)
        if existing is not None:
            assert answer is None or answer.existing is not None
            assert answer is None or (answer.job_id, answer.status) == (existing.new.job_id, existing.status)
            return
        root = None
        if new.parent_job_id is not None:
            if new.parent_job_id not in self.jobs:
                raise UnknownDependency
            root = self.jobs[new.parent_job_id].root or new.parent_job_id
        self.arrivals += 1
        job = Job(new, self.arrivals, Status.PENDING, new.scheduled_for, new.priority, root=root)
        self.count(job.kind, Counted.SUBMITTED, now)
        donors = self._donors(new)
        if any(self.known(parent) is None for parent in new.depends_on):
            raise UnknownDependency
        if donors:
            ran = {self.jobs[donor].reused_from or donor for donor in donors}
            assert answer is None or answer.reused_from in ran
            self._complete_by(job, donors, max(ran) if answer is None else answer.reused_from, now)
            self.count(job.kind, Counted.COMPLETED, now)
            job.history.append((1, Event.REUSE, None, Status.COMPLETED, 0))
        else:
            self._place(job, now)
            if not admitted:
                self._refuse_over_limit(job)
        self.jobs[new.job_id] = job
        if new.dedup_key is not None:
            self.guards[new.dedup_key] = (new.job_id, new.dedup_until)
        if job.status is Status.WAITING and job.stands() == "bad":
            self._break(job, now)
        assert answer is None or answer.existing is None
        assert answer is None or (answer.job_id, answer.status) == (new.job_id, job.status)

    def _refuse_over_limit(self, new: Job) -> None:
        limit = self.max_pending.get(new.new.queue)
        pending = sum(job.status is Status.PENDING and job.new.queue == new.new.queue for job in self.jobs.values())
        if limit is not None and new.status is Status.PENDING and pending >= limit:
            raise QueueFull("", queue=new.new.queue)

    def _existing(self, new: NewJob, now: Instant) -> Job | None:
        if new.own_id and (found := self.known(new.job_id)) is not None:
            return found
        if new.dedup_key is None or (target := self.guarding(new.dedup_key, now)) is None:
            return None
        if new.dedup_conflict_is_error and target.archived_at is None and target.new.payload != new.payload:
            raise DedupConflict
        return target

    def guarding(self, key: str, now: Instant) -> Job | None:
        """The job that a key stands for."""
        job_id, until = self.guards.get(key, ("", None))
        target = self.known(job_id)
        if target is None:
            return None
        in_force = target.status not in TERMINAL if until is None else now < until
        return target if in_force else None

    def _standing(self, job_id: str) -> Status | None:
        found = self.known(job_id)
        return None if found is None else found.status

    def _donors(self, new: NewJob) -> list[str]:
        """Completed jobs with the same content, of which the newest serve."""
        if new.reuse_since is None:
            return []
        done = [
            (job.completed_at, job_id)
            for job_id, job in self.jobs.items()
            if self._identical(new, job) and job.status is Status.COMPLETED
            if job.completed_at is not None and job.completed_at >= new.reuse_since
        ]
        return [job_id for at, job_id in done if at == max(done)[0]]

    def _identical(self, new: NewJob, job: Job) -> bool:
        return (
            new.content_hash is not None
            and (job.new.content_hash, job.new.job_type) == (new.content_hash, new.job_type)
        )  # fmt: skip

    def _place(self, job: Job, now: Instant) -> None:
        new = job.new
        if new.reuse_since is not None:
            leaders = (
                job_id
                for job_id, other in self.jobs.items()
                if self._identical(new, other) and other.status not in TERMINAL and other.joins is None
            )
            leader = next(leaders, None)
            own_terms = leader in new.depends_on or (new.depends_on and new.trigger_rule != "all_success")
            job.joins = None if own_terms else leader
        self._look_at_dependencies(job)
        if job.joins is not None:
            job.unmet.add(job.joins)
        match job.stands():
            case "ready":
                job.status = Status.SCHEDULED if new.scheduled_for > now else Status.PENDING
            case _:
                job.status = Status.WAITING
        job.history.append((1, Event.SUBMIT, None, job.status, 0))

    def _look_at_dependencies(self, job: Job) -> None:
        """One that the archive has forgotten was no obstacle."""
        standing = {parent: self._standing(parent) or Status.COMPLETED for parent in job.new.depends_on}
        job.ends = {parent: status for parent, status in standing.items() if status in TERMINAL}
        job.unmet = standing.keys() - job.ends.keys()

    def _complete_by(self, job: Job, donors: Sequence[str], ran: str | None, now: Instant) -> None:
        job.status, job.completed_at = Status.COMPLETED, now
        job.possible_results = {self.jobs[donor].result for donor in donors}
        job.result, job.reused_from = self.jobs[donors[-1]].result, ran
        job.progress, job.stage = 1.0, "complete"
        origin = None if ran is None else self.known(ran)
        self.count(job.kind, Counted.REUSED, now, 0 if origin is None else origin.took)

    # claim

    def claimed(self, request: ClaimRequest, now: Instant, taken: Sequence[str]) -> None:
        """Check what a claim took, and take it."""
        wanted = [
            job
            for job in self.jobs.values()
            if job.status is Status.PENDING and job.new.queue in request.queues and job.new.queue not in self.paused
            if request.slots.get(job.new.job_type, 0) > 0 and self._may_bring(request, job)
            if job.new.job_type not in self.paused_types
        ]
        wanted.sort(key=lambda job: job.order)
        fitting = self._within_slots(wanted, request)
        if all(job.new.concurrency_key is None for job in wanted):
            assert list(taken) == [job.new.job_id for job in fitting]
        jobs = [self.jobs[job_id] for job_id in taken]
        assert set(taken) <= {job.new.job_id for job in wanted}
        assert jobs == sorted(jobs, key=lambda job: job.order)
        assert self._within_slots(jobs, request) == jobs
        assert taken or all(job.new.concurrency_key is not None for job in fitting)
        for job in jobs:
            job.attempt += 1
            job.move(Event.CLAIM, Status.PROCESSING, now)
            job.lease, job.token, job.settled_as = now + request.lease_micros, request.token, None
            job.worker, job.progress, job.stage = request.worker_id, 0.0, ""
            job.started_at = now
        self.check_keys()

    def _may_bring(self, request: ClaimRequest, job: Job) -> bool:
        """Jobs that must run alone are claimed by themselves; of the others, those that were lost once if asked for."""
        match request.lost:
            case Lost.ALONE:
                return job.suspicion == 2
            case Lost.SHARED:
                return job.suspicion < 2
            case Lost.NONE:
                return job.suspicion == 0

    def wait_alone(self, request: ClaimRequest) -> set[str]:
        """The types of those that wait to run alone, as far as no key is in their way."""
        return {
            job.new.job_type
            for job in self.jobs.values()
            if job.status is Status.PENDING and job.suspicion == 2 and job.new.concurrency_key is None
            if job.new.queue in request.queues and job.new.queue not in self.paused
            if request.slots.get(job.new.job_type, 0) > 0 and job.new.job_type not in self.paused_types
        }

    def _within_slots(self, jobs: Sequence[Job], request: ClaimRequest) -> list[Job]:
        room = dict(request.slots)
        for job_type, most in self.most.items():
            running = sum(
                job.status is Status.PROCESSING and job.new.job_type == job_type for job in self.jobs.values()
            )
            room[job_type] = min(room.get(job_type, 0), most - running)
        fitting = []
        for job in jobs:
            room[job.new.job_type] -= 1
            if room[job.new.job_type] >= 0:
                fitting.append(job)
        return fitting[: request.limit]

    def check_keys(self) -> None:
        running = [job.new for job in self.jobs.values() if job.status is Status.PROCESSING]
        for new in running:
            if new.concurrency_key is not None and new.concurrency_limit is not None:
                assert sum(other.concurrency_key == new.concurrency_key for other in running) <= new.concurrency_limit

    # apply, extend, note, record_step

    def apply(self, batch: Sequence[Transition], now: Instant) -> list[Verdict]:
        verdicts = [self._apply_one(t, now) for t in batch]
        self._release([t.job_id for t, verdict in zip(batch, verdicts, strict=True) if verdict is Verdict.APPLIED], now)
        for job_id in sorted(self.unpacking):
            self._unpack(job_id, now)
        return verdicts

    def _unpack(self, job_id: str, now: Instant) -> None:
        for _, jobs in sorted(self.staged.pop((job_id, self.jobs[job_id].attempt)).items()):
            for new in jobs:
                self._insert_one(new, now, None, admitted=True)
        self.unpacking.discard(job_id)
        self._release([], now)

    def _apply_one(self, t: Transition, now: Instant) -> Verdict:
        job = self.jobs.get(t.job_id)
        if job is None:
            return Verdict.GONE
        target = t.target
        if t.event is Event.MANUAL_RETRY and t.source is job.status:
            found = self._run_again(job, t.rewait, now)
            if isinstance(found, Verdict):
                return found
            target = found
        ours = (t.attempt, t.token) == (job.attempt, job.token)
        if t.token is not None and ours and job.settled_as == (t.event, t.target):
            return Verdict.APPLIED
        holds = (
            (t.source, t.attempt) == (job.status, job.attempt)
            and t.version in (None, job.version)
            and t.token in (None, job.token)
            and t.lease in (None, job.lease)
        )
        if not holds:
            return Verdict.STALE
        job.move(t.event, target, now)
        job.awaits = job.awaits if t.awaits is None else t.awaits
        outcome = counted(t.event, t.target)
        self.count(t.kind, outcome, now, t.ran_micros, t.waited_micros, t.source)
        self.count(t.kind, also_counted(t.event), now)
        for name in WRITTEN:
            if getattr(t, name) is not None:
                setattr(job, name, getattr(t, name))
        if t.clear_result:
            job.result = job.reused_from = job.joins = None
        if t.event is Event.MANUAL_RETRY:
            self._look_at_dependencies(job)
        if t.error is not None:
            job.errors = [*job.errors, f"{t.error.type}: {t.error.message}"][-ERRORS_KEPT_MAX:]
        if t.target is not Status.PROCESSING:  # a running job that was only reprioritised keeps its holder
            job.settled_as = (t.event, t.target) if t.token is not None else None
            job.token = t.token
        key = job.new.dedup_key
        if t.event is Event.MANUAL_RETRY and key is not None and self.guarding(key, now) is None:
            self.guards[key] = (t.job_id, None)
        self._bring(t, now)
        return Verdict.APPLIED

    def _bring(self, t: Transition, now: Instant) -> None:
        try:
            for new in t.children:
                self._insert_one(new, now, None, admitted=True)
        except InvalidSubmission as error:
            raise EffectFailed(str(error)) from None
        if t.staged is not None:
            parts = self.staged.get((t.job_id, t.attempt), {})
            if not parts.keys() >= set(range(t.staged.parts)):
                raise EffectFailed("parts are missing")
            self.staged[t.job_id, t.attempt] = {part: parts[part] for part in range(t.staged.parts)}
            self.unpacking.add(t.job_id)

    def _run_again(self, job: Job, rewait: bool, now: Instant) -> Verdict | Status:
        before = job.ends, job.unmet
        self._look_at_dependencies(job)
        stands = job.stands()
        job.ends, job.unmet = before
        if stands == "bad" or (stands == "wait" and not rewait):
            return Verdict.BLOCKED
        target = None if job.new.dedup_key is None else self.guarding(job.new.dedup_key, now)
        if target is not None and target is not job:
            return Verdict.TAKEN
        return Status.WAITING if stands == "wait" else Status.PENDING

    # children

    def insert_children(self, hold: Hold, batch: Sequence[NewJob], now: Instant, answers: Any) -> None:
        """`answers`: of the store; None where the claim did not hold."""
        holds = self._hold(hold) is Verdict.APPLIED
        assert holds is (answers is not None)
        if holds:
            self.insert(batch, now, answers)

    def stage(self, hold: Hold, part: int, batch: Sequence[NewJob]) -> Verdict:
        verdict = self._hold(hold)
        if verdict is Verdict.APPLIED:
            self.staged.setdefault((hold.job_id, hold.attempt), {})[part] = batch
        return verdict

    def brood(self, parent: str) -> Brood:
        stand = [job.status for job in self.jobs.values() if job.new.parent_job_id == parent]
        still_open = sum(status not in TERMINAL for status in stand)
        return Brood(len(stand), still_open, stand.count(Status.FAILED), stand.count(Status.CANCELLED))

    def extend(self, hold: Hold, lease: Instant) -> Verdict:
        verdict = self._hold(hold)
        if verdict is Verdict.APPLIED:
            self.jobs[hold.job_id].lease = lease
        return verdict

    def note(self, note: Note) -> Verdict:
        verdict = self._hold(note.hold)
        if verdict is Verdict.APPLIED:
            job = self.jobs[note.hold.job_id]
            job.progress = job.progress if note.progress is None else note.progress
            job.stage = job.stage if note.stage is None else note.stage
        return verdict

    def record_step(self, hold: Hold, name: str, answer: str) -> Verdict:
        verdict = self._hold(hold)
        if verdict is Verdict.APPLIED:
            self.jobs[hold.job_id].steps.setdefault(name, answer)
        return verdict

    def _hold(self, hold: Hold) -> Verdict:
        if hold.job_id not in self.jobs:
            return Verdict.GONE
        return Verdict.APPLIED if self.jobs[hold.job_id].held_by(hold) else Verdict.STALE

    # What the end of a job sets free

    def _release(self, ended: Sequence[str], now: Instant) -> None:
        queue = deque(ended)
        while queue or (joined := self._join_parents(now)):
            if not queue:
                queue += joined
                continue
            parent = queue.popleft()
            outcome = self._standing(parent)
            if outcome not in TERMINAL or outcome is None:
                continue
            for child_id, child in self.jobs.items():
                if parent in child.unmet:
                    child.unmet.discard(parent)
                    if child.joins != parent:
                        child.ends[parent] = outcome
                    waits = child.status is Status.WAITING and child.awaits is None
                    if waits and self._release_child(child, parent, outcome, now):
                        queue.append(child_id)

    def _join_parents(self, now: Instant) -> list[str]:
        """Those that have waited for their children go on; who went on or ended by that."""
        moved = []
        for job_id, job in self.jobs.items():
            if job.awaits is None or job_id in self.unpacking:
                continue
            brood, rule = self.brood(job_id), job.awaits.rule
            if brood.open:
                continue
            badly = brood.failed + (brood.cancelled if rule is TriggerRule.ALL_SUCCESS else 0)
            if badly and rule is not TriggerRule.ALL_DONE:
                self._end_badly(job, job.awaits.on_failure, now)
            else:
                job.move(Event.RELEASE, Status.PENDING, now)
                job.scheduled_for = now
            moved.append(job_id)
        return moved

    def _release_child(self, child: Job, parent: str, outcome: Status, now: Instant) -> bool:
        """True when that ended it."""
        joined = child.joins == parent
        if joined and outcome is Status.COMPLETED:
            child.joins = None
            child.move(Event.REUSE, Status.COMPLETED, now)
            self._complete_by(child, [parent], parent, now)
            self.count(child.kind, Counted.COMPLETED, now)
            return True
        match child.stands():
            case "bad":
                self._break(child, now)
                return True
            case "ready":
                child.joins = None
                child.move(Event.RELEASE, Status.SCHEDULED if child.scheduled_for > now else Status.PENDING, now)
        return False

    def _break(self, child: Job, now: Instant) -> None:
        child.joins = None
        self._end_badly(child, child.new.on_dependency_failure, now)

    def _end_badly(self, job: Job, policy: str, now: Instant) -> None:
        failing = policy == "fail"
        job.move(Event.RELEASE, Status.FAILED if failing else Status.CANCELLED, now)
        job.stage = "error" if failing else job.stage
        self.count(job.kind, Counted.FAILED if failing else Counted.CANCELLED, now)

    # Upkeep and reading

    def due(self, now: Instant) -> list[Job]:
        waiting = [job for job in self.jobs.values() if job.status in (Status.SCHEDULED, Status.RETRYING)]
        return sorted((job for job in waiting if job.scheduled_for <= now), key=lambda job: job.scheduled_for)

    def promote(self, now: Instant, limit: int) -> tuple[int, Instant | None]:
        due = self.due(now)[:limit]
        for job in due:
            job.move(Event.DUE, Status.PENDING, now)
        left = [job.scheduled_for for job in self.jobs.values() if job.status in (Status.SCHEDULED, Status.RETRYING)]
        return len(due), min(left, default=None)

    def expired(self, now: Instant) -> set[tuple[str, int, Instant]]:
        return {
            (job_id, job.attempt, job.lease)
            for job_id, job in self.jobs.items()
            if job.lease is not None and job.lease <= now
        }

    def counts(self) -> dict[str, int]:
        return {status.value: sum(job.status is status for job in self.jobs.values()) for status in Status}
