"""backstay stats"""

from __future__ import annotations

import pytest

from backstay import Backstay
from backstay.cli.stats import _rate, bars
from tests.cli.conftest import Cli, Queue
from tests.cli.terminal import on_a_terminal


def test_stats_counts_states_and_what_happened(cli: Cli, queue: Queue) -> None:
    queue.run()
    queue.run("die", "x")
    queue.submit(delay=60)
    out = cli("stats", "--minutes", "5").out
    assert "Now: 1 scheduled, 1 completed, 1 failed." in out
    assert "Last 5 minutes: 3 submitted, 1 completed (0.2 a minute), 1 failed." in out
    assert "On average, an attempt took" in out
    assert "Completed per minute" in out
    rows = {line.split()[0]: line.split()[1:4] for line in out.splitlines()[-2:]}
    assert rows == {"echo": ["default", "2", "1"], "die": ["default", "1", "1"]}


def test_stats_has_its_figures_in_json(cli: Cli, queue: Queue) -> None:
    queue.run()
    document = cli("stats", "--json").document
    assert document["counts"]["completed"] == 1
    assert document["total"]["completed"] == 1
    assert document["per_minute"] == pytest.approx(1 / 60)
    assert document["since"].endswith("Z")
    assert [each["job_type"] for each in document["by_type"]] == ["echo"]


def test_an_empty_queue_says_so(cli: Cli, queue: Queue) -> None:
    assert cli("stats").out == "Now: no jobs.\nLast 60 minutes: nothing happened.\n"


def test_a_span_that_cannot_be_meant_is_refused(cli: Cli, queue: Queue) -> None:
    for minutes in ("0", "-5", "1000000", "soon"):
        assert cli("stats", "--minutes", minutes).code == 2, minutes


@pytest.mark.parametrize(
    ("numbers", "drawn"), [([0, 1, 8], ".1@"), ([0, 0], ".."), ([], ""), ([5], "@"), ([1, 1000], "1@")]
)
def test_only_nothing_looks_like_nothing_and_the_most_is_the_highest(numbers: list[int], drawn: str) -> None:
    assert bars(numbers, ".1234567@") == drawn


@pytest.mark.parametrize(
    ("per_minute", "said"),
    [(20_000, "20,000 a minute"), (3.34, "3.3 a minute"), (0.01, "0.6 an hour"), (0.001, "1.4 a day")],
)
def test_a_rate_is_said_in_the_unit_that_shows_it(per_minute: float, said: str) -> None:
    assert _rate(per_minute) == said


def test_bars_are_drawn_on_a_terminal_and_ascii_elsewhere_and_several_minutes_share_one(cli: Cli, queue: Queue) -> None:
    queue.run()

    async def nothing(app: Backstay) -> None: ...

    queue.do(nothing)
    plain = cli("stats", "--minutes", "600").out
    assert plain.isascii()
    assert "Completed per 10 minutes" in plain
    bar = next(line for line in plain.splitlines() if line.endswith("@"))
    assert len(bar) == 60
    assert any("█" in line for line in on_a_terminal(80, "stats"))  # not at its end if a minute has just begun
