"""What children have done to their parents' numbers within a transaction, and not written yet."""

from __future__ import annotations

from holdfast.trees import Brood


class Broods:
    """Remembered here, and written once for each parent: a row that changes with every child is read anew each time."""

    __slots__ = ("_changes",)

    def __init__(self) -> None:
        self._changes: dict[str, Brood] = {}

    def __bool__(self) -> bool:
        return bool(self._changes)

    def add(self, parent: str | None, change: Brood) -> None:
        """Nothing for a job that has no parent. A change of nothing has the parent judged with the others."""
        if parent is not None:
            self._changes[parent] = self._changes.get(parent, Brood()) + change

    def take(self) -> dict[str, Brood]:
        changes, self._changes = self._changes, {}
        return changes
