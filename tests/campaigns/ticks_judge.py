"""Checks which jobs schedules created for their ticks, from the file at the end.

A schedule has a cursor, the next tick to process. A firing moves the cursor from `due_at` to `next_at` and creates jobs
for ticks in between, in one commit. The cursor never goes back, and each firing begins where the previous one ended, so
that every tick is processed once, by the first clock to reach it. Then, with that clock's `now`:

- `all` creates one job for each tick of a firing: from the first tick to the cursor there is a job for every one,
whatever happened to clocks and processes. A firing has at most TICKS_PER_FIRING_MAX; the next one continues.
- `one` creates one job per firing, for its newest tick. Older ones are skipped only together with a newer one, all of
them due at `now`.
- `skip` creates one for the newest tick if that is at most SCHEDULE_LATE_SECONDS old at `now`, otherwise none.

A tick never has two jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import apsw

from backstay.clock import MICROS, Instant
from backstay.core.records import Verdict
from backstay.limits import SCHEDULE_LATE_SECONDS, TICKS_PER_FIRING_MAX
from tests.campaigns.processes.schedule import Fired

# Commits with the change that it watches, so that no crash can separate the two. An edit has a new version.
WITNESS = """
CREATE TABLE seen_move (n INTEGER PRIMARY KEY, schedule TEXT, due_at INTEGER, next_at INTEGER);
CREATE TRIGGER see_move AFTER UPDATE OF next_at ON schedule WHEN new.version = old.version BEGIN
    INSERT INTO seen_move (schedule, due_at, next_at) VALUES (old.name, old.next_at, new.next_at);
END;
"""


@dataclass(frozen=True)
class Rule:
    """An interval in minutes, counted from the epoch: the cron expression as arithmetic."""

    name: str
    cron: str
    missed: str
    minutes: int
    timezone: str = "UTC"

    @property
    def period(self) -> int:
        return self.minutes * 60 * MICROS

    def ticks(self, since: Instant, until: Instant) -> list[Instant]:
        return list(range(-(-since // self.period) * self.period, until, self.period))

    def decided(self, due_at: Instant, now: Instant) -> tuple[tuple[Instant, ...], Instant]:
        """Return the ticks of a firing that create jobs, and where it continues."""
        due = self.ticks(due_at, now + 1)
        match self.missed:
            case "all":
                taken = due[:TICKS_PER_FIRING_MAX]
                return tuple(taken), taken[-1] + self.period
            case "one":
                return (due[-1],), due[-1] + self.period
            case _:
                late = now - due[-1] > SCHEDULE_LATE_SECONDS * MICROS
                return () if late else (due[-1],), due[-1] + self.period


@dataclass(frozen=True)
class Story:
    """All records of one schedule."""

    rule: Rule
    first: Instant  # the cursor at the start
    cursor: Instant  # and at the end
    moves: Sequence[tuple[Instant, Instant]]  # of the cursor, in order
    jobs: Sequence[Instant]  # the tick of every job
    fired: Sequence[Fired]


def judge(story: Story) -> list[str]:
    """Everything that must not be, in sentences."""
    return [f"{story.rule.name}: {sentence}" for check in CHECKS for sentence in check(story)]


def _one_job_per_tick(story: Story) -> Iterator[str]:
    for tick, jobs in Counter(story.jobs).items():
        if jobs > 1:
            yield f"tick {tick} has {jobs} jobs"
        if tick % story.rule.period:
            yield f"there is a job for {tick}, which is no tick"
        if not story.first <= tick < story.cursor:
            yield f"tick {tick} has a job, and the cursor never came past it"


def _cursor_never_back(story: Story) -> Iterator[str]:
    at = story.first
    for due_at, next_at in story.moves:
        if due_at != at:
            yield f"the cursor was at {at}, and a firing moved it from {due_at}"
        if next_at <= due_at:
            yield f"the cursor went from {due_at} back to {next_at}"
        at = next_at
    if at != story.cursor:
        yield f"the cursor is at {story.cursor}, and the firings moved it to {at}"


def _none_missed(story: Story) -> Iterator[str]:
    """Check that each firing created exactly the jobs of its policy, by the clock of a process that called it."""
    made = sorted(set(story.jobs))
    asked: dict[tuple[Instant, Instant], list[Fired]] = {}
    for each in story.fired:
        if each.verdict in (Verdict.APPLIED, None):
            asked.setdefault((each.due_at, each.next_at), []).append(each)
    for due_at, next_at in story.moves:
        jobs = tuple(tick for tick in made if due_at <= tick < next_at)
        clocks = [each.now for each in asked.get((due_at, next_at), ()) if each.now >= due_at]
        if not any(story.rule.decided(due_at, now) == (jobs, next_at) for now in clocks):
            yield f"from {due_at} to {next_at} there are jobs for {list(jobs)}; asked by clocks at {clocks}"


def _no_tick_without_a_job(story: Story) -> Iterator[str]:
    if story.rule.missed == "all":
        for tick in sorted(set(story.rule.ticks(story.first, story.cursor)) - set(story.jobs)):
            yield f"tick {tick} has no job"
    elif story.rule.missed == "one":
        for _, next_at in story.moves:
            if next_at - story.rule.period not in story.jobs:
                yield f"tick {next_at - story.rule.period} has no job, and no later one came with it"


def _told_the_truth(story: Story) -> Iterator[str]:
    moves = Counter(story.moves)
    granted = Counter((each.due_at, each.next_at) for each in story.fired if each.verdict is Verdict.APPLIED)
    for move, times in granted.items():
        if times > moves[move]:
            yield f"the firing {move} was granted {times} times and happened {moves[move]} times"


CHECKS = (_one_job_per_tick, _cursor_never_back, _none_missed, _no_tick_without_a_job, _told_the_truth)


def install_witness(path: Path) -> None:
    _run(path, apsw.SQLITE_OPEN_READWRITE, WITNESS)


def read_stories(path: Path, rules: Iterable[Rule], first: dict[str, Instant], fired: list[Fired]) -> list[Story]:
    moves = _run(path, apsw.SQLITE_OPEN_READONLY, "SELECT schedule, due_at, next_at FROM seen_move ORDER BY n")
    jobs = _run(path, apsw.SQLITE_OPEN_READONLY, "SELECT schedule, tick_at FROM job WHERE tick_at IS NOT NULL")
    cursors = dict(_run(path, apsw.SQLITE_OPEN_READONLY, "SELECT name, next_at FROM schedule"))
    return [
        Story(
            rule,
            first[rule.name],
            cursors[rule.name],
            [(due_at, next_at) for name, due_at, next_at in moves if name == rule.name],
            [tick for name, tick in jobs if name == rule.name],
            [each for each in fired if each.schedule == rule.name],
        )
        for rule in rules
    ]


def _run(path: Path, flags: int, statements: str) -> list[tuple]:
    connection = apsw.Connection(str(path), flags=flags)
    connection.set_busy_timeout(10_000)
    try:
        return connection.execute(statements).fetchall()
    finally:
        connection.close()
