"""One line when the store's trouble begins, one a minute while it lasts, one when it is over."""

import logging

import pytest

from backstay.errors import StoreBusy, StoreUnavailable
from backstay.ops.wait import Trouble
from backstay.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def trouble(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> Trouble:
    caplog.set_level(logging.INFO)
    return Trouble(logging.getLogger("backstay.worker"), clock)


AWAY = StoreUnavailable("away")


def test_all_parts_of_one_outage_say_one_line_a_minute(
    trouble: Trouble, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(90):
        for what in ("claiming", "sweeping"):
            trouble.met(what, AWAY)
        clock.advance(1)

    assert caplog.messages == ["claiming failed, trying again: away"] * 2


def test_it_is_over_when_every_part_has_been_done(
    trouble: Trouble, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for what in ("claiming", "sweeping"):
        trouble.met(what, AWAY)
    trouble.met("retention", AWAY, soon=False)
    clock.advance(43)
    trouble.over("claiming")
    assert "well" not in caplog.text
    trouble.over("sweeping")
    trouble.over("sweeping")

    assert caplog.messages[1:] == ["recovered after 43 s"]


def test_another_trouble_is_said_beside_the_first(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    trouble.met("claiming", AWAY)
    trouble.met("settling", StoreBusy("locked"))

    assert [message.partition(" ")[0] for message in caplog.messages] == ["claiming", "settling"]


def test_what_begins_again_is_said_again(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        trouble.met("claiming", AWAY)
        trouble.over("claiming")

    assert len(caplog.messages) == 4


def test_a_mistake_of_the_engines_is_shown_with_its_trace(trouble: Trouble, caplog: pytest.LogCaptureFixture) -> None:
    trouble.met("claiming", ValueError("two changes of one job"))

    assert "two changes of one job" in caplog.text
    assert caplog.records[0].exc_info is not None
