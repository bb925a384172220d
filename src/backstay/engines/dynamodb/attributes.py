"""The attributes of a job as the table has them, for programs that query it themselves. Pure.

Backstay's own code works on items with the fields of a record, instants as whole numbers and states as they are. The
table has what other programs ask for: times as ISO 8601, the subject under a name of the user's choice, states in
capitals if that is wished; so the keys of the four promised indexes are plain attributes of the job. With several
shards, `status` and `job_type` end in the mark of the job's shard (`pending#3`), because those attributes are the
partitions that shards are there to divide; a condition on them holds with any mark, since shards may be raised while
jobs are stored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from backstay.clock import Instant
from backstay.core import result_tables
from backstay.core.records import JobRecord
from backstay.engines.dynamodb import schema
from backstay.engines.dynamodb.schema import Item
from backstay.errors import ConfigurationError, StoreError

SUBJECT = "subject"
STATUS = "status"
TIMES = frozenset({"created_at", "updated_at", "started_at", "completed_at", "scheduled_for", "lease_expires_at"})
MARKED = frozenset({STATUS, "job_type"})
_INTERNAL = frozenset(
    {
        "anew", "artifacts_body", "awaited", "awaits", "bad", "body", "children", "claim_token", "depends_on",
        "details", "empty", "ended", "files", "for_event", "frozen", "frozen_at", "gated", "joined", "joins", "left",
        "mail", "needs", "open", "rate_count", "rate_micros", "records", "result_body", "rows_attempt", "rows_of",
        "rule", "tables", "unmet", "wakes_at", "wid",
    }
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Form(msgspec.Struct):
    """How the jobs of a table are stored. `shards` may be raised while a process runs."""

    shards: int = 1
    subject: str = SUBJECT  # the attribute with the subject: conversation_id
    capitals: bool = False  # states as PENDING, PROCESSING, …

    def name(self, name: str) -> str:
        return self.subject if name == SUBJECT else name

    def stored(self, item: Mapping[str, Any], job_id: str) -> Item:
        """Return fields of a job, or all of them, as attributes."""
        made: Item = {}
        for name, value in item.items():
            if value is None:
                continue
            if name in TIMES:
                made[name] = result_tables.text(value)
            elif name in MARKED:
                made[name] = f"{self.value(name, value)}{self._mark(job_id)}"
            else:
                made[self.name(name)] = value
        return made

    def _mark(self, job_id: str) -> str:
        return "" if self.shards == 1 else schema.suffix(schema.shard(job_id, self.shards))

    def value(self, name: str, value: Any) -> Any:
        """Return a value of a field as a query or a condition has it: without the mark of a shard."""
        if name == STATUS and self.capitals:
            return str(value).upper()
        if name in TIMES and isinstance(value, int):
            return result_tables.text(value)
        return value

    def read(self, attributes: Item) -> Item:
        """Return a job's fields from its attributes, or from some of them."""
        item: Item = {}
        for name, value in attributes.items():
            if name in TIMES:
                item[name] = _instant(name, value)
            elif name in MARKED:
                text = str(value).partition("#")[0]
                item[name] = text.lower() if name == STATUS else text
            elif name == self.subject:
                item[SUBJECT] = value
            else:
                item[name] = value
        return item


def _instant(name: str, value: Any) -> Instant:
    try:
        return result_tables.instant(value)
    except (TypeError, ValueError):
        raise StoreError(f"an item cannot be read: its {name} is {value!r:.40}, not a time of ISO 8601") from None


def check_subject(name: str) -> str:
    """Return the name if a job's subject can be stored under it."""
    if name == SUBJECT:
        return name
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"subject={name!r:.60} is not the name of an attribute: use up to 64 letters, digits and underscores"
        )
    if name in _INTERNAL or name in schema.DERIVED or name in JobRecord.__struct_fields__:
        raise ConfigurationError(
            f"subject={name}: a job already has an attribute of that name; choose another for the subject"
        )
    return name
