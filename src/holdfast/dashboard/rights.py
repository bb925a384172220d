"""Pages that are about all queues at once."""

from __future__ import annotations

from fastapi import Request

from holdfast.dashboard import frame
from holdfast.server.problems import Problem


def of_all_queues(request: Request) -> None:
    """A dependency beside `needs("admin")`: whoever reaches some queues must not see what was done to others, nor make
    a key that reaches more."""
    if not frame.reader_of(request).sees_all:
        raise Problem(403, "foreign-queue", "this takes a key that reaches every queue")
