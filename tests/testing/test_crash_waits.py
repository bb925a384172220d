"""crash_test covers handlers that sleep and wait for events: killed at each entry, they have one effect each."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from backstay import Backstay, Context, EventTimeout
from backstay.testing import crash_test


async def test_a_handler_that_waits_is_killed_at_each_of_its_entries(tmp_path: Path) -> None:
    app, outside = Backstay(), tmp_path / "outside"

    @app.job("order")
    async def order(payload: int, ctx: Context) -> None:
        await ctx.step("reserve", lambda: (outside / "reserved").touch())
        approval = await ctx.wait_for_event("approved", timeout=timedelta(days=7))
        await ctx.sleep("cooldown", timedelta(days=3))
        try:
            await ctx.wait_for_event("objection", timeout=timedelta(days=1))
        except EventTimeout:
            (outside / f"shipped for {approval['by']}").touch()

    def reset() -> None:
        for path in outside.iterdir() if outside.exists() else ():
            path.unlink()
        outside.mkdir(exist_ok=True)

    report = crash_test(
        order, 1, effect=lambda: sorted(each.name for each in outside.iterdir()), reset=reset,
        events={"approved": {"by": "ada"}},
    )  # fmt: skip

    assert report.expected.effect == ["reserved", "shipped for ada"]
    assert report.expected.attempts == 4
    assert len([each for each in report.trials if "handler" in each.disturbance or "settle" in each.disturbance]) >= 8


async def test_an_effect_before_a_wait_that_is_repeated_is_found(tmp_path: Path) -> None:
    app, outside = Backstay(), tmp_path / "calls.txt"

    @app.job("order")
    async def order(payload: int, ctx: Context) -> None:
        with outside.open("a") as file:
            file.write("charged\n")
        await ctx.sleep("cooldown", timedelta(days=3))

    with pytest.raises(AssertionError, match="not idempotent"):
        crash_test(
            order, 1, effect=lambda: outside.read_text(), reset=lambda: outside.unlink(missing_ok=True)
        )  # fmt: skip


async def test_an_event_that_never_comes_is_named(tmp_path: Path) -> None:
    app = Backstay()

    @app.job("order")
    async def order(payload: int, ctx: Context) -> None:
        await ctx.wait_for_event("approved")

    with pytest.raises(AssertionError, match=r"events=\{'approved': payload\}"):
        crash_test(order, 1, effect=lambda: None)
