"""Places of one kind at one server: so many for all, and of those so many for one key. Without the second bound, one
client could take what all others need."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.server.problems import Problem

Leave = Callable[[], None]


class Places:
    def __init__(self) -> None:
        self._taken: Counter[str | None] = Counter()

    @property
    def taken(self) -> int:
        return self._taken.total()

    def take(self, key_id: str | None, *, most: int, share: int, refused: Callable[[str], Problem]) -> Leave:
        """A place, until what is returned is called. Where there are no keys, this machine alone comes, and may have
        them all. `refused` makes a problem of who has how many already."""
        if self.taken >= most:
            raise refused(f"this server has {most:,}")
        if key_id is not None and self._taken[key_id] >= share:
            raise refused(f"this key has {share:,}")
        self._taken[key_id] += 1
        left = False

        def leave() -> None:
            nonlocal left
            if not left:
                left = True
                self._taken[key_id] -= 1
                if not self._taken[key_id]:
                    del self._taken[key_id]

        return leave


class EventStream(StreamingResponse):
    """A stream that keeps its place from before it begins until it is over, however it ends."""

    def __init__(self, events: AsyncIterator[bytes], leave: Leave, headers: Mapping[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()
