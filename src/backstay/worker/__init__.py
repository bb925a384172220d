"""The worker: claims jobs, runs them, and settles their outcomes, all three overlapped.

    Fetcher ──claimed──▶ buffer ──slot free──▶ Run (task │ thread │ child process) ──outcome──▶ decide ──▶ Settler
       ▲                                        │                                                      │
    signals, poll                        LeaseKeeper (own thread and own store)                    store.apply

* A claimed job is a `Run` from the claim to its settlement. The worker extends the leases of all its runs in one call,
  from a thread of its own, so that a handler that blocks the event loop does not lose its claim.
* A run that is told STALE is stopped and its outcome dropped: another worker has the job, or it was cancelled.
* Progress, logs and metrics are bookkeeping: when they cannot be written, the job continues.
* Maintenance (promotion, rescue, release) is done by every worker and is idempotent; there is no leader.
"""

from backstay.worker.worker import Worker

__all__ = ["Worker"]
