"""Dependencies on DynamoDB: edges between jobs, and what the end of a job releases.

    ends ──▶ one commit with all its dependents, where they fit
         └─▶ one commit with a mark, then dependents in commits of their own: `release` continues from the mark

Each edge is met once, and each dependent is compared with what was read of it, so two dependencies that end at once
both count. A dependent that ends too, and has dependents itself, gets a mark of its own in the commit that ends it.

The edges of a job with many dependencies are registered after it is stored. It is stored waiting for all of them and
one more, with a mark. Then each edge is registered in one commit with its dependency, which counts its dependents; an
edge whose dependency has ended meanwhile is met at once. The last commit removes the extra one, and the mark. Each step
may be repeated: an edge is registered once. A rerun job that waits for many again goes the same way: its edges exist,
and each is counted anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec

from backstay import failpoints
from backstay.clock import Instant
from backstay.core.dependencies import Brood
from backstay.core.records import Signal
from backstay.core.states import ACTIVE, TERMINAL, Status
from backstay.engines.dynamodb import insert_decision, items, outbox, schema, transitions
from backstay.engines.dynamodb import plan as dynamodb_plan
from backstay.engines.dynamodb.commit import Cancelled, Commit, Rounds
from backstay.engines.dynamodb.expressions import (
    Ask,
    Write,
    absent,
    check,
    differs,
    equals,
    one_of,
    present,
    put_new,
    update,
)
from backstay.engines.dynamodb.insert_decision import Touched
from backstay.engines.dynamodb.outbox import Mark, MarkKind
from backstay.engines.dynamodb.plan import Plan
from backstay.engines.dynamodb.schema import Item, Table
from backstay.engines.dynamodb.session import Session
from backstay.engines.dynamodb.transport import Lane

TOGETHER_MAX = 40  # dependents in one commit: each is two or three items


async def unmet(session: Session, parent: str, most: int) -> list[str]:
    """Return dependents whose edge is not met yet, up to `most`."""
    children = []
    ask = Ask(table=Table.RECORDS, hash=schema.edges(parent), where=absent("met"), consistent=True)
    async for row in session.tables.ask(ask, lane=Lane.URGENT):
        children.append(row["sk"])
        if len(children) == most:
            break
    return children


async def plan(session: Session, parent: Item, children: Sequence[str], now: Instant) -> Plan:
    """Return what the end of `parent` (with its result as text, if any) does to these dependents."""
    made = Plan()
    outcome = transitions.status_of(parent)
    parent_id = parent["job_id"]
    found = await insert_decision.get_jobs(session, children)
    donor = parent
    if any(child.get("joins") == parent_id for child in found.values()):
        donor = await insert_decision.with_result(session, parent)
    for child_id in children:
        met = update(
            Table.RECORDS, schema.edge(parent_id, child_id), sets={"met": 1}, condition=present("pk") & absent("met")
        )
        made.writes.append(met)
        if child_id in found:
            made.move(transitions.released(found[child_id], parent_id, outcome, donor, now, items.new_wid()), now)
    return made


async def resume_release(session: Session, mark: Mark, now: Instant, limit: int, then: deque[Mark]) -> int:
    """Release up to `limit` dependents of the job of this mark; marks that follow from this are added to `then`."""
    children = await unmet(session, mark.name, limit + 1)
    due = children[:limit]
    for start in range(0, len(due), TOGETHER_MAX):
        if not await _release(session, mark.name, due[start : start + TOGETHER_MAX], now, then):
            await outbox.finish(session.tables, mark)
            return start  # manually retried since: its dependents continue to wait
        failpoints.hit("outbox.between")
    if len(children) <= limit:
        await outbox.finish(session.tables, mark)
    return len(due)


async def _release(session: Session, parent_id: str, children: Sequence[str], now: Instant, then: deque[Mark]) -> bool:
    """Release these dependents in one commit, or in two halves if that is too large; return False if the parent runs
    again."""
    rounds = Rounds("release")
    while True:
        [parent] = await session.tables.get(Table.JOBS, [(parent_id,)], lane=Lane.URGENT)
        if parent is None or transitions.status_of(parent) not in TERMINAL:
            return False
        if rounds.lost:  # other processes release them too: only what is left
            left = set(await unmet(session, parent_id, len(children) * 4))
            children = [child for child in children if child in left]
            if not children:
                return True
        made = await plan(session, parent, children, now)
        await dynamodb_plan.settle(session, made, now)
        commit = Commit(session.tables, "release", now)
        made.into(commit)
        still = check(Table.JOBS, (parent_id,), equals("version", parent.get("version")))
        if not commit.takes(still) and len(children) > 1:
            half = len(children) // 2
            first = await _release(session, parent_id, children[:half], now, then)
            return first and await _release(session, parent_id, children[half:], now, then)
        commit.write(still)
        await items.put(session.tables, made.texts)
        try:
            await commit.run(Lane.URGENT)
        except Cancelled:
            await rounds.again()
            continue
        session.board.committed(commit.signals)
        then.extend(made.marks)
        return True


_UNCHANGED = Brood()


async def resume_join(session: Session, mark: Mark, now: Instant, then: deque[Mark]) -> int:
    """Decide about the parent of this mark by its counts. If a child was added or run again since, it continues to
    wait, and the last child leaves a new mark. Marks that follow from its end are added to `then`."""
    rounds = Rounds("release")
    while True:
        [parent] = await session.tables.get(Table.JOBS, [(mark.name,)], lane=Lane.URGENT)
        moved = None if parent is None else transitions.joined(parent, _UNCHANGED, now, items.new_wid())
        if moved is None:
            await outbox.finish(session.tables, mark)
            return 0
        made = Plan()
        made.move(moved, now)
        await dynamodb_plan.settle(session, made, now)
        commit = Commit(session.tables, "release", now)
        made.into(commit)
        commit.write(outbox.finished(mark))
        await items.put(session.tables, made.texts)
        try:
            await commit.run(Lane.URGENT)
        except Cancelled as cancelled:
            if (Table.RECORDS, outbox.place(mark.kind, mark.name)) in cancelled.failed:
                return 0  # another process was faster
            await rounds.again()
            continue
        session.board.committed(commit.signals)
        then.extend(made.marks)
        return 1


async def resume(session: Session, marks: Iterable[Mark], now: Instant, limit: int) -> int:
    """Continue from marks, breadth first, because a cancelled dependent has dependents of its own, and a failed parent
    has a parent above it. At most `limit` changes: the rest keeps its mark."""
    queue = deque(marks)
    done = 0
    while queue and done < limit:
        mark = queue.popleft()
        if mark.kind == MarkKind.JOIN:
            done += await resume_join(session, mark, now, queue)
        else:
            done += await resume_release(session, mark, now, limit - done, queue)
    if done >= limit:
        session.board.committed({Signal.UNFINISHED})
    return done


_active = sorted(status.value for status in ACTIVE)


def edge(parent: str, child: str, *, met: bool, joined: bool) -> Write:
    pk, sk = schema.edge(parent, child)
    flags = {name: 1 for name, is_so in (("met", met), ("joined", joined)) if is_so}
    return put_new(Table.RECORDS, {"pk": pk, "sk": sk, **flags})


async def dependencies(session: Session, item: Item) -> list[str]:
    """Return all dependencies of a job, from its item or from separate records."""
    if "needs" not in item:
        return list(item.get("depends_on", ()))
    pk, _ = schema.needs(item["job_id"])
    ask = Ask(table=Table.RECORDS, hash=pk, consistent=True)
    return [parent async for row in session.tables.ask(ask) for parent in row["parents"]]


async def resume_link(session: Session, mark: Mark, now: Instant) -> int:
    """Continue from a mark if the process that stored the job has died or is slow."""
    return await link(session, mark, now) if outbox.is_left(mark, now) else 0


async def link(session: Session, mark: Mark, now: Instant) -> int:
    """Register the edges of a job that was stored without them; return how many jobs changed."""
    [child] = await session.tables.get(Table.JOBS, [(mark.name,)])
    if child is None or not transitions.is_there(child):
        await outbox.finish(session.tables, mark)
        return 0
    parents = await dependencies(session, child)
    again = "again" in mark.item
    if again:
        parents = [parent for parent in parents if parent != child.get("joined")]
    for start in range(0, len(parents), TOGETHER_MAX):
        some = parents[start : start + TOGETHER_MAX]
        await _register(session, mark.name, some, now, mark.nonce if again else None)
        failpoints.hit("link.between")
    return await _let_go(session, mark, now)


async def _register(
    session: Session, child_id: str, parents: Sequence[str], now: Instant, anew: str | None = None
) -> None:
    """Register edges. `anew`: the edges exist and count again, for a job that runs again; the value tells which of them
    have been counted."""
    rounds = Rounds("insert")
    while True:
        known = await session.tables.get(Table.RECORDS, [schema.edge(parent, child_id) for parent in parents])
        missing = [
            parent
            for parent, found in zip(parents, known, strict=True)
            if found is None or (anew is not None and found.get("anew") != anew)
        ]
        if not missing:
            return
        found = await insert_decision.get_jobs(session, [child_id, *missing])
        child = found.get(child_id)
        if child is None or not transitions.is_there(child):
            return
        commit = Commit(session.tables, "insert", now)
        made = Plan()
        moved = transitions.Moved(child, child)
        for parent in missing:
            item = found.get(parent)
            status = Status.COMPLETED if item is None else transitions.status_of(item)
            joined = child.get("joined") == parent
            if anew is not None:
                commit.write(*_edge_anew(parent, child_id, status, anew))
            else:
                commit.write(edge(parent, child_id, met=status in TERMINAL, joined=joined))
                if item is not None and transitions.is_there(item):
                    commit.write(Touched(item, awaited=1).write())
            if status not in ACTIVE:
                donor = await insert_decision.with_result(session, item) if item is not None and joined else None
                moved = _then(moved, transitions.released(moved.item, parent, status, donor, now, items.new_wid()))
        made.move(moved, now)
        await dynamodb_plan.settle(session, made, now)
        made.into(commit)
        await items.put(session.tables, made.texts)
        try:
            await commit.run(Lane.USUAL)
        except Cancelled:
            await rounds.again()
            continue
        session.board.committed(commit.signals)
        await resume(session, made.marks, now, TOGETHER_MAX)
        return


def _edge_anew(parent: str, child: str, status: Status, anew: str) -> list[Write]:
    place = schema.edge(parent, child)
    once = absent("anew") | differs("anew", anew)
    if status in TERMINAL:
        return [update(Table.RECORDS, place, sets={"anew": anew, "met": 1}, condition=once)]
    still = check(Table.JOBS, (parent,), one_of("status", _active))
    return [update(Table.RECORDS, place, sets={"anew": anew}, removes=("met",), condition=once), still]


def _then(first: transitions.Moved, second: transitions.Moved) -> transitions.Moved:
    """Combine two changes of one item. Only the last can have released it: a released job no longer waits."""
    if second.item is second.was:
        return first
    return msgspec.structs.replace(second, was=first.was)


async def _let_go(session: Session, mark: Mark, now: Instant) -> int:
    """Remove the hold once all edges are registered, and release the job if nothing else holds it."""
    rounds = Rounds("insert")
    while True:
        [child] = await session.tables.get(Table.JOBS, [(mark.name,)])
        commit = Commit(session.tables, "insert", now)
        made = Plan()
        if child is not None:
            made.move(transitions.let_go(child, now, items.new_wid()), now)
            await dynamodb_plan.settle(session, made, now)
        made.into(commit)
        commit.write(outbox.finished(mark))
        try:
            await commit.run(Lane.USUAL)
        except Cancelled as cancelled:
            if (Table.RECORDS, outbox.place(MarkKind.LINK, mark.name)) in cancelled.failed:
                return 0  # another process was faster
            await rounds.again()
            continue
        session.board.committed(commit.signals)
        await resume(session, made.marks, now, TOGETHER_MAX)
        return 1
