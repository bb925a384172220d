"""The DynamoDB engine: two tables, conditional writes, no server to run.

    verb ──▶ read ──▶ pure transition of the item ──▶ compare-and-set on `version` (UpdateItem, TransactWriteItems)

* Every change of a job is decided in Python on the item as it was read, and written on condition that its version is
  still the same. What changes without a version (leases, notes, counts of edges) has a condition of its own wherever it
  was read to decide.
* An index only proposes: candidates are read again, consistently, before anything is decided.
* What does not fit into one transaction has a commit point of one item (journal, outbox mark), from which any store
  continues.
* schema.py says where everything is stored.
"""

from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.store import DynamoStore

__all__ = ["DynamoStore", "Session"]
