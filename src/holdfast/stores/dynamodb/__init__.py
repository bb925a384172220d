"""The DynamoDB engine: two tables, conditional writes, no server of one's own.

    verb ──▶ read ──▶ pure move of the item ──▶ compare-and-set on `version` (UpdateItem, TransactWriteItems)

* Every change of a job is decided in Python on the item as it was read and written on condition that its version is
  still that one. What changes without a version (leases, notes, counts of edges) has a condition of its own wherever
  it was read to decide.
* An index only proposes: candidates are read again, consistently, before anything is decided.
* What does not fit into one transaction has a commit point of one item (journal, outbox mark), from which any store
  goes on.
* keys.py says where everything lies.
"""

from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.store import DynamoStore

__all__ = ["DynamoStore", "Ground"]
