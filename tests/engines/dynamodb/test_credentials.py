"""Keys that cannot be fetched are a store that cannot be reached: it is asked again, and nobody waits past his time."""

import asyncio
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from backstay.engines.dynamodb.address import parse
from backstay.engines.dynamodb.transport import Lane, Unanswered, Wire
from backstay.errors import ConfigurationError, StoreUnavailable
from backstay.files import aws
from backstay.files.aws import Credentials

FROZEN = SimpleNamespace(access_key="AKID", secret_key="secret", token=None)


@pytest.fixture
def patient() -> None:
    """Not here: time limits are what is tested."""


class Role:
    """A source of keys that does each time what it is told."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked = 0

    def get_frozen_credentials(self) -> Any:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, threading.Event):
            answer.wait(30)
            return FROZEN
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture(autouse=True)
def no_keys_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)


@pytest.fixture
def hung() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def _of(role: Role | None) -> Credentials:
    keys = Credentials(None)
    keys._source = role
    return keys


async def test_keys_that_cannot_be_fetched_are_a_store_that_cannot_be_reached() -> None:
    keys = _of(Role(RuntimeError("the metadata service does not answer"), FROZEN))

    with pytest.raises(StoreUnavailable, match="metadata service"):
        await keys.keys()

    assert (await keys.keys()).access_key == "AKID"


def test_a_role_that_vanished_is_no_mistake_in_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = _of(Role(FROZEN))
    monkeypatch.setattr(aws, "_botocore", lambda *_, **__: None)
    keys.now()
    keys.forget()

    with pytest.raises(StoreUnavailable):
        keys.now()
    with pytest.raises(ConfigurationError, match="no AWS credentials"):
        Credentials(None).now()


async def test_keys_are_fetched_though_handlers_hold_every_thread_of_the_loop(hung: threading.Event) -> None:
    loop = asyncio.get_running_loop()
    blocked = [loop.run_in_executor(None, hung.wait) for _ in range(64)]

    async with asyncio.timeout(5):
        assert (await _of(Role(FROZEN)).keys()).access_key == "AKID"

    hung.set()
    await asyncio.gather(*blocked)


async def test_those_who_wait_for_keys_wait_together_and_may_give_up(hung: threading.Event) -> None:
    role = Role(hung)
    keys = _of(role)
    first, second = asyncio.ensure_future(keys.keys()), asyncio.ensure_future(keys.keys())
    await asyncio.sleep(0)

    first.cancel()
    hung.set()

    assert (await second).access_key == "AKID"
    assert role.asked == 1


async def test_a_request_waits_for_keys_no_longer_than_its_time(hung: threading.Event) -> None:
    wire = Wire(parse("dynamodb://test?endpoint=http://127.0.0.1:1"))
    wire._credentials = _of(Role(hung))
    before = time.monotonic()

    with pytest.raises(Unanswered, match="credentials cannot be fetched") as caught:
        await wire.persist("PutItem", {}, lane=Lane.USUAL, seconds=0.2)

    assert not caught.value.sent
    assert time.monotonic() - before < 5
    await wire.close()


async def test_a_request_asks_for_keys_again_while_it_has_time() -> None:
    role = Role(RuntimeError("no answer"), FROZEN)
    wire = Wire(parse("dynamodb://test?endpoint=http://127.0.0.1:1"))
    wire._credentials = _of(role)

    with pytest.raises(Unanswered):
        await wire.persist("PutItem", {}, lane=Lane.USUAL, seconds=0.3)

    assert role.asked == 2
    await wire.close()
