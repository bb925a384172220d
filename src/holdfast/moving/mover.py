"""The steps of a move, in order; each may be repeated."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec

from holdfast import failpoints, settings
from holdfast.clock import MICROS, Clock, SystemClock
from holdfast.errors import ConfigurationError, MoveFailed, StoreBusy
from holdfast.files import Files
from holdfast.limits import LEASE_SECONDS, MOVE_GRACE_SECONDS
from holdfast.moving.files import Carrier
from holdfast.moving.places import may_name_files
from holdfast.moving.reporting import Progress, Report
from holdfast.moving.verifying import pages, verified
from holdfast.statuses import Status
from holdfast.store import dumps
from holdfast.store.moves import FORMAT, FROM, INTO, SEALED, TAKEN_OVER, MoveState, next_run
from holdfast.store.port import Store
from holdfast.store.types import Query
from holdfast.stores import open_files, open_url
from holdfast.worker.upkeep import Upkeep

LOOK_SECONDS = 0.25  # between looks at whether what runs has ended
NAMED_MAX = 5
_COPIED = "verifying"  # `kind` of a store into which all was copied
_MUST_BE_EMPTY = (dumps.JOBS, dumps.ARCHIVE, dumps.SCHEDULES, dumps.GUARDS, dumps.KEYS, dumps.AUDIT)

Show = Callable[[Progress], None]


async def move(
    source_url: str,
    target_url: str,
    *,
    artifacts: str | None = None,
    to_artifacts: str | None = None,
    grace: float | None = None,
    clock: Clock | None = None,
    show: Show = lambda _: None,
) -> Report:
    """Carry a queue from one store to another, or go on where an earlier try ended. `artifacts` is where the queue's
    files are, if not with the store, and `to_artifacts` where they are to be; by default they stay there."""
    artifacts = settings.setting("artifacts", artifacts, str, "") or None
    stays = artifacts is not None and to_artifacts in (None, artifacts)
    async with _opened(source_url, must_exist=True) as source, _opened(target_url) as target:
        if source.location == target.location:
            raise ConfigurationError(f"{source.location} is where the queue is: name another place to move it to")
        with (
            _files(source_url, source, artifacts) as here,
            _files(target_url, target, to_artifacts or artifacts) as there,
        ):
            carrier = None if stays else Carrier(here, there)
            return await Mover(source, target, carrier, grace, clock or SystemClock(), show).run()


async def thaw(source_url: str, target_url: str, *, force: bool = False) -> None:
    """Give a move up: the queue goes on where it was."""
    async with _opened(source_url, must_exist=True) as source:
        state = await source.moving()
        if state is None or state.role != FROM:
            raise MoveFailed(f"{source.location} does not move: there is nothing to give up")
        if (given := open_url(target_url).location) != state.other:
            raise MoveFailed(f"{source.location} moves to {state.other}, and not to {given}: name that place")
        if not force and (state.done or not await _kept_from_opening(target_url, state)):
            raise MoveFailed(
                f"the queue has moved to {state.other}, where its jobs run: if {source.location} went on, they would"
                " run twice. Add --force only if nothing has run there"
            )
        await source.freeze(None)


async def _kept_from_opening(target_url: str, state: MoveState) -> bool:
    """Take the move over in its new place, so that whoever still carries it does not open that; False: it is open."""
    look = getattr(open_url(target_url), "exists", None)
    if look is not None and not await look():
        return True
    async with _opened(target_url) as target:
        into = await target.moving()
        if into is None or into.move_id != state.move_id:
            return True
        if into.done:
            return False
        await target.restore("", [], msgspec.structs.replace(into, run=next_run(into, state)))
        return True


class Mover:
    def __init__(
        self, source: Store, target: Store, carrier: Carrier | None, grace: float | None, clock: Clock, show: Show
    ) -> None:
        self._source = source
        self._target = target
        self._carrier = carrier
        self._grace = grace
        self._clock = clock
        self._show = show
        self._leaving = MoveState(role=FROM, move_id="", other=target.location)
        self._coming = MoveState(role=INTO, move_id="", other=source.location)

    async def run(self) -> Report:
        started = self._clock.monotonic()
        await self._begin()
        if not self._coming.done:
            await self._drain()
            await self._copy()
        sums = await self._verify() if not self._coming.done else {}
        await self._open()
        carrier = self._carrier
        return Report(
            source=self._source.location,
            target=self._target.location,
            copied={kind: found[0] for kind, found in sums.items()},
            shortened=sum(found[1] for found in sums.values()),
            files=carrier.files if carrier else 0,
            file_bytes=carrier.file_bytes if carrier else 0,
            missing=tuple(carrier.missing) if carrier else (),
            missing_count=carrier.missing_count if carrier else 0,
            seconds=self._clock.monotonic() - started,
        )

    # Beginning, or going on

    async def _begin(self) -> None:
        left, into = await self._source.moving(), await self._target.moving()
        self._refuse_others(left, into)
        if into is not None and into.role == INTO and left is not None and into.move_id == left.move_id:
            self._leaving, self._coming = left, into
            if self._carrier is not None:
                self._carrier.go_on_from(into)
            if not into.done:
                await self._take_over(next_run(left, into))
            return
        begun = into if into is not None and into.role == INTO and not into.done else None
        if begun is not None and (begun.kind, begun.other) != ("", self._source.location):
            raise MoveFailed(
                f"a move from {begun.other} into {self._target.location} was begun and given up: it holds a part of"
                " what there was then. Empty it, or name another place"
            )
        await self._refuse_used()
        await self._refuse_too_large()
        move_id = secrets.token_hex(8) if begun is None else begun.move_id
        self._leaving = msgspec.structs.replace(self._leaving, move_id=move_id)
        self._coming = msgspec.structs.replace(self._coming, move_id=move_id)
        await self._take_over(next_run(begun, self._coming))
        failpoints.hit("move.marked")
        await self._declare_tables()

    async def _declare_tables(self) -> None:
        """While the queue still goes on: what its result tables need may be missing there."""
        async for items, _ in pages(self._source, dumps.TABLES):
            await self._target.restore(dumps.TABLES, items, self._coming)

    async def _take_over(self, run: int) -> None:
        """From here on no earlier run of this move writes anything more, should one still live."""
        self._leaving = msgspec.structs.replace(self._leaving, run=run)
        self._coming = msgspec.structs.replace(self._coming, run=run)
        await self._target.restore("", [], self._coming)

    async def _refuse_if_taken_over(self) -> None:
        into = await self._target.moving()
        if into is None or into.done or (into.move_id, into.run) != (self._coming.move_id, self._coming.run):
            raise MoveFailed(TAKEN_OVER)

    def _refuse_others(self, left: MoveState | None, into: MoveState | None) -> None:
        here, there = self._source.location, self._target.location
        for state in (left, into):
            if state is not None and state.format != FORMAT:
                raise MoveFailed("another release of Holdfast has begun this move: finish it with that one")
        if left is not None and left.role == INTO and not left.done:
            raise MoveFailed(f"a move into {here} has not finished: finish that one first")
        if into is not None and into.role == FROM:
            raise MoveFailed(f"{there} moves, or has moved, to {into.other} itself: name that, or another place")
        ours = left is None or left.role != FROM or (into is not None and into.move_id == left.move_id)
        if left is not None and not ours:
            raise MoveFailed(
                f"{here} {'has moved' if left.done else 'moves'} to {left.other} already: name that place"
                + ("" if left.done else f', or give it up with "{self._command(left.other)} --thaw"')
            )

    def _command(self, target: str) -> str:
        return shlex.join(("holdfast", "move", self._source.location, target))

    async def _refuse_used(self) -> None:
        for kind in _MUST_BE_EMPTY:
            if (await self._target.export(kind, None, 1)).items:
                raise MoveFailed(
                    f"{self._target.location} has {kind} of its own: a queue moves only into an empty one; name another"
                    " place, for example another file, schema or table prefix"
                )

    async def _refuse_too_large(self) -> None:
        if self._carrier is None or not self._carrier.may_be_too_small:
            return
        async for items, _ in pages(self._source, dumps.JOBS):
            for item in items:
                self._carrier.refuse_too_large(item)

    # Standing still

    async def _drain(self) -> None:
        """Freeze, then wait for what runs; workers that died are not waited for."""
        await self._refuse_if_taken_over()
        if await self._source.moving() != self._leaving:
            await self._source.freeze(self._leaving)
        failpoints.hit("move.frozen")
        upkeep = Upkeep(
            self._source,
            self._clock,
            worker_id=f"move {self._leaving.move_id}",
            lease_seconds=LEASE_SECONDS,
            sweep_seconds=LOOK_SECONDS,
        )
        sealed = msgspec.structs.replace(self._leaving, kind=SEALED)
        deadline = self._clock.monotonic() + await self._patience()
        while left := await self._sealed(sealed):
            self._show(Progress("waiting", left))
            if self._clock.monotonic() > deadline:
                raise MoveFailed(await self._who_runs())
            await upkeep.sweep_once()
            await asyncio.sleep(LOOK_SECONDS)
        self._leaving = sealed
        failpoints.hit("move.drained")

    async def _sealed(self, state: MoveState) -> int:
        """How much is under way; 0: it stands still."""
        try:
            return await self._source.freeze(state)
        except StoreBusy:  # someone is in the middle of a long transaction
            return 1

    async def _patience(self) -> float:
        if self._grace is not None:
            return self._grace
        leases = [worker.lease_micros / MICROS for worker in await self._source.workers()]
        return MOVE_GRACE_SECONDS + max(leases, default=LEASE_SECONDS)

    async def _who_runs(self) -> str:
        page = await self._source.find(Query(status=Status.PROCESSING, limit=100))
        number = (await self._source.counts())[Status.PROCESSING]
        workers = list(dict.fromkeys(job.worker_id or "" for job in page.items))
        named = ", ".join(workers[:NAMED_MAX]) + (", …" if len(workers) > NAMED_MAX else "")
        jobs = "1 job still runs" if number == 1 else f"{number:,} jobs still run"
        runs = f"{jobs} on {named}" if number else "others still change the queue"
        return (
            f"{runs}: stop their workers, or give more time with --grace, and run the same command again."
            f" {self._source.location} takes and gives no jobs until then, or until --thaw"
        )

    # Copying

    async def _copy(self) -> None:
        begin = self._coming.kind or dumps.KINDS[0]
        if begin == _COPIED:
            return
        for kind in dumps.KINDS[dumps.KINDS.index(begin) :]:
            await self._copy_kind(kind, self._coming.after if kind == begin else None)
        failpoints.hit("move.copied")

    async def _copy_kind(self, kind: str, after: str | None) -> None:
        """Each page in one commit with where the next one begins, unless files come between the two."""
        total = sum((await self._source.counts()).values()) if kind == dumps.JOBS else None
        done = sum((await self._target.counts()).values()) if kind == dumps.JOBS and after else 0
        follows = dict(zip(dumps.KINDS, (*dumps.KINDS[1:], _COPIED), strict=True))[kind]
        async for items, place in pages(self._source, kind, after):
            here = msgspec.structs.replace(self._coming, kind=kind, after=after)
            after = place
            self._coming = msgspec.structs.replace(here, kind=follows if place is None else kind, after=place)
            if kind == dumps.JOBS and self._carrier is not None and any(map(may_name_files, items)):
                await self._target.restore(kind, self._carrier.relocated(items), here)
                failpoints.hit("move.files")
                await asyncio.to_thread(self._carrier.carry, items)
                self._coming = self._carrier.counted(self._coming)
                await self._target.restore("", [], self._coming)
            else:
                await self._target.restore(kind, items, self._coming)
            failpoints.hit("move.page")
            done += len(items)
            if items:
                self._show(Progress(kind, done, total))

    async def _verify(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        total = 2 * sum((await self._source.counts()).values())
        done = 0

        def read(number: int) -> None:
            nonlocal done
            done += number
            self._show(Progress("verifying", min(done, total), total))

        for kind in dumps.KINDS:
            try:
                sums = await verified(self._source, self._target, kind, read)
            except MoveFailed:
                await self._refuse_if_taken_over()  # then they may differ
                raise
            found[kind] = (sums.count, sums.shortened)
        failpoints.hit("move.verified")
        return found

    async def _open(self) -> None:
        """The new one first: killed in between, jobs run there, and here they do not."""
        if not self._coming.done:
            if await self._source.moving() != self._leaving:
                raise MoveFailed(TAKEN_OVER)
            await self._target.restore("", [], msgspec.structs.replace(self._coming, done=True))
            failpoints.hit("move.opened")
        if await self._source.freeze(msgspec.structs.replace(self._leaving, kind=SEALED, done=True)):
            raise MoveFailed(
                f"jobs run in {self._source.location}, and the queue is open in {self._target.location}: stop the"
                " workers of one of them, and run the same command again"
            )


@contextlib.asynccontextmanager
async def _opened(url: str, *, must_exist: bool = False) -> AsyncIterator[Store]:
    store = open_url(url)
    look = getattr(store, "exists", None)
    if must_exist and look is not None and not await look():
        raise ConfigurationError(f"no queue at {store.location}: there is nothing to move")
    await store.open()
    try:
        yield store
    finally:
        await asyncio.shield(store.close())


@contextlib.contextmanager
def _files(url: str, store: Store, artifacts: str | None) -> Iterator[Files]:
    files = open_files(url, store, artifacts)
    try:
        yield files
    finally:
        files.close()
