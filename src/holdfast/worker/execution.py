"""What runs in a slot, and how it is asked to end: a coroutine is cancelled, a thread told, a child process killed."""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


class Execution(ABC):
    """Most of them never stop before their end: what stopping needs is a default of the class."""

    cancelled: threading.Event | None = None  # only threads wait on it
    begun = False
    stop_reason: str | None = None
    task: asyncio.Task[None] | None = None
    deadline = math.inf  # on the event loop's clock; set when the handler begins
    kill: Callable[[], None] | None = None  # how to end a child process

    def stop(self, reason: str) -> None:
        """Ask the handler to end, as hard as its kind allows. The first reason counts."""
        if self.stop_reason is None:
            self.stop_reason = reason
        if self.cancelled is not None:
            self.cancelled.set()
        if self.kill is not None:
            self.kill()
        elif self.task is not None and self.cancelled is None and self.begun:
            # A task that is cancelled before its first step never runs at all, and would never free its slot; one that
            # has not begun looks at stop_reason when it does.
            self.task.cancel()

    @property
    def is_stopped(self) -> bool:
        return self.stop_reason is not None

    @property
    @abstractmethod
    def timeout_micros(self) -> int: ...

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing that it still does counts."""
