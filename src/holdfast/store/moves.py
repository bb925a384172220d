"""A queue that moves to another store, as it crosses the port."""

from __future__ import annotations

import secrets

import msgspec

from holdfast.errors import MoveFailed

FORMAT = 1  # of what crosses: a move that another release has begun with another one cannot be gone on with
TAKEN_OVER = "another run of the same command goes on with this move, or has given it up: nothing was written"
_RUNS_APART = 1 << 32  # so many that two which take over at once do not draw the same
FROM = "from"
INTO = "into"
SEALED = "sealed"  # `kind` of a store that is moved from, once nothing in it is under way any more


class MoveState(msgspec.Struct, frozen=True, kw_only=True):
    """How far a move is, as each of its two stores keeps it."""

    role: str  # from, into
    move_id: str
    other: str  # the other store, for people
    kind: str = ""  # into: what is copied next; from: "", or sealed
    after: str | None = None  # … and after which item of it
    done: bool = False
    format: int = FORMAT
    files: int = 0  # into: that were carried so far …
    file_bytes: int = 0
    missing: tuple[str, ...] = ()  # … and that could not be read, up to a few
    missing_count: int = 0
    run: int = 0  # of several that try to finish one move, the one with the highest goes on


class Exported(msgspec.Struct, frozen=True):
    """A page of one kind: each item is the msgpack of that kind's dump."""

    items: tuple[bytes, ...]
    next: str | None = None


def next_run(*states: MoveState | None) -> int:
    """Of one that takes a move over; drawn, so that of two that do so at once one is the higher."""
    return max(state.run for state in states if state is not None) + 1 + secrets.randbelow(_RUNS_APART)


def refuse_other(stored: MoveState | None, state: MoveState) -> None:
    """Only the move that a store was marked for writes into it, by its last run, and only until it has finished."""
    if state.role != INTO or (stored is not None and stored.move_id != state.move_id):
        raise MoveFailed("this store is not being moved into, or by another move: nothing was written")
    if stored is not None and stored.done and not state.done:
        raise MoveFailed("this move has finished, by another run of the same command: nothing was written")
    if stored is not None and stored.run > state.run:
        raise MoveFailed(TAKEN_OVER)


def refuse_freezing(stored: MoveState | None, state: MoveState) -> None:
    """A queue is frozen by one move at a time, by its last run, and sealed only while it is frozen."""
    if stored is None or (stored.role == INTO and stored.done):
        if state.kind == SEALED:
            raise MoveFailed("this move was given up meanwhile: the queue goes on where it was")
    elif (stored.role, stored.move_id) != (FROM, state.move_id):
        raise MoveFailed(f"this queue moves already, to or from {stored.other}: finish that, or give it up by --thaw")
    elif stored.run > state.run:
        raise MoveFailed(TAKEN_OVER)


def is_closed(state: MoveState | None) -> bool:
    """Whether nothing of a queue in this state may change."""
    if state is None:
        return False
    return not state.done if state.role == INTO else state.kind == SEALED


def is_as_closed(before: MoveState | None, state: MoveState) -> bool:
    """Whether a queue in one state is closed as the other asks for."""
    return before is not None and _closed(before) == _closed(state)


def _closed(state: MoveState) -> tuple[str, bool, bool]:
    return state.role, state.kind == SEALED, state.done


def refusal(state: MoveState) -> str:
    """What StoreMoved says to those who come meanwhile, or afterwards."""
    if state.role == INTO:
        return (
            f'a move from {state.other} into this queue has not finished: run "holdfast move" again;'
            " until then it serves nobody"
        )
    if state.done:
        return f"this queue has moved to {state.other}: point HOLDFAST_URL there"
    return f"this queue moves to {state.other}: point HOLDFAST_URL there once it has"
