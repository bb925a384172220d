"""From what a caller asks to a Query: every condition checked. Pure."""

from __future__ import annotations

from typing import TypedDict, Unpack

from holdfast import ids, limits
from holdfast.checks import check_text
from holdfast.errors import InvalidOption
from holdfast.lifecycle import Status
from holdfast.store.types import Query

ORDERS = ("created", "priority")


class FindOptions(TypedDict, total=False):
    """The keyword options of find. All conditions hold together."""

    status: Status | str | None
    job_type: str | None
    queue: str | None
    subject: str | None
    worker: str | None
    tag: str | None
    created_by: str | None
    root: str | None
    content_hash: str | None
    order: str
    after: str | None
    limit: int


_KNOWN = frozenset(FindOptions.__annotations__)
_TEXTS = ("job_type", "queue", "subject", "worker", "tag", "created_by", "content_hash", "after")


def query(**options: Unpack[FindOptions]) -> Query:
    if unknown := options.keys() - _KNOWN:
        raise InvalidOption(f"find has no option {', '.join(sorted(unknown))}; it has {', '.join(sorted(_KNOWN))}")
    order = options.get("order", "created")
    if order not in ORDERS:
        raise InvalidOption(f'order={order!r}: use "created" or "priority"')
    limit = options.get("limit", 50)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= limits.FIND_LIMIT_MAX:
        raise InvalidOption(f"limit={limit!r}: use 1 to {limits.FIND_LIMIT_MAX}, and `after` for the next page")
    root = options.get("root")
    texts = {name: check_text(name, options.get(name), limits.KEY_LENGTH_MAX) for name in _TEXTS}
    return Query(
        status=_status(options.get("status")),
        root=None if root is None else ids.canonical(root),
        order=order,
        limit=limit,
        **texts,
    )


def _status(status: Status | str | None) -> Status | None:
    if status is None:
        return None
    try:
        return Status(status)
    except ValueError:
        raise InvalidOption(f"status={status!r}: use one of {', '.join(Status)}") from None
