"""Handlers that raise and return what no one expects."""

import asyncio
from collections.abc import Callable
from typing import Any

from backstay import Backoff, Backstay, ClaimLost

_app = Backstay("sqlite:///unused.db")


class NoText(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no text")

    __repr__ = __str__


class NoClass(Exception):
    @property
    def __class__(self) -> Any:
        raise RuntimeError("it has no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class NoHash(Exception):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it equals nothing")

    def __hash__(self) -> int:
        raise RuntimeError("it has no hash")


class NoParts(ExceptionGroup[Exception]):
    @property
    def exceptions(self) -> Any:
        raise RuntimeError("it has no parts")


class Own(BaseException): ...


def nested() -> BaseException:
    error: Exception = ValueError("innermost")
    for _ in range(3_000):
        error = ExceptionGroup("one of many", [error])
    return error


def chained() -> BaseException:
    error: Exception = ValueError("first")
    for _ in range(3_000):
        error, error.__cause__ = ValueError("next"), error
    return error


def round_about() -> BaseException:
    one, other = KeyError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    return one


# By the name of the type that is stored.
HOSTILE: dict[str, Callable[[], BaseException]] = {
    "NoText": NoText,
    "NoClass": NoClass,
    "NoHash": NoHash,
    "NoParts": lambda: NoParts("empty", [ValueError()]),
    "Own": Own,
    "ExceptionGroup": nested,
    "ValueError": chained,
    "KeyError": round_about,
    "GeneratorExit": GeneratorExit,
    "StopAsyncIteration": StopAsyncIteration,
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": SystemExit,
    "CancelledError": asyncio.CancelledError,
    "ClaimLost": lambda: ClaimLost("it says"),
}


def _answer(payload: str) -> str:
    if payload == "good":
        return payload
    raise HOSTILE[payload]()


def _answers(payloads: list[str]) -> list[Any]:
    answers: list[Any] = []
    for payload in payloads:
        how, _, name = payload.partition(" ")
        if how == "raised":
            raise HOSTILE[name]()
        answers.append(payload if how == "good" else HOSTILE[name]())
    return answers


@_app.job("hostile_async", max_attempts=1)
async def hostile_async(payload: str) -> str:
    return _answer(payload)


@_app.job("hostile_thread", max_attempts=1)
def hostile_thread(payload: str) -> str:
    return _answer(payload)


@_app.job("hostile_process", max_attempts=1, isolation="process")
def hostile_process(payload: str) -> str:
    return _answer(payload)


_BATCH: Any = {"max_attempts": 3, "max_size": 50, "max_wait": 0.2, "backoff": Backoff(0.01, 1, 0.01, 0)}


@_app.batch_job("hostile_batch_async", **_BATCH)
async def hostile_batch_async(payloads: list[str]) -> list[Any]:
    return _answers(payloads)


@_app.batch_job("hostile_batch_thread", **_BATCH)
def hostile_batch_thread(payloads: list[str]) -> list[Any]:
    return _answers(payloads)


@_app.batch_job("hostile_batch_process", isolation="process", **_BATCH)
def hostile_batch_process(payloads: list[str]) -> list[Any]:
    return _answers(payloads)


def bind(app: Backstay) -> Backstay:
    """With these handlers."""
    app.handlers.update(_app.handlers)
    return app
