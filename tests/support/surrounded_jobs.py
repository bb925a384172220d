"""Handlers of an app with a lifespan and middleware, for processes: each imports this module again."""

import contextvars
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstay import AnyContext, Backstay, BlockingBatchContext, BlockingContext, Context

NOTES = "SURROUNDED_NOTES"  # names a file
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


@dataclass
class State:
    pid: int
    thread: int
    calls: int = 0


def note(*words: object) -> None:
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def noted(kind: str) -> list[str]:
    lines = Path(os.environ[NOTES]).read_text().splitlines() if Path(os.environ[NOTES]).exists() else []
    return [line for line in lines if line.split()[0] == kind]


asynchronous = Backstay("sqlite:///nowhere.db")
plain = Backstay("sqlite:///nowhere.db")


@asynchronous.lifespan
async def connections() -> AsyncIterator[State]:
    note("begin", os.getpid())
    yield State(os.getpid(), threading.get_ident())
    note("end", os.getpid())


@plain.lifespan
@contextmanager
def model() -> Iterator[State]:
    note("begin", os.getpid())
    yield State(os.getpid(), threading.get_ident())
    note("end", os.getpid())


def audit(ctx: AnyContext[State]) -> Iterator[None]:
    token = tenant.set("ada")
    note("before", os.getpid())
    try:
        result = yield
        note("after", result)
    except ValueError as error:
        note("raised", error)
        raise
    finally:
        tenant.reset(token)


asynchronous.middleware(audit)
plain.middleware(audit)


def _seen(state: State) -> dict[str, Any]:
    state.calls += 1
    return {"pid": state.pid, "own": os.getpid(), "calls": state.calls, "tenant": tenant.get()}


@asynchronous.job("ask", isolation="process")
async def ask(payload: str, ctx: Context[State]) -> dict[str, Any]:
    if payload == "fail":
        raise ValueError(payload)
    return _seen(ctx.state)


@plain.job("ask", isolation="process")
def ask_plainly(payload: str, ctx: BlockingContext[State]) -> dict[str, Any]:
    return _seen(ctx.state)


@plain.batch_job("ask_many", isolation="process", max_size=5, max_wait=0.05)
def ask_many(payloads: list[str], ctx: BlockingBatchContext[State]) -> list[dict[str, Any]]:
    return [_seen(ctx.state) for _ in payloads]


def at(make_app: Callable[..., Backstay], app: Backstay) -> Backstay:
    """Return the app on a file of the test."""
    app.url = make_app().url
    return app
