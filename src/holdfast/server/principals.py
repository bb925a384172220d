"""Who asks: what a key, a session, or nothing at all from this machine may do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from holdfast import keys

Scope = Literal["read", "submit", "work", "admin"]
Via = Literal["http", "dashboard"]
SCOPES: tuple[Scope, ...] = ("read", "submit", "work", "admin")


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever a request comes from. Its rights are those of its key, and nothing else gives any."""

    name: str
    scopes: frozenset[str]
    queues: tuple[str, ...] = ()  # patterns with *; none: all queues
    key_id: str | None = None  # None: this machine, where there are no keys
    via: Via = "http"
    session_id: str | None = field(default=None, repr=False)  # of the dashboard: the id of its short-lived key

    def may(self, *scopes: str) -> bool:
        """Whether it has one of them; admin has all."""
        return "admin" in self.scopes or not self.scopes.isdisjoint(scopes)

    def sees(self, queue: str) -> bool:
        return keys.matches(self.queues, queue)

    @property
    def sees_all(self) -> bool:
        return not self.queues or "*" in self.queues


def local(via: Via) -> Principal:
    """Someone on this machine, where there are no keys."""
    return Principal("local", frozenset(SCOPES), via=via)
