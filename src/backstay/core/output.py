"""The output of a job: entries that its handler streams while it runs, for readers live and later. Pure.

Entries are numbered 1, 2, 3 … within a take. An attempt has one take, unless it begins its output again: a batch whose
call failed is called again in halves, within the same attempts. What a newer attempt or take writes replaces what older
ones wrote, so that readers never see two runs of a handler mixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from backstay.clock import Instant
from backstay.core.records import Hold
from backstay.errors import InvalidOption, OutputTooLarge
from backstay.limits import OUTPUT_BYTES_MAX, OUTPUT_ENTRIES_MAX, OUTPUT_ENTRY_BYTES_MAX, OUTPUT_PART_BYTES_MAX

_DIGITS_MAX = 9


class OutputPlace(NamedTuple):
    """A place in the output of a job: behind this entry. Ordered: a later attempt or take comes later."""

    attempt: int
    take: int
    number: int

    @classmethod
    def of(cls, text: str | None) -> OutputPlace:
        """Return the place that a cursor names; the beginning for None."""
        if text is None:
            return START
        parts = text.split(".")
        if len(parts) != len(START) or not all(_is_number(part) for part in parts):
            raise InvalidOption(f"after={text!r:.80} is not a place in an output: use the `next` of a page, as it is")
        return cls(*map(int, parts))

    @property
    def cursor(self) -> str:
        return f"{self.attempt}.{self.take}.{self.number}"

    def is_same_take(self, other: OutputPlace) -> bool:
        return self[:2] == other[:2]


START = OutputPlace(0, 0, 0)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


class OutputPart(msgspec.Struct, frozen=True, gc=False):
    """Entries that the holder of a claim appends in one write. A part that may have been stored is repeated as it
    was."""

    hold: Hold
    take: int
    first: int  # the number of its first entry
    entries: tuple[str, ...]  # each as JSON text
    size: int  # in bytes, of this take up to the end of this part

    @property
    def last(self) -> int:
        return self.first + len(self.entries) - 1

    @property
    def text(self) -> str:
        """Its entries as one JSON array."""
        return f"[{','.join(self.entries)}]"


class StoredPart(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A part as it is stored."""

    attempt: int
    take: int
    first: int
    last: int
    size: int
    written_at: Instant
    text: str  # a JSON array

    @property
    def end(self) -> OutputPlace:
        return OutputPlace(self.attempt, self.take, self.last)

    @property
    def entries(self) -> list[msgspec.Raw]:
        return _entries.decode(self.text)


_entries = msgspec.json.Decoder(list[msgspec.Raw])


class OutputEnd(msgspec.Struct, frozen=True):
    """How far the output of a job has come."""

    place: OutputPlace
    size: int  # in bytes, of its latest take


class OutputBuffer:
    """What one run has appended and the store does not have yet: a part on its way, and the entries behind it."""

    def __init__(self) -> None:
        self.take = 0
        self.error: Exception | None = None  # why nothing more can be appended
        self._count = self._size = 0  # of all entries of this take
        self._pending: list[str] = []
        self._pending_size = 0
        self._sent: OutputPart | None = None  # until the store has answered: a repeat must be the same
        self._sent_size = 0
        self._stored = 0

    def add(self, entry: str) -> None:
        """Append an entry, as JSON text."""
        if self.error is not None:
            raise self.error
        size = check_entry(entry)
        if self._count >= OUTPUT_ENTRIES_MAX or self._size + size > OUTPUT_BYTES_MAX:
            raise OutputTooLarge(full(self._count, self._size))
        self._count += 1
        self._size += size
        self._pending.append(entry)
        self._pending_size += size

    def begin_again(self) -> None:
        """Begin a new take: the handler is called again within this attempt."""
        self.take += 1
        self._count = self._size = self._stored = self._sent_size = 0
        self._pending, self._pending_size = [], 0

    @property
    def is_empty(self) -> bool:
        return not self._pending and self._sent is None

    @property
    def is_full(self) -> bool:
        """Whether as much waits as one part holds, so that the handler should wait too."""
        return self._pending_size >= OUTPUT_PART_BYTES_MAX

    def part(self, hold: Hold, most: int | None = None) -> OutputPart:
        """Return the next part to write, of up to `most` entries: as it was, if its last try had no answer."""
        if self._sent is None:
            taken, size = fitting(self._pending[:most])
            self._sent_size += size
            self._sent = OutputPart(hold, self.take, self._stored + 1, tuple(taken), self._sent_size)
            del self._pending[: len(taken)]
            self._pending_size -= size
        return self._sent

    def answered(self, part: OutputPart) -> None:
        """The store has this part."""
        if part is self._sent:
            self._sent = None
            if part.take == self.take:
                self._stored = part.last

    def refuse(self, error: Exception) -> None:
        """Nothing more can be written."""
        self.error = error
        self._pending, self._pending_size, self._sent = [], 0, None


def check_entry(entry: str) -> int:
    """Return the size of an entry in bytes. Raise OutputTooLarge if it is too large."""
    size = len(entry) if entry.isascii() else len(entry.encode())
    if size > OUTPUT_ENTRY_BYTES_MAX:
        raise OutputTooLarge(
            f"an entry of the output has {size:,} bytes; the limit is {OUTPUT_ENTRY_BYTES_MAX:,}: stream smaller"
            " pieces, or store it as a file with ctx.artifact"
        )
    return size


def full(count: int, size: int) -> str:
    return (
        f"the output of this attempt has {count:,} entries and {size:,} bytes; the limits are {OUTPUT_ENTRIES_MAX:,}"
        f" and {OUTPUT_BYTES_MAX:,}: stream larger pieces, or store the rest as a file with ctx.artifact"
    )


def fitting(entries: Sequence[str]) -> tuple[Sequence[str], int]:
    """Return the first entries that fit into a part, at least one, and their size."""
    total = 0
    for count, entry in enumerate(entries):
        size = len(entry) if entry.isascii() else len(entry.encode())
        if count and total + size > OUTPUT_PART_BYTES_MAX:
            return entries[:count], total
        total += size
    return list(entries), total
