"""Jobs that lost a worker: which run next to others, which run alone, and whose turn it is. Pure.

When a worker dies or stalls, each job that it held is charged with a failure, because it is impossible to tell which of
them was the cause. So that a job that kills its worker does not drag the others to the dead letters, time after time,
while the many that were only lost with it are worked off quickly, a job has a suspicion:

    0  none              it has not been lost, or has come to an end of its own since
    1  lost once         it runs next to others, but is not claimed ahead of a free slot
    2  lost again, or    it runs alone: no other lost job is in the same worker process, and during its first
       on its last       ALONE_SECONDS nothing starts next to it and nothing runs that started less than that before
       attempt

`after_a_loss` decides it when a claim is rescued; any end of an attempt that is not a loss clears it. So a job that is
lost by the fault of others is alone before its attempts are used up, and a job that kills its worker ends by itself. A
stall counts like a death: seen from another host they look the same.

A claim says which of them it may bring (`records.Lost`), so that no worker has to put one off. Jobs that run alone need
a worker that has made room, which `Turns` decides: while they wait, a worker alternates between them and all others,
which get a little more than half of its time.

Jobs in child processes can only take down their own process: they run next to one another whatever their suspicion, but
not next to a lost job in the worker's own process.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backstay.core.records import ExpiredClaim, Lost
from backstay.limits import ALONE_OTHERS_FACTOR, ALONE_SECONDS, ALONE_TURN_SECONDS

LOST_ONCE = 1
RUNS_ALONE = 2


def after_a_loss(job: ExpiredClaim) -> int:
    """Return the suspicion of a job whose claim has expired. A dead letter keeps one for a manual retry, with which its
    failures start again at 0."""
    failures = job.failures + 1
    if failures >= job.max_attempts:
        failures = 0
    elif job.suspicion >= LOST_ONCE:
        return RUNS_ALONE
    return RUNS_ALONE if failures + 1 >= job.max_attempts else LOST_ONCE


class Held(msgspec.Struct, frozen=True, gc=False):
    """A job that a worker holds."""

    suspicion: int
    in_child: bool  # it runs in a process of its own
    seconds: float  # for which it has been running; 0 if it has not begun, or has ended and is not settled

    @property
    def is_new(self) -> bool:
        return self.seconds < ALONE_SECONDS


class Waiting(msgspec.Struct, frozen=True):
    """Whether jobs wait to run alone, of types that have room: in the worker's own process, and in child processes."""

    in_worker: bool
    in_child: bool


class Opening(msgspec.Struct, frozen=True):
    """What a worker may claim now."""

    shared: bool = True  # jobs that run in the worker's own process; those in child processes always
    lost: Lost = Lost.SHARED  # of both
    alone: bool = False  # one that runs alone, of any type …
    alone_in_child: bool = False  # … or those that run in child processes, as many as there are slots


OPEN = Opening()
_NO_LOST = Opening(lost=Lost.NONE)
_CLOSED = Opening(shared=False, lost=Lost.NONE)
_ALONE = Opening(shared=False, lost=Lost.NONE, alone=True)
_IN_CHILD = Opening(shared=False, lost=Lost.NONE, alone_in_child=True)


class Turns:
    """Whose turn it is in one worker process: that of jobs that run alone, or that of all others. Times are seconds of
    a clock that does not jump."""

    def __init__(self) -> None:
        self.began_at: float | None = None  # their turn; None if it was not theirs when this was last asked
        self._next_at = 0.0  # their next turn begins no earlier
        self._have_run = False  # some have, in this turn

    def opening(self, held: Sequence[Held], waiting: Waiting | None, now: float, *, idle: bool) -> Opening:
        """Return what may be claimed. `waiting`: what is known to wait to run alone; `idle`: there is nothing else to
        do."""
        lone = [each for each in held if each.suspicion >= RUNS_ALONE]
        if lone:
            return self._next_to(lone, held, waiting, now, idle)
        if waiting is None or not (waiting.in_worker or waiting.in_child):
            self._end(now)
            return OPEN
        opening = _make_room(held, waiting)
        # A turn lasts until one has run, except next to a lost job that takes long: it leaves no room.
        might_end = self._have_run or opening is _NO_LOST
        if self.began_at is not None and might_end and now - self.began_at >= ALONE_TURN_SECONDS:
            self._end(now)
        if self.began_at is None:
            if now < self._next_at and (not idle or opening is _NO_LOST):
                return OPEN
            self.began_at = now
        return opening

    def _end(self, now: float) -> None:
        """The others get more time than these had."""
        if self.began_at is not None:
            self._next_at = now + ALONE_OTHERS_FACTOR * max(ALONE_TURN_SECONDS, now - self.began_at)
        self.began_at, self._have_run = None, False

    def _next_to(
        self, lone: Sequence[Held], held: Sequence[Held], waiting: Waiting | None, now: float, idle: bool
    ) -> Opening:
        self._have_run = True
        if self.began_at is None:
            self.began_at = now
        shared = not any(each.is_new for each in lone)
        more = (
            waiting is not None
            and waiting.in_child
            and not waiting.in_worker
            and (idle or now - self.began_at < ALONE_TURN_SECONDS)
            and _make_room(held, waiting).alone_in_child
        )
        return Opening(shared=shared and not more, lost=Lost.NONE, alone_in_child=more)


def _make_room(held: Sequence[Held], waiting: Waiting) -> Opening:
    in_worker = [each for each in held if not each.in_child]
    lost = [each for each in (held if waiting.in_worker else in_worker) if each.suspicion]
    if any(not each.is_new for each in lost):
        return _NO_LOST  # it may take long: no slot is left empty for it
    if lost or any(each.is_new for each in in_worker):
        return _CLOSED
    return _ALONE if waiting.in_worker else _IN_CHILD
