"""Looking, deciding and committing again after somebody else was faster."""

from __future__ import annotations

import asyncio
import random

from holdfast.errors import StoreBusy

ROUNDS_MAX = 30
_PAUSE_SECONDS = 0.005


class Rounds:
    """How often one verb has lost. Whoever loses this often has met a crowd: its caller tries again later."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self.lost = 0

    async def again(self) -> None:
        self.lost += 1
        if self.lost == ROUNDS_MAX:
            raise StoreBusy(f"{self._verb}: others changed the same jobs {self.lost} times in between: try again")
        await asyncio.sleep(random.random() * _PAUSE_SECONDS * min(2**self.lost, 40))
