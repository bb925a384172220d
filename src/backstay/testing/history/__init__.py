"""Records what happened in a run, and checks it against the guarantees.

    process ──verbs──▶ recorded(store) ──▶ store         one JSON-lines file per process
                            └── invoke, return ──▶ OperationLog ──▶ read_operations ─┐
                                                                                     ├─▶ Evidence ─▶ check
                              the store's records, each with its history ────────────┘

* A line is written before the operation and one after it, each with a single write: a process killed in between leaves
  an operation with an unknown outcome (`info`); the checker takes it for neither done nor undone.
* Tokens, payloads and results are kept as hashes: a log of operations holds no secrets and no data.
* Two orders are known and never mixed up: the versions of one job (exact, from its history), and the moments at which
  operations of all processes were called and had returned (one monotonic clock per machine). Store times are only
  compared where a promise is about store times.
"""

from backstay.testing.history.evidence import Edge, Evidence, Operation, OperationLog, Outcome, digest, read_operations
from backstay.testing.history.recorder import recorded

__all__ = [
    "Edge",
    "Evidence",
    "Operation",
    "OperationLog",
    "Outcome",
    "digest",
    "read_operations",
    "recorded",
]
