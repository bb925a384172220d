"""Trees as pictures, states on a line, and rules in words: all of it without a store."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.core.states import Event, Status
from backstay.dashboard import job as dashboard_job
from backstay.dashboard import schedules, tree
from backstay.dashboard.tree import ALIKE_MAX, Box, Member, Picture, draw
from backstay.job import HistoryEntry

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def job(name: str, parent: str | None = None, *, after: tuple[str, ...] = (), **more: Any) -> Member:
    return Member(
        name, more.pop("job_type", name), more.pop("status", Status.COMPLETED), parent=parent, depends_on=after, **more
    )


def at(drawn: Picture) -> dict[str, Box]:
    return {box.key: box for box in drawn.boxes}


def column(drawn: Picture, name: str) -> int:
    return round((at(drawn)[name].x - tree.MARGIN) / (tree.BOX_WIDTH + tree.GAP_X))


# Pictures


def test_a_child_stands_right_of_its_parent_and_of_what_it_waits_for() -> None:
    drawn = draw([job("root"), job("a", "root"), job("b", "root", after=("a",)), job("c", "root", after=("a", "b"))])
    assert [column(drawn, name) for name in ("root", "a", "b", "c")] == [0, 1, 2, 3]
    assert sorted(line.kind for line in drawn.lines) == ["child", "waits", "waits", "waits"]


def test_no_two_boxes_overlap_and_all_are_inside_the_picture() -> None:
    members = [job("root")]
    members += [job(f"stage{n}", "root", job_type=f"t{n}") for n in range(6)]
    members += [job(f"leaf{n}", f"stage{n % 6}", job_type=f"l{n}") for n in range(40)]
    drawn = draw(members)
    boxes = list(drawn.boxes)
    for number, one in enumerate(boxes):
        assert 0 <= one.x <= drawn.width - tree.BOX_WIDTH
        assert 0 <= one.y <= drawn.height - tree.BOX_HEIGHT
        for other in boxes[number + 1 :]:
            apart = abs(one.x - other.x) >= tree.BOX_WIDTH or abs(one.y - other.y) >= tree.BOX_HEIGHT
            assert apart, (one.key, other.key)


def test_many_alike_children_become_a_few_and_how_many_more() -> None:
    members = [job("root")] + [job(f"p{n}", "root", job_type="part") for n in range(500)]
    drawn = draw(members)
    folded = [box for box in drawn.boxes if box.more]
    assert len(drawn.boxes) == 1 + ALIKE_MAX + 1
    assert [(box.more, box.summary) for box in folded] == [(500 - ALIKE_MAX, f"{500 - ALIKE_MAX} completed")]


def test_of_many_alike_the_ones_that_failed_or_run_and_the_one_asked_for_are_shown() -> None:
    statuses = {3: Status.FAILED, 77: Status.PROCESSING}
    members = [job("root")] + [
        job(f"p{n}", "root", job_type="part", status=statuses.get(n, Status.PENDING)) for n in range(100)
    ]
    shown = at(draw(members, asked="p42"))
    assert {"p3", "p77", "p42"} <= shown.keys()


def test_a_fan_that_is_gathered_again_is_folded_with_both_its_lines() -> None:
    parts = [job(f"p{n}", "root", job_type="part", after=("split",)) for n in range(60)]
    gather = job("gather", "root", after=tuple(f"p{n}" for n in range(60)))
    drawn = draw([job("root"), job("split", "root"), *parts, gather])
    assert [column(drawn, name) for name in ("root", "split", "gather")] == [0, 1, 3]
    assert len(drawn.boxes) == 3 + ALIKE_MAX + 1
    assert len(drawn.lines) == 1 + 2 * (ALIKE_MAX + 1)


def test_an_edge_that_only_its_other_end_lists_is_drawn() -> None:
    drawn = draw([job("a", dependents=("b",)), job("b")])
    assert [line.kind for line in drawn.lines] == ["waits"]
    assert column(drawn, "b") == 1


def test_jobs_that_wait_for_one_another_are_drawn_all_the_same() -> None:
    drawn = draw([job("a", after=("b",)), job("b", after=("a",))])
    assert at(drawn).keys() == {"a", "b"}


def test_nothing_makes_an_empty_picture() -> None:
    assert draw([]).boxes == []


@given(st.lists(st.tuples(st.integers(0, 30), st.lists(st.integers(0, 30), max_size=4)), max_size=31))
def test_any_tangle_is_drawn_once_each_and_apart(ties: list[tuple[int, list[int]]]) -> None:
    members = [
        job(str(n), None if parent >= n else str(parent), after=tuple(str(each) for each in after if each != n))
        for n, (parent, after) in enumerate(ties)
    ]
    drawn = draw(members)
    assert {box.key for box in drawn.boxes} == {each.job_id for each in members}
    places = [(box.x, box.y) for box in drawn.boxes]
    for number, (x, y) in enumerate(places):
        assert all(x != a or abs(y - b) >= tree.BOX_HEIGHT - 0.01 for a, b in places[number + 1 :])


def test_a_chain_of_a_thousand_is_no_recursion() -> None:
    members = [job("0")] + [job(str(n), str(n - 1)) for n in range(1, 1000)]
    assert column(draw(members), "999") == 999


# Timelines


def entry(version: int, seconds: float, event: Event, target: Status, attempt: int = 0) -> HistoryEntry:
    return HistoryEntry(
        version, NOW + timedelta(seconds=seconds), event, None, target, attempt, None, None, False, None
    )


def test_a_state_is_as_wide_as_it_was_long_and_never_too_narrow_to_see() -> None:
    history = [
        entry(1, 0, Event.SUBMIT, Status.PENDING),
        entry(2, 18_000, Event.CLAIM, Status.PROCESSING, 1),
        entry(3, 18_000.2, Event.COMPLETE, Status.COMPLETED, 1),
    ]
    waited, ran = dashboard_job.spans(history, NOW + timedelta(days=1))
    assert (waited.status, ran.status) == (Status.PENDING, Status.PROCESSING)
    assert waited.width > 900
    assert ran.width >= dashboard_job.NARROWEST
    assert waited.width + ran.width == pytest.approx(dashboard_job.WIDTH)
    assert ran.seconds == pytest.approx(0.2)


def test_the_last_state_of_a_job_that_has_not_ended_goes_on_until_now() -> None:
    [only] = dashboard_job.spans([entry(1, 0, Event.SUBMIT, Status.PENDING)], NOW + timedelta(seconds=90))
    assert only.seconds == 90


def test_another_priority_is_no_other_state() -> None:
    history = [entry(1, 0, Event.SUBMIT, Status.PENDING), entry(2, 5, Event.REPRIORITISE, Status.PENDING)]
    assert [span.seconds for span in dashboard_job.spans(history, NOW + timedelta(seconds=9))] == [9]


def test_every_event_has_words_and_a_gap_in_history_is_told() -> None:
    assert all(dashboard_job.happenings([entry(1, 0, event, Status.PENDING, 2)])[0].words for event in Event)
    gap = dashboard_job.happenings(
        [entry(1, 0, Event.SUBMIT, Status.PENDING), entry(40, 9, Event.CLAIM, Status.PROCESSING, 9)]
    )
    assert gap[1].dropped == 38
    assert gap[1].words == "Attempt 9 started"


# Rules


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("30 3 * * 1-5", "Monday to Friday at 03:30"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 * * * *", "every hour"),
        ("20 * * * *", "every hour at 20 min past"),
        ("15 9,17 * * mon,thu", "on Monday and Thursday at 09:15 and 17:15"),
        ("0 0 1 * *", "on day 1 of every month at 00:00"),
        ("0 4 24 12 *", "every year on 24 December at 04:00"),
        ("0 6 * * *", "every day at 06:00"),
        ("0 */6 * * *", "every 6 hours"),
        ("@every 30s", "every 30 seconds"),
        ("@daily", "every day at 00:00"),
        ("*/7 * * * *", None),
        ("1-5 * * * *", None),
        ("0 9 1 * 1", None),
        ("0 9 * * 1#2", None),
        ("*/0 * * * *", None),
        ("<b>", None),
    ],
)
def test_a_rule_is_said_in_words_where_a_short_sentence_can(rule: str, words: str | None) -> None:
    assert schedules.described(rule) == words
