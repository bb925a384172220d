"""The SQLite engine: one file, several processes, every acknowledged job on disk.

    event loop ──verbs──▶ Writer thread ──BEGIN IMMEDIATE … COMMIT──▶ file     Bell ──▶ other processes
                └─reads──▶ reader threads (WAL snapshots)

* One writer thread per process drains a queue of verbs and runs all waiting ones as one transaction: those that arrive
  together share the fsync. Nothing is acknowledged before COMMIT has returned with synchronous=FULL.
* SQL lives in sql/<module>.sql, one named section per statement; each says which index serves it, and
  tests/engines/plans pins that.
* Batches travel as JSON text in and out of single statements, because each row that Python steps over hands the GIL
  back and forth.
* After COMMIT, never before, the bell wakes workers and waiters in other processes over datagram sockets.
"""

from backstay.engines.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
