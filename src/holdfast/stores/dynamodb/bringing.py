"""Children that come with the settlement of their parent: in its commit, or named in it by a mark where they are more.

The settlement is what makes them, so nothing of it is committed where one of them cannot be stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from holdfast.clock import Instant
from holdfast.errors import EffectFailed
from holdfast.lifecycle import Transition
from holdfast.stores.dynamodb import items, looking, moving, storing, unpacking
from holdfast.stores.dynamodb.commit import Commit, Write
from holdfast.stores.dynamodb.deciding import Decided, decide
from holdfast.stores.dynamodb.ground import Ground
from holdfast.stores.dynamodb.looking import Looked
from holdfast.stores.dynamodb.moving import Moved
from holdfast.stores.dynamodb.outbox import Mark
from holdfast.trees import Brood

_NOTHING = Brood()


class Brought(Protocol):
    """`brood`: what the commit adds to the parent's numbers. `mark`: from which the rest is stored."""

    @property
    def brood(self) -> Brood: ...
    @property
    def mark(self) -> Mark | None: ...

    async def commit(self, ground: Ground, settles: Sequence[Write], now: Instant) -> Commit:
        """The children, or their mark, together with what settles their parent."""
        ...


class Together(msgspec.Struct, frozen=True):
    brood: Brood
    decided: Decided
    looked: Looked
    mark: Mark | None = None

    async def commit(self, ground: Ground, settles: Sequence[Write], now: Instant) -> Commit:
        return await storing.prepare(ground, self.decided, self.looked, now, "apply", settles, gated=False)


class Named(msgspec.Struct, frozen=True):
    mark: Mark
    brood: Brood = unpacking.HELD

    async def commit(self, ground: Ground, settles: Sequence[Write], now: Instant) -> Commit:
        commit = Commit(ground.tables, "apply", now)
        commit.write(*settles, *unpacking.held(self.mark))
        return commit


async def refuse(ground: Ground, transitions: Sequence[Transition], now: Instant) -> None:
    """Look before the first is applied: where a child of one cannot be stored, nothing of the call is."""
    for t in transitions:
        if not t.children and t.staged is None:
            continue
        found = await looking.get_jobs(ground, [t.job_id])
        if isinstance(moving.applied(found.get(t.job_id), t, now, ""), Moved):
            await prepare(ground, t, now)


async def prepare(ground: Ground, t: Transition, now: Instant) -> Brought:
    if t.staged is not None:
        wanted = {str(part) for part in range(t.staged.parts)}
        if not wanted <= await unpacking.parts_of(ground, t.job_id, t.attempt):
            raise EffectFailed("children that were staged are gone: the run is repeated", job_id=t.job_id)
        return Named(unpacking.due(t.job_id, t.attempt, t.staged.parts, now))
    looked = await looking.look(ground, t.children)
    decided = decide(t.children, looked, now, items.new_wid())
    if decided.refusal is not None:
        raise EffectFailed(f"a child cannot be stored: {decided.refusal}", job_id=t.job_id) from decided.refusal
    if any(new.linked_later for new in decided.news.values()):
        return await staged(ground, t, now)
    touched = decided.touched.get(t.job_id)
    return Together(_NOTHING if touched is None else touched.brood, decided, looked)


async def staged(ground: Ground, t: Transition, now: Instant) -> Brought:
    """Those that came in one piece and do not fit into the commit."""
    await ground.tables.update(unpacking.noted(t.job_id, t.attempt, None, now))
    await unpacking.put_part(ground, t.job_id, t.attempt, 0, t.children)
    return Named(unpacking.due(t.job_id, t.attempt, 1, now))
