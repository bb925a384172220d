"""What an import does whatever the source: order, dependencies, what is left out. The source is a list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

import pytest

from backstay import Backstay
from backstay.clock import MICROS
from backstay.core.states import Status
from backstay.imports.conversion import Conversion
from backstay.imports.importer import Importer, Part, Report
from backstay.imports.source import Row, Unmapped, Work, read
from backstay.ops.audit import Actor
from backstay.testing import drain
from tests.imports.conftest import ENGINES, Place

START = 1_700_000_000 * MICROS


class Listed:
    """A source with these rows, page by page."""

    location = "a list"

    def __init__(self, *rows: Row, page: int = 2) -> None:
        self.rows = list(rows)
        self._page = page

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def count(self) -> int:
        return len(self.rows)

    async def pages(self) -> AsyncIterator[list[Row]]:
        for start in range(0, len(self.rows), self._page):
            yield self.rows[start : start + self._page]

    @property
    def has_dependencies(self) -> bool:
        return any(isinstance(row, Work) and row.depends_on for row in self.rows)

    def notes(self) -> list[str]:
        return []


def work(source_id: str, state: Status = Status.PENDING, **fields: Any) -> Work:
    ended = {"ended_at": START + MICROS, "attempt": 1} if state in ("completed", "failed") else {}
    given = {"job_type": "work", "payload": {"n": source_id}, "created_at": START, **ended, **fields}
    return Work(source_id=source_id, state=state.value, status=state, **given)


async def run(app: Backstay, *rows: Row, part: Part = Part.ALL) -> Report:
    return await Importer(app, "listed", Listed(*rows), part=part).run(Actor("me"))


def id_of(source_id: str) -> str:
    return Conversion("listed", {}).job_id(source_id)


async def states(app: Backstay, *ids: str) -> list[str | None]:
    return [None if job is None else job.status.value for job in await app.get_many([id_of(each) for each in ids])]


@pytest.mark.parametrize("engine", ENGINES)
async def test_jobs_wait_for_one_another_in_whatever_order_they_come(engine: str, place: Place) -> None:
    third = work("c", depends_on=("b",), unfinished=("b",))
    second = work("b", depends_on=("a", "done"), unfinished=("a",))
    async with Backstay(place(engine)) as app:
        report = await run(app, third, second, work("done", Status.COMPLETED), work("a"))

        assert (report.imported, report.not_imported) == (4, 0)
        assert await states(app, "a", "b", "c", "done") == ["pending", "waiting", "waiting", "completed"]
        await app.cancel(id_of("a"))
        assert await states(app, "b", "c") == ["cancelled", "cancelled"]


async def test_a_dependency_that_has_ended_since_it_was_looked_at_holds_nothing_up(place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        await run(app, work("b", depends_on=("a",), unfinished=("a",)), work("a", Status.COMPLETED))

        assert await states(app, "a", "b") == ["completed", "pending"]


async def test_a_dependency_that_has_ended_there_need_not_be_imported(place: Place) -> None:
    waits = work("b", depends_on=("a", "done"), unfinished=("a",))
    async with Backstay(place("sqlite")) as app:
        await run(app, waits, work("a"), work("done", Status.COMPLETED), part=Part.ACTIVE)

        assert await states(app, "a", "b", "done") == ["pending", "waiting", None]


async def test_no_job_waits_for_one_that_cannot_be_imported(place: Place) -> None:
    bad = Unmapped(source_id="a", state="pending", reason="why")
    waits = work("b", depends_on=("a",), unfinished=("a",))
    too = work("c", depends_on=("b",), unfinished=("b",))
    async with Backstay(place("sqlite")) as app:
        report = await run(app, bad, waits, too)

        assert {(each.reason, each.count) for each in report.plan.refused} == {
            ("why", 1),
            ("it waits for a job that cannot be imported", 2),
        }
        assert await app.find() == []


async def test_a_job_that_waits_for_a_duplicate_is_not_imported(place: Place) -> None:
    app = Backstay(place("sqlite"))
    app.job("work")(lambda payload: payload)
    async with app:
        await app.submit("work", {}, dedup_key="k")
        waits = work("b", depends_on=("a",), unfinished=("a",))

        report = await run(app, work("a", dedup_key="k"), waits)

        assert (report.imported, report.not_imported) == (0, 2)
        assert set(report.not_imported_examples) == {id_of("a"), id_of("b")}


async def test_a_waiting_job_is_imported_once(place: Place) -> None:
    rows = [work("b", depends_on=("a",), unfinished=("a",)), work("a")]
    async with Backstay(place("sqlite")) as app:
        await run(app, *rows)
        report = await run(app, *rows)

        assert (report.imported, report.here_before, report.compared) == (0, 2, 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"payload": "x" * 300_000}, "its payload is larger than 262,144 bytes"),
        ({"priority": 101}, "priority: use 0 to 100"),
        ({"job_type": "a type"}, "job type: use 1 to 128 of"),
        ({"subject": "s" * 513}, "subject: use a string of 1 to 512 characters"),
        ({"payload": float("nan")}, "NaN is not JSON"),
    ],
)
async def test_what_cannot_be_stored_is_listed_with_the_reason(
    place: Place, fields: dict[str, Any], reason: str
) -> None:
    async with Backstay(place("sqlite")) as app:
        report = await run(app, work("a", **fields), work("b"))

        [refused] = report.plan.refused
        assert reason in refused.reason and refused.examples == ("a",)
        assert report.imported == 1


async def test_of_two_jobs_with_one_id_the_first_is_imported_and_the_other_named(place: Place) -> None:
    own = "6F9619FF-8B86-D011-B42D-00CF4FC964FF"
    async with Backstay(place("sqlite")) as app:
        report = await run(app, work("a", priority=1), work("b"), work("a", priority=2), work(own), work(own.lower()))

        [refused] = report.plan.refused
        assert (refused.reason, refused.count) == ("another job of the source has the same id", 2)
        assert (report.imported, report.compared, report.changed) == (3, 3, 0)
        assert (await app.get(id_of("a"))).priority == 1


LATER = datetime(2031, 5, 4, tzinfo=UTC)
STRANGE = (
    None, "", 0, -1, 10**30, 2**63, 1.5, float("nan"), float("inf"), "x\0y", "\ud800", "é" * 2_000, [], {}, [1],
    {"a": float("nan")}, {1: 2}, b"\xff", True, Decimal("NaN"), Decimal(5), LATER, ("\0", "\udfff"), ({},),
    ("x" * 300,) * 40, {f"n{number}": 1.0 for number in range(99)}, {"\0": 1}, object(),
)  # fmt: skip


def strange_rows() -> list[Row]:
    """A job for each field and each strange value of it."""
    rows = []
    for state in (Status.PENDING, Status.PROCESSING, Status.CANCELLED):
        for name in Work.__struct_fields__:
            for number, value in enumerate(STRANGE):
                source_id = f"{state}-{name}-{number}"
                fields = {"started_at": START, "ended_at": START + 1, "attempt": 1, "error": "why", name: value}
                rows.append(read(source_id, state.value, partial(_strange, source_id, state, fields)))
    return rows


def _strange(source_id: str, state: Status, fields: dict[str, Any]) -> Work:
    given = {"job_type": "work", "payload": {}, "created_at": START, "source_id": source_id, "state": state.value}
    return Work(**{"status": state, **given, **fields})


@pytest.mark.parametrize("engine", ENGINES)
async def test_whatever_a_row_holds_it_becomes_a_job_or_is_named_and_the_others_are_imported(
    engine: str, place: Place
) -> None:
    rows = strange_rows()
    if engine == "dynamodb":
        rows = rows[::7]
    async with Backstay(place(engine)) as app:
        report = await run(app, *rows)

        assert report.changed == 0
        assert report.imported == report.compared > len(rows) // 10
        assert report.imported + report.plan.unmapped + report.not_imported == len(rows)


async def test_what_differs_after_an_import_is_listed(place: Place) -> None:
    rows = [work("a"), work("b"), work("c", depends_on=("a",), unfinished=("a",)), work("d", Status.COMPLETED)]
    app = Backstay(place("sqlite"))
    app.job("work")(lambda payload: payload)
    async with app:
        importer = Importer(app, "listed", Listed(*rows[:3], rows[3]))
        assert {each.here for each in await importer.differences()} == {None}
        await importer.run(Actor("me"))
        assert await importer.differences() == []
        await app.cancel(id_of("b"))
        await drain(app)

        found = {each.source_id: (each.there, each.here) for each in await importer.differences()}
        assert found == {
            "a": ("pending", "completed"),
            "b": ("pending", "cancelled"),
            "c": ("pending", "completed"),
        }


async def test_an_error_keeps_the_words_of_the_source(place: Place) -> None:
    trace = 'Traceback (most recent call last):\n  File "x"\napp.errors.SlackError: not sent\nat all'
    async with Backstay(place("sqlite")) as app:
        await run(
            app,
            work("a", Status.FAILED, error="disk full", failures=1),
            work("b", Status.FAILED, error=trace.removesuffix("\nat all"), failures=1),
        )

        plain, traced = [await app.get(id_of(each)) for each in ("a", "b")]
        assert (plain.last_error, plain.errors[0]["type"]) == ("disk full", "Error")
        assert (traced.last_error, traced.errors[0]["type"]) == ("SlackError: not sent", "SlackError")
        assert "Traceback" in traced.errors[0]["traceback"]


async def test_old_history_is_announced_before_retention_takes_it(place: Place) -> None:
    async with Backstay(place("sqlite")) as app:
        report = await run(app, work("a", Status.COMPLETED))

        assert any("older than the retention of their type: 1 ended job," in note for note in report.plan.notes)
