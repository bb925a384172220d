"""Where the claims of a store begin, while the server cannot remove the dead rows of the line.

A claim reads the line from its head, where the entries of jobs that have been claimed stay until the server may remove
them: for as long as any transaction of the database is open that might still see them. Then each claim walks past all
of them. So once that is the case and costs time, a claim begins where the one before it has stopped. A job that came
in front of that place since, because it is more urgent or was due earlier, is found by the next look at the whole line,
within LOOK_SECONDS. Otherwise every claim looks at the whole line, and the order is exact.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from backstay.core.records import ClaimedJob, ClaimRequest
from backstay.engines.lanes import Lane, Order

LOOK_SECONDS = 1.0  # how often to look at the whole line
SLOW_SECONDS = 0.01  # a claim that takes longer may have walked past dead rows …
DEAD_ROWS_MIN = 20_000  # … if the table has more than these
LANES_MAX = 1_000  # to remember
# A place before all jobs of a lane: none has a priority as high.
START: Order = (-(2**31 - 1), 0, "00000000-0000-0000-0000-000000000000")

_Key = tuple[str, str, int | None, int]  # queue, type, version, suspicion: jobs of others may stand before


class Heads:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._heads: dict[_Key, Order] = {}
        self._is_on = False
        self._looked_at = float("-inf")

    def begins(self, request: ClaimRequest, lanes: Sequence[Lane]) -> list[Order] | None:
        """Return where a claim begins in each lane; None if it is to look at the whole line."""
        if self.seconds_unseen is None:
            return None
        return [self._heads.get(_key(request, lane), START) for lane in lanes]

    @property
    def seconds_unseen(self) -> float | None:
        """For how many seconds claims do not see what comes in front; None: they do."""
        seconds = self._looked_at + LOOK_SECONDS - self._monotonic()
        return seconds if self._is_on and seconds > 0 else None

    def looked(self, *, is_slow: bool) -> None:
        """Note a look at the whole line, and whether dead rows are what it took its time for."""
        self._looked_at = self._monotonic()
        self._is_on = is_slow

    def took(self, request: ClaimRequest, jobs: Sequence[ClaimedJob]) -> None:
        """Note what was claimed, in the order of claims: nothing before it is left in its lane. While every claim looks
        at the whole line, the last of them has to do, so that this costs nothing."""
        if len(self._heads) > LANES_MAX:
            self._heads.clear()
        for job in jobs if self._is_on else jobs[-1:]:
            self._heads[_key(request, job)] = -job.priority, job.scheduled_for, job.job_id


def _key(request: ClaimRequest, lane: Lane | ClaimedJob) -> _Key:
    return lane.queue, lane.job_type, request.versions.get(lane.job_type), request.lost.suspicion_max
