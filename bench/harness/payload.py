"""The payload that every contender carries: 130 bytes of JSON, the same for all."""

from __future__ import annotations

import json
from typing import TypedDict

TEXT = "a durable queue keeps the work of the day safe until somebody has really done it, and says so after"
FIRST_NUMBER = 100_000  # six digits for every job, so that all payloads have the same length


class NotePayload(TypedDict):
    user_id: int
    text: str


def note(number: int) -> NotePayload:
    """Return the payload of job `number`; a handler gets the number back with `number_of`."""
    return {"user_id": FIRST_NUMBER + number, "text": TEXT}


def notes(jobs: int) -> list[NotePayload]:
    return [note(number) for number in range(jobs)]


def number_of(user_id: int) -> int:
    return user_id - FIRST_NUMBER


assert len(json.dumps(note(0))) == 130
