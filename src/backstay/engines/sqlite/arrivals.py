"""New jobs: their positions in the order of arrival, and when they are counted as submitted.

A single submit writes no counter, which would be one more page to sync. Jobs after `counted_through` are not in the
counters yet, and every read of the counters adds them from the view `uncounted`. They are counted once there are many,
and before a job is deleted or the counters are summed or exported.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import apsw

from backstay.clock import Instant
from backstay.core.records import Kind
from backstay.core.states import NO_BUCKET, Counted
from backstay.engines.sql_rows import MINUTE, Counts
from backstay.engines.sqlite.connection import load

LAST_SEQ = load("last_seq")
LIMITED = load("limited_queues")
COUNT_SUBMITS = load("count_submits")
SAVE_COUNTED = load("save_counted")
UNCOUNTED_MAX = 256  # a read adds them up


class Known(NamedTuple):
    """What an insert has to know. Only another process or a verb other than an insert can change it."""

    last: int  # the position of the job that arrived last
    counted: int  # the position up to which submits are in the counters
    limited: list[tuple[Any, ...]]  # queues with a limit


def look(connection: apsw.Connection) -> Known:
    last, counted = connection.execute(LAST_SEQ).fetchall()[0]
    return Known(int(str(last)), int(str(counted)), connection.execute(LIMITED).fetchall())


class Arrivals:
    """The new jobs of one transaction. No other process can take their positions in the meantime."""

    __slots__ = ("_connection", "_counted", "_counts", "_first", "_known", "_last", "_submitted")

    def __init__(self, connection: apsw.Connection, counts: Counts, known: Known | None) -> None:
        self._connection = connection
        self._counts = counts
        self._known = known
        self._last = -1  # not read yet
        self._counted = 0
        if known is not None:
            self._last, self._counted, _ = known
        self._first: int | None = None  # from which on jobs are of this transaction, and not counted
        self._submitted: Counts = {}  # those

    def known(self, before: Known) -> Known:
        """Return what is known once these are committed."""
        return Known(self._last, self._counted, before.limited)

    def limited(self) -> list[tuple[Any, ...]]:
        """Return the queues that have a limit, each with it."""
        return self._connection.execute(LIMITED).fetchall() if self._known is None else self._known.limited

    def take_seqs(self, jobs: int) -> int:
        """Return the first of as many positions in the order of arrival."""
        self._read()
        first = self._last + 1
        self._last += jobs
        if self._first is None:
            self._first = first
        return first

    def submitted(self, kind: Kind, now: Instant, jobs: int = 1) -> None:
        """Note that these are to be counted, each of them a job with a position of this transaction."""
        key = (now - now % MINUTE, kind, Counted.SUBMITTED, NO_BUCKET)
        sums = self._submitted.get(key)
        if sums is None:
            self._submitted[key] = [jobs, 0, 0]
        else:
            sums[0] += jobs

    def count_many(self) -> None:
        """Count all submits if they are many."""
        if self._first is not None and self._last - self._counted >= UNCOUNTED_MAX:
            self.count()

    def count(self) -> None:
        """Count all submits, also those of earlier transactions. Jobs with a position of this transaction that it did
        not submit are not counted, now or later."""
        self._read()
        if self._counted == self._last:
            return
        if self._first is None or self._first > self._counted + 1:
            self._connection.execute(COUNT_SUBMITS, (self._last + 1 if self._first is None else self._first,))
        for key, (jobs, ran, waited) in self._submitted.items():
            sums = self._counts.setdefault(key, [0, 0, 0])
            self._counts[key] = [sums[0] + jobs, sums[1] + ran, sums[2] + waited]
        self._submitted.clear()
        self._first, self._counted = None, self._last
        self._connection.execute(SAVE_COUNTED, (self._last,))

    def _read(self) -> None:
        if self._last < 0:
            last, counted = self._connection.execute(LAST_SEQ).fetchall()[0]
            self._last, self._counted = int(str(last)), int(str(counted))
