"""The overview: plots are right for given counters, of the queues that one sees, and no page waits for a count."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from backstay.clock import MICROS, to_instant
from backstay.core.records import Counter
from backstay.core.states import BOUNDS, BUCKETS, Counted, Status, bucket_of
from backstay.dashboard import counts as dashboard_counts
from backstay.dashboard import plots
from backstay.dashboard.counts import (
    OPEN_SECONDS,
    WINDOWS,
    Census,
    History,
    Slot,
    Sums,
    busiest,
    divided,
    events_of,
    percentile,
    summed,
)
from backstay.errors import StoreBusy
from backstay.testing import ManualClock, drain
from tests.dashboard.plain_browser import browsing
from tests.dashboard.plain_browser import patient as patient
from tests.server.gated import sample_app, served

NOON = to_instant(datetime(2030, 1, 1, 12, tzinfo=UTC))
MINUTE = 60 * MICROS
HOUR, DAY, WEEK = WINDOWS["1h"], WINDOWS["24h"], WINDOWS["7d"]


def counter(
    minute: int, outcome: Counted, count: int = 1, *, ran: float = 0.0, queue: str = "mail", job_type: str = "letter"
) -> Counter:
    bucket = bucket_of(outcome, Status.PROCESSING, round(ran * MICROS), 0)
    buckets = ((bucket, count),) if bucket else ()
    return Counter(minute, job_type, queue, 50, outcome, count, round(ran * MICROS) * count, 0, buckets)


# Sums


def test_a_window_has_slots_at_round_times_and_the_last_is_the_one_that_runs() -> None:
    for window, slots in ((HOUR, 60), (DAY, 96), (WEEK, 84)):
        starts = window.starts(NOON + 7 * MICROS)
        assert len(starts) == slots
        assert starts[-1] == NOON and all(start % (window.slot_seconds * MICROS) == 0 for start in starts)
        assert starts[0] == NOON - (window.seconds - window.slot_seconds) * MICROS


def test_counters_fall_into_their_slots_and_those_of_another_time_into_none() -> None:
    starts = HOUR.starts(NOON)
    found = divided(
        [
            counter(NOON, Counted.COMPLETED, 3),
            counter(NOON, Counted.COMPLETED, 2, queue="other"),
            counter(NOON - MINUTE, Counted.FAILED, 1),
            counter(NOON - 60 * MINUTE, Counted.COMPLETED, 100),
            counter(NOON + MINUTE, Counted.COMPLETED, 100),
        ],
        starts,
        60,
    )
    assert list(found) == starts
    assert summed(found[NOON], lambda queue: True).completed == 5
    assert summed(found[NOON], lambda queue: queue == "mail").completed == 3
    assert summed(found[NOON - MINUTE], lambda queue: True).failed == 1
    assert found[NOON - 2 * MINUTE] == {}


def test_types_are_listed_by_how_much_happened_to_them() -> None:
    slots = divided(
        [
            counter(NOON, Counted.COMPLETED, 1, job_type="small"),
            counter(NOON, Counted.COMPLETED, 9, job_type="large", ran=2.0),
            counter(NOON - MINUTE, Counted.RETRIED, 1, job_type="large", ran=4.0),
            counter(NOON, Counted.COMPLETED, 99, queue="hidden"),
        ],
        HOUR.starts(NOON),
        60,
    )
    kinds, number = busiest(list(slots.values()), events_of(slots.values()), lambda queue: queue != "hidden", 2)
    assert [kind for kind, _ in kinds] == [("mail", "large"), ("mail", "small")]
    assert number == 2
    [(_, large)], number = busiest(list(slots.values()), events_of(slots.values()), lambda queue: queue != "hidden", 1)
    assert number == 2
    assert (large.completed, large.retried, large.failing, large.average_seconds) == (9, 1, 0.1, 2.2)


def test_a_page_does_not_go_through_all_types_of_all_slots() -> None:
    """What happened to each type is added up when the counters are read; a page only chooses."""

    class Sealed(Slot):
        def items(self) -> NoReturn:
            raise AssertionError("every type of a slot was looked at")

    read = divided(
        [counter(NOON, Counted.COMPLETED, many, job_type=f"type-{many}") for many in range(1, 100)],
        HOUR.starts(NOON),
        60,
    )
    kinds, number = busiest([Sealed(slot) for slot in read.values()], events_of(read.values()), lambda queue: True, 1)
    assert [(kind, sums.completed) for kind, sums in kinds] == [(("mail", "type-99"), 99)]
    assert number == 99


def test_a_result_that_was_reused_is_no_attempt_and_has_no_time() -> None:
    sums = Sums()
    sums.add(counter(NOON, Counted.COMPLETED, 2, ran=1.0))
    sums.add(Counter(NOON, "letter", "mail", 50, Counted.COMPLETED, 1, 0, 0))
    sums.add(Counter(NOON, "letter", "mail", 50, Counted.REUSED, 1, 9 * MICROS, 0))
    assert sums.completed == 3
    assert sums.average_seconds == 1.0


def test_a_percentile_lies_within_its_bucket() -> None:
    buckets = [0] * BUCKETS
    assert percentile(buckets, 0.5) is None
    buckets[5] = 10  # over 0.5 s, up to 1 s
    assert percentile(buckets, 0.5) == 0.75
    assert percentile(buckets, 1.0) == 1.0
    buckets[0] = 90  # up to 10 ms
    assert percentile(buckets, 0.5) == pytest.approx(0.01 * 50 / 90)
    assert percentile(buckets, 0.95) == 0.75
    assert percentile([*[0] * (BUCKETS - 1), 1], 0.5) == BOUNDS[-1]


@given(st.lists(st.integers(0, 50), min_size=BUCKETS, max_size=BUCKETS), st.floats(0.01, 1))
def test_a_percentile_never_falls_as_the_share_grows(buckets: list[int], share: float) -> None:
    lower, higher = percentile(buckets, share / 2), percentile(buckets, share)
    assert (lower is None) == (higher is None) == (not any(buckets))
    assert lower is None or higher is None or 0 <= lower <= higher <= BOUNDS[-1]


# Plots


def test_boxes_stand_on_one_another_and_are_as_high_as_what_they_count() -> None:
    starts = [NOON - MINUTE, NOON]
    plot = plots.counted(
        starts, {"failed": [1, 0], "retried": [3, 2]}, {"submitted": [4, 4]}, slot_seconds=60, says="words"
    )
    heights = {(box.kind, box.x): box.height for box in plot.boxes}
    unit = (plots.BOTTOM - plots.TOP) / 4
    first, second = sorted({box.x for box in plot.boxes})
    assert heights == {("failed", first): unit, ("retried", first): 3 * unit, ("retried", second): 2 * unit}
    failed, retried = (box for box in plot.boxes if box.x == first)
    assert retried.y + retried.height == failed.y
    assert failed.y + failed.height == plots.BOTTOM
    assert [tick.says for tick in plot.up] == ["0", "1", "2", "3", "4"]
    assert [place.says for place in plot.places] == [
        "11:59: failed 1, retried 3, submitted 4",
        "12:00: failed 0, retried 2, submitted 4",
    ]
    assert plot.lines[0].path.startswith(f"M{plots.LEFT} {float(plots.TOP)}")


@settings(max_examples=40)
@given(st.lists(st.integers(0, 10**7), min_size=60, max_size=60))
def test_a_plot_of_counts_stays_within_its_axes(values: list[int]) -> None:
    plot = plots.counted(HOUR.starts(NOON), {"completed": values}, {"submitted": values}, slot_seconds=60, says="words")
    for box in plot.boxes:
        assert plots.TOP - 0.1 <= box.y <= plots.BOTTOM and box.y + box.height <= plots.BOTTOM + 0.2
        assert box.x >= plots.LEFT and box.x + box.width <= plots.RIGHT + 0.1
    assert 2 <= len(plot.up) <= 6
    assert plot.up[0].at == plots.BOTTOM and plot.up[-1].at == plots.TOP
    assert all(tick.at >= plots.TOP for tick in plot.up)


def test_times_are_drawn_on_a_scale_of_tens_and_a_slot_of_which_nothing_is_known_breaks_the_line() -> None:
    starts = [NOON - 4 * MINUTE + minute * MINUTE for minute in range(5)]
    plot = plots.spread(starts, {"p50": [0.01, 0.1, None, 1.0, None]}, slot_seconds=60, says="words")
    assert [tick.says for tick in plot.up] == ["10 ms", "100 ms", "1 s"]
    middle = (plots.TOP + plots.BOTTOM) / 2
    assert [tick.at for tick in plot.up] == [plots.BOTTOM, middle, plots.TOP]
    path = plot.lines[0].path
    assert path.count("M") == 2 and f"L{plots.LEFT + 1.5 * (plots.RIGHT - plots.LEFT) / 5} {middle}" in path
    assert plot.places[2].says == "11:58: p50 –"
    empty = plots.spread(starts, {"p50": [None] * 5}, slot_seconds=60, says="words")
    assert empty.up == () and empty.lines[0].path == ""


@settings(max_examples=40)
@given(st.lists(st.none() | st.floats(0.0, 1e6), min_size=96, max_size=96))
@example([14400.0] * 96)
@example([0.0] * 96)
def test_a_plot_of_times_can_always_be_drawn(values: list[float | None]) -> None:
    plot = plots.spread(DAY.starts(NOON), {"p95": values}, slot_seconds=900, says="words")
    assert len(plot.places) == 96
    assert "nan" not in plot.lines[0].path and "inf" not in plot.lines[0].path


def test_marks_of_time_are_at_round_times() -> None:
    def marks(window: dashboard_counts.Window) -> list[str]:
        starts = window.starts(NOON + 7 * MINUTE)
        plot = plots.counted(starts, {"a": [0] * len(starts)}, {}, slot_seconds=window.slot_seconds, says="")
        return [tick.says for tick in plot.across]

    assert marks(HOUR) == ["11:15", "11:30", "11:45", "12:00"]
    assert marks(DAY) == ["18:00", "00:00", "06:00"]
    assert marks(WEEK) == ["Wed", "Thu", "Fri", "Sat", "Sun", "Mon", "Tue"]


# Reading


class CountingStore:
    """Tells which spans of counters were asked for."""

    def __init__(self, inner: object) -> None:
        self._inner = inner
        self.asked: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def counters(self, since: int, until: int, **how: object) -> list[Counter]:
        self.asked.append((since, until))
        return await self._inner.counters(since, until, **how)  # type: ignore[attr-defined, no-any-return]


async def test_what_is_over_is_read_once_and_what_came_since_each_time(tmp_path: Path) -> None:
    clock = ManualClock()
    app = sample_app(f"sqlite:///{tmp_path}/jobs.db", clock)
    async with app:
        store = CountingStore(app.store)
        app._store = store  # type: ignore[assignment]
        history = History(app)
        await app.submit("letter", {"to": "anna"})
        past = await history.read(WEEK)
        assert past.is_complete
        assert sum(summed(slot, lambda queue: True).submitted for _, slot in past.slots) == 1
        first = sum(until - since for since, until in store.asked)
        assert first >= (WEEK.seconds - WEEK.slot_seconds) * MICROS
        store.asked.clear()
        await app.submit("letter", {"to": "anna"})
        past = await history.read(WEEK)
        assert summed(past.slots[-1][1], lambda queue: True).submitted == 2
        again = sum(until - since for since, until in store.asked)
        assert again <= (OPEN_SECONDS + 2 * WEEK.slot_seconds) * MICROS
        store.asked.clear()
        clock.advance(WEEK.seconds)
        past = await history.read(WEEK)
        assert sum(summed(slot, lambda queue: True).submitted for _, slot in past.slots) in (0, 2)


async def test_a_page_does_not_wait_for_a_count_that_takes_long_and_says_when_to_look_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_counts, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(dashboard_counts, "REST", 8)
    clock = ManualClock()
    async with served(tmp_path, clock=clock) as server, browsing(server) as browser:
        await server.app.submit("letter", {"to": "anna"})
        go_on, counts = asyncio.Event(), server.app.store.counts

        async def slow() -> dict[str, int]:
            await go_on.wait()
            clock.advance(1)
            return await counts()

        async def shown() -> tuple[str, list[str]]:
            page = await browser.get()
            tile = page.text.partition("pending ")[2].partition(" ")[0]
            return tile, page.values("p", "data-soon")

        monkeypatch.setattr(server.app.store, "counts", slow)
        assert await shown() == ("…", ["200"])
        go_on.set()
        census = server.gate.inner.state.shared[Census]  # type: ignore[attr-defined]
        await census._counting
        assert await shown() == ("1", [])
        await server.app.submit("letter", {"to": "anna"})
        assert await shown() == ("1", ["8000"])  # a count that took a second rests for eight
        clock.advance(9)
        assert await shown() == ("1", ["1000"])  # the next is under way, and takes about as long
        await census._counting
        assert await shown() == ("2", [])


async def test_a_count_that_failed_is_an_error_for_those_who_asked_and_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:

        async def busy() -> dict[str, int]:
            raise StoreBusy("the store is busy: try again")

        with monkeypatch.context() as patch:
            patch.setattr(server.app.store, "counts", busy)
            page = await browser.get()
            assert page.status == 503 and "The store is busy" in page.text
        assert (await browser.get()).status == 200


# The page


async def test_the_overview_says_what_happened_and_what_is_there(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit_many([("anything", {})] * 3)
        await drain(server.app)
        await server.app.submit("letter", {"to": "anna"})
        for window in ("1h", "24h", "7d"):
            page = await browser.get(f"/?window={window}")
            assert "pending 1" in page.text and "completed 3" in page.text
            assert "3 completed" in page.text and "0 failed" in page.text
            assert page.html.count('class="plot"') == 3
            titles = [line for line in page.html.split("<title>") if "completed 3, submitted 4" in line]
            assert len(titles) == 1
            labels = page.values("svg", "aria-label")
            assert any("3 jobs completed, 4 submitted." in label for label in labels)
        assert (await browser.get("/?window=9y")).status == 200


async def test_the_overview_of_a_key_of_some_queues_has_nothing_of_others(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit_many([("anything", {})] * 3)
        await drain(server.app)
        await server.app.submit("anything", {})
        await server.app.submit("letter", {"to": "anna"})
        await browser.log_in(await server.key("read", queues=["mail"]))
        page = await browser.get()
        assert "pending 1" in page.text and "completed 0 in 1 h" in page.text
        assert "anything" not in page.html and "default" not in page.html
        labels = page.values("svg", "aria-label")
        assert any("0 jobs completed, 1 submitted." in label for label in labels)


async def test_of_a_few_runs_no_95th_percentile_is_told_that_is_longer_than_any_of_them(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:
        await server.app.submit_many([("anything", {})] * 19)
        await drain(server.app)
        page = await browser.get()
        assert "average over 19 runs; percentiles need 20" in page.text
        await server.app.submit("anything", {})
        await drain(server.app)
        page = await browser.get()
        assert "p50; wait" in page.text and "percentiles need 20" not in page.text


async def test_dead_letters_are_on_the_overview(tmp_path: Path) -> None:
    async with served(tmp_path) as server, browsing(server) as browser:

        @server.app.job("divide", max_attempts=1)
        async def divide(payload: int) -> float:
            return 1 / payload

        await server.app.submit("divide", 0)
        await drain(server.app)
        page = await browser.get()
        assert "1 divide ZeroDivisionError" in page.text
        assert "1 failed , 0 retried; 100% of attempts" in page.text
