"""The crash test finds handlers that do not bear to be repeated, says at which disturbance, and passes the others."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay, BlockingContext, CallNext, Context, Snooze, sync
from backstay.testing import crash_test, throwaway_url
from tests.testing import process_handlers
from tests.testing.side_effects import AFTER, BEFORE, STALLED_AFTER, TWICE, Outside, killed, stalled

# Handlers that must be found


def test_lines_that_are_appended_are_found_at_every_disturbance_but_the_first(app: Backstay, outside: Outside) -> None:
    @app.job("append")
    async def append(payload: int, ctx: Context) -> None:
        for n in range(2):
            outside.append(n)
            await ctx.progress(n / 2)

    blamed, text = outside.complaint(append)
    assert blamed == {killed(1, 2), killed(2, 2), AFTER, TWICE, stalled(1, 2), stalled(2, 2)}
    assert f"{killed(1, 2)}\n  expected effect  ['0', '1']\n  found            ['0', '0', '1']" in text
    assert f"These disturbances made no difference:\n  {BEFORE}" in text
    assert all(remedy in text for remedy in ("ctx.step", "ctx.transaction()", "ctx.idempotency_key"))


def test_a_charge_without_progress_calls_is_found_where_the_handler_had_run(app: Backstay, outside: Outside) -> None:
    @app.job("charge")
    def charge(payload: int) -> None:
        before = int(outside.read()[0]) if outside.read() else 0
        outside.file.write_text(str(before + payload))

    blamed, text = outside.complaint(charge, 5)
    assert blamed == {AFTER, TWICE, STALLED_AFTER}
    assert "expected effect  ['5']\n  found            ['10']" in text


def test_a_check_before_the_act_is_found_only_by_the_overlap_of_a_stall(app: Backstay, outside: Outside) -> None:
    @app.job("check")
    def check(payload: int, ctx: BlockingContext) -> None:
        is_new = not outside.read()
        ctx.progress(0.5)
        if is_new:
            outside.append(payload)

    blamed, text = outside.complaint(check)
    assert blamed == {stalled(1, 1)}
    assert "two runs overlapped" in text


def test_only_the_effect_outside_its_step_is_found(app: Backstay, outside: Outside) -> None:
    @app.job("half")
    async def half(payload: int, ctx: Context) -> None:
        await ctx.once("safe", lambda: outside.append("safe"))
        await ctx.progress(0.5)
        outside.append("unsafe")
        await ctx.progress(1)

    blamed, _ = outside.complaint(half)
    assert killed(1, 2) not in blamed
    assert {killed(2, 2), TWICE} <= blamed


def test_a_handler_that_fails_when_it_is_repeated_is_found(app: Backstay, outside: Outside) -> None:
    @app.job("make")
    def make(payload: int) -> None:
        outside.file.touch(exist_ok=False)

    blamed, text = outside.complaint(make)
    assert TWICE in blamed
    assert "the job is failed, not completed: FileExistsError" in text


def test_a_job_that_is_submitted_again_by_a_second_run_is_found_and_a_dedup_key_helps(
    app: Backstay, outside: Outside
) -> None:
    @app.job("follow")
    async def follow(payload: int) -> None: ...

    @app.job("first")
    async def first(payload: int, ctx: Context) -> None:
        await follow.submit(payload)
        await ctx.progress(1)

    @app.job("careful")
    async def careful(payload: int, ctx: Context) -> None:
        await follow.submit(payload, dedup_key=ctx.idempotency_key)
        await ctx.progress(1)

    blamed, text = outside.complaint(first)
    assert killed(1, 1) in blamed and BEFORE not in blamed
    assert "it submitted 2 × follow, not 1 × follow" in text and "dedup_key" in text
    assert outside.crash(careful).expected.submitted == {"follow": 1}


@pytest.mark.parametrize("face", ["blocking", "process"])
def test_appended_lines_are_found_on_every_face_and_isolation(tmp_path: Path, outside: Outside, face: str) -> None:
    handler: Any = process_handlers.append
    if face == "blocking":
        blocking = sync.Backstay(throwaway_url(tmp_path))

        @blocking.job("append")
        def append(payload: str, ctx: BlockingContext) -> None:
            outside.append(payload)
            ctx.progress(0.5)

        handler = append
    blamed, _ = outside.complaint(handler, str(outside.file))
    assert blamed == {killed(1, 1), AFTER, TWICE, stalled(1, 1)}


# Handlers that must pass


def by_once(app: Backstay, outside: Outside) -> Any:
    @app.job("once")
    async def once(payload: int, ctx: Context) -> None:
        for n in range(2):
            await ctx.once(f"line {n}", lambda n=n: outside.append(n))
            await ctx.progress(n / 2)

    return once


def by_once_in_a_thread(app: Backstay, outside: Outside) -> Any:
    @app.job("once")
    def once(payload: int, ctx: BlockingContext) -> None:
        for n in range(2):
            ctx.once(f"line {n}", lambda n=n: outside.append(n))
            ctx.progress(n / 2)

    return once


def by_key(app: Backstay, outside: Outside) -> Any:
    """As a service that drops repeats: the key and the charge are one step."""
    with closing(sqlite3.connect(outside.file)) as file, file:
        file.execute("CREATE TABLE IF NOT EXISTS charge (key TEXT PRIMARY KEY, amount INTEGER)")

    @app.job("charge")
    def charge(payload: int, ctx: BlockingContext) -> None:
        ctx.progress(0.1)
        with closing(sqlite3.connect(outside.file)) as file, file:
            file.execute("INSERT OR IGNORE INTO charge VALUES (?, ?)", (ctx.idempotency_key, payload))
        ctx.progress(0.9)

    return charge


def by_overwriting(app: Backstay, outside: Outside) -> Any:
    @app.job("report", max_attempts=1)
    async def report(payload: int, ctx: Context) -> None:
        draft = outside.file.with_name(f"draft-{os.getpid()}")
        draft.write_text(f"report {payload}")
        await ctx.progress(0.5)
        draft.replace(outside.file)

    return report


def by_a_retry(app: Backstay, outside: Outside) -> Any:
    """Neither its backoff nor its snooze nor its rate is waited for."""

    @app.job("flaky", rate="1/h")
    async def flaky(payload: int, ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ConnectionError("down")
        if ctx.attempt == 2:
            raise Snooze(3600)
        outside.file.write_text(str(payload))

    return flaky


@pytest.mark.parametrize("make", [by_once, by_once_in_a_thread, by_overwriting, by_a_retry])
def test_a_repeatable_handler_passes_and_the_report_says_what_was_tried(
    app: Backstay, outside: Outside, make: Callable[[Backstay, Outside], Any]
) -> None:
    report = outside.crash(make(app, outside))
    assert report.expected.effect == outside.read() != []
    assert {BEFORE, AFTER, TWICE} < {trial.disturbance for trial in report.trials}
    assert all(trial.reached and trial.attempts > 1 for trial in report.trials)
    assert str(report).count("\n  same ") == len(report.trials)


def test_a_charge_under_the_idempotency_key_passes(app: Backstay, outside: Outside) -> None:
    def charges() -> list[Any]:
        with closing(sqlite3.connect(outside.file)) as file, file:
            return file.execute("SELECT * FROM charge").fetchall()

    def reset() -> None:
        with closing(sqlite3.connect(outside.file)) as file, file:
            file.execute("DELETE FROM charge")

    report = outside.crash(by_key(app, outside), 5, effect=charges, reset=reset)
    ((key, amount),) = report.expected.effect
    assert key.startswith("backstay-") and amount == 5


def test_sql_that_commits_with_the_job_passes_and_is_read_from_the_queues_own_file(
    app: Backstay, outside: Outside
) -> None:
    @app.job("transfer")
    async def transfer(payload: int, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("INSERT INTO ledger VALUES (?)", [payload])
        await ctx.progress(0.5)

    def prepare(queue: Path) -> None:
        with closing(sqlite3.connect(queue)) as file, file:
            file.execute("CREATE TABLE ledger (amount INTEGER)")

    def ledger(queue: Path) -> list[Any]:
        with closing(sqlite3.connect(queue)) as file, file:
            return file.execute("SELECT amount FROM ledger").fetchall()

    assert outside.crash(transfer, 7, effect=ledger, reset=prepare).expected.effect == [(7,)]


def test_a_repeatable_handler_in_a_process_passes(outside: Outside) -> None:
    assert outside.crash(process_handlers.append_once, str(outside.file)).expected.effect == ["line"]


# What surrounds a handler


def surrounded(app: Backstay, outside: Outside) -> None:
    @app.lifespan
    async def resources() -> AsyncIterator[Path]:
        yield outside.file

    @app.middleware
    async def first(ctx: Context, call_next: CallNext) -> None:
        await call_next()

    @app.middleware
    def second(ctx: Context) -> Iterator[None]:
        yield


AROUND = [
    "killed before the lifespan began",
    "killed when the lifespan had started, before any claim",
    "killed before the handler began",
    "killed before middleware 1 began",
    "killed before middleware 2 began",
    "killed at progress call 1 of 1",
    "killed after middleware had returned (1 of it)",
    "killed after middleware had returned (2 of it)",
    "killed after the handler returned",
    TWICE,
    "killed when the job had ended, before the end of the lifespan",
]


def test_a_handler_with_lifespan_and_middleware_is_killed_at_every_point_and_has_the_same_effects(
    app: Backstay, outside: Outside
) -> None:
    surrounded(app, outside)

    @app.job("write")
    async def write(payload: str, ctx: Context[Path]) -> None:
        ctx.state.write_text(payload)
        await ctx.progress(0.5)

    report = outside.crash(write, "a line")
    assert report.expected.effect == ["a line"]
    assert [each.disturbance for each in report.trials if each.disturbance.startswith(("killed", "deliv"))] == AROUND
    assert all(each.reached for each in report.trials)


def test_middleware_that_does_not_bear_a_second_run_is_found(app: Backstay, outside: Outside) -> None:
    surrounded(app, outside)

    @app.middleware
    async def counts(ctx: Context, call_next: CallNext) -> None:
        await call_next()
        outside.append("ran")

    @app.job("nothing")
    async def nothing(payload: int) -> None: ...

    blamed, _ = outside.complaint(nothing)
    after = {f"killed after middleware had returned ({nth} of it)" for nth in (1, 2, 3)}
    assert blamed == {*after, AFTER, TWICE, STALLED_AFTER}


# Where it is called from


async def test_it_can_be_called_where_an_event_loop_runs_and_the_app_is_open(app: Backstay, outside: Outside) -> None:
    handler = by_overwriting(app, outside)
    async with app, app.worker():
        outside.crash(handler)
        await asyncio.to_thread(outside.crash, handler)
        assert sum((await app.counts()).values()) == 0
        assert await (await handler.submit(1)).result(timeout=10) is None


def test_the_apps_own_queue_is_not_touched(app: Backstay, outside: Outside, tmp_path: Path) -> None:
    outside.crash(by_overwriting(app, outside))
    assert not (tmp_path / "jobs.db").exists()


def test_a_reset_that_is_built_in_takes_no_path(app: Backstay, outside: Outside) -> None:
    @app.job("nothing")
    def nothing(payload: int) -> None: ...

    seen = {"left": "over"}
    assert outside.crash(nothing, effect=lambda: dict(seen), reset=seen.clear).expected.effect == {}


# Output


def test_a_handler_that_streams_is_disturbed_at_every_call_and_its_output_is_whole(app: Backstay) -> None:
    @app.job("tell")
    async def tell(payload: int, ctx: Context) -> None:
        for n in range(payload):
            await ctx.stream(n)

    report = crash_test(tell, 2, effect=lambda: None)
    tried = {trial.disturbance for trial in report.trials}
    assert {f"killed at stream call {n} of 2" for n in (1, 2)} <= tried
    assert len([each for each in tried if each.startswith("stalled past its lease at stream call")]) == 2
    assert {tuple(trial.output or ()) for trial in report.trials} == {(0, 1)}


def test_output_that_depends_on_what_happened_to_the_worker_is_found(app: Backstay) -> None:
    @app.job("attempts")
    async def attempts(payload: None, ctx: Context) -> None:
        await ctx.stream(ctx.attempt)

    with pytest.raises(AssertionError, match=r"expected output  \[1\]\n  found            \[2\]"):
        crash_test(attempts, effect=lambda: None)


def test_output_that_differs_from_run_to_run_is_not_compared(app: Backstay) -> None:
    @app.job("tokens")
    async def tokens(payload: None, ctx: Context) -> None:
        await ctx.stream(os.urandom(8).hex())

    report = crash_test(tokens, effect=lambda: None)
    assert report.expected.output is None
