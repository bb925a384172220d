"""Result tables: a run puts rows, its completion publishes them, and whoever names the job reads them."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest

from backstay import (
    Backoff,
    Backstay,
    BatchContext,
    BlockingContext,
    ConfigurationError,
    Context,
    DuplicateRow,
    InvalidOption,
    InvalidRow,
    JobFailed,
    JobNotFound,
    ResultGone,
    ResultRow,
    RowsWithdrawn,
    SchemaMismatch,
    StoreError,
    UnknownTable,
    Vector,
)
from backstay.core.records import Verdict
from backstay.core.result_tables import ResultTable, RowBatch, RowOrigin, RowPage, RowQuery, StoredRow
from backstay.limits import ROWS_PART_MAX
from backstay.results.reader import TableResults
from backstay.sync import Backstay as BlockingBackstay
from backstay.testing import drain
from tests.app import results_jobs
from tests.app.results_jobs import Point

NEVER = "0190c0de-0000-7000-8000-00000000dead"
AT_ONCE = Backoff(base=0.001, factor=1, max=0.001, jitter=0)


class Word(ResultRow, table="words", key="word", subject="topic"):
    word: str
    topic: str = ""
    embedding: Vector[2] | None = None


def numbers(rows: list[Point]) -> list[int]:
    return [row.number for row in rows]


def putting(app: Backstay, **options: Any) -> Any:
    """A handler that puts points from 0 up to its payload."""

    @app.job("put", results=[Point], **options)
    async def put(payload: int, ctx: Context) -> int:
        return await ctx.results(Point).put(Point(number=n, place="odd" if n % 2 else "even") for n in range(payload))

    return put


async def completed(app: Backstay, handler: Any, payload: Any, **options: Any) -> str:
    job = await handler.submit(payload, **options)
    await drain(app)
    await job.result(timeout=10)
    return str(job.job_id)


async def test_rows_are_read_by_job_by_key_by_page_and_by_subject(app: Backstay) -> None:
    put = putting(app)
    async with app:
        first, second = await completed(app, put, 1_203), await completed(app, put, 3)
        points = app.results(Point)

        assert numbers(await points.all(first)) == list(range(1_203))
        assert [row.number async for row in points.all(second)] == [0, 1, 2]
        assert numbers(await points.all(second, subject="odd")) == [1]
        row = await points.get(first, 1_202)
        assert row is not None
        assert (row.number, row.job_id, row.place) == (1_202, first, "even")
        assert await points.get(second, 1_202) is None
        page = await points.page(first, limit=1_000)
        assert numbers(page) == list(range(1_000))
        assert numbers(await points.page(first, after=page.next, limit=1_000)) == list(range(1_000, 1_203))
        assert numbers(await points.by_subject("odd")) == [*range(1, 1_203, 2), 1]
        assert (await app.get(first)).row.result_tables == ("points",)


async def test_a_row_knows_its_job_the_tree_and_stage_of_that_and_its_time(app: Backstay) -> None:
    put = putting(app)
    async with app:
        root = await put.submit(0)
        middle = await put.submit(0, parent=root)
        job_id = await completed(app, put, 1, parent=middle, stage="UMAP")
        [row] = await app.results(Point).all(job_id)
        job = await app.get(job_id)

    assert (row.job_id, row.parent_job_id, row.root_job_id) == (job_id, middle.job_id, root.job_id)
    assert row.job_stage == "UMAP"
    assert row.created_at is not None
    assert job.created_at <= row.created_at <= job.completed_at


async def test_rows_are_not_seen_before_the_completion_and_never_of_a_run_that_failed(app: Backstay) -> None:
    seen: list[list[int]] = []

    @app.job("work", max_attempts=2, backoff=AT_ONCE, results=[Point])
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.results(Point).put([{"number": 1}, {"number": ctx.attempt + 10}])
        seen.append(numbers(await app.results(Point).all(ctx.job_id)))
        if ctx.attempt == 1:
            raise ValueError("once")

    async with app, app.worker():
        job = await work.submit(None)
        await job.result(timeout=10)

        assert seen == [[], []]
        assert numbers(await app.results(Point).all(job.job_id)) == [1, 12]


@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_a_handler_that_blocks_puts_and_reads_without_await(app: Backstay, isolation: str) -> None:
    if isolation == "process":
        function = results_jobs.put_in_a_process.function
        put = app.job("put_in_a_process", isolation="process", max_attempts=1, results=[Point])(function)
    else:

        @app.job("put", max_attempts=1, results=[Point])
        def put(payload: int, ctx: BlockingContext) -> int:
            return results_jobs.put(ctx, payload)

    async with app, app.worker():
        job = await put.submit(620)
        assert await job.result(timeout=60) == 620
        rows = await app.results(Point).all(job.job_id)

    assert numbers(rows) == list(range(620))
    assert rows[7].at == [7.0, 0.5]


async def test_rows_may_come_one_after_another(app: Backstay) -> None:
    async def slowly() -> AsyncIterator[Point]:
        for number in range(700):
            yield Point(number=number)

    @app.job("work", results=[Point])
    async def work(payload: Any, ctx: Context) -> list[int]:
        points = ctx.results(Point)
        return [await points.put(slowly()), await points.put([]), await points.put([Point(number=-1)])]

    async with app, app.worker():
        job = await work.submit(None)
        assert await job.result(timeout=10) == [700, 0, 1]
        assert numbers(await app.results(Point).all(job.job_id)) == [-1, *range(700)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"number": 1}, {"number": 1}], "DuplicateRow: points: number 1 twice in one run"),
        ([{"number": 2**63}], "InvalidRow: .*64 bits"),
        ([{"nmuber": 1}], "InvalidRow: Point: "),
        ([Point(number=1, job_id=NEVER)], "leave job_id out"),
        ({"number": 1}, "many rows"),
        (Point(number=1), "many rows"),
        (7, "many rows"),
    ],
)
async def test_a_row_that_cannot_be_kept_fails_the_run(app: Backstay, rows: Any, says: str) -> None:
    @app.job("work", max_attempts=1, results=[Point])
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.results(Point).put(rows)

    async with app, app.worker():
        job = await work.submit(None)
        with pytest.raises(JobFailed, match=says):
            await job.result(timeout=10)


async def test_a_key_twice_in_two_puts_of_one_run_is_found_by_the_store(app: Backstay) -> None:
    @app.job("work", max_attempts=1, results=[Point])
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.results(Point).put([Point(number=1)])
        await ctx.results(Point).put([Point(number=2), Point(number=1)])

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"DuplicateRow: points: number \d twice"):
            await (await work.submit(None)).result(timeout=10)


@pytest.mark.parametrize("second", [[2, 1], [3, 3]], ids=["found by the store", "within one put"])
async def test_a_key_twice_fails_the_run_even_where_the_handler_catches_it(app: Backstay, second: list[int]) -> None:
    @app.job("work", max_attempts=1, results=[Point])
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.results(Point).put([Point(number=1)])
        with pytest.raises(DuplicateRow):
            await ctx.results(Point).put([Point(number=number) for number in second])

    async with app, app.worker():
        with pytest.raises(JobFailed, match=r"DuplicateRow: points: number \d twice"):
            await (await work.submit(None)).result(timeout=10)


async def test_a_put_that_breaks_off_is_published_neither_whole_nor_in_part(app: Backstay) -> None:
    rows = [{"number": n} for n in range(ROWS_PART_MAX + 1)]

    @app.job("breaks_off", max_attempts=1, results=[Point])
    async def breaks_off(payload: None, ctx: Context) -> str:
        with pytest.raises(InvalidRow):
            await ctx.results(Point).put([*rows, {"number": "no number"}])
        return "went on"

    @app.job("breaks_off_in_a_thread", max_attempts=1, results=[Point])
    def breaks_off_in_a_thread(payload: None, ctx: BlockingContext) -> str:
        with pytest.raises(InvalidRow):
            ctx.results(Point).put([*rows, {"number": "no number"}])
        return "went on"

    async with app, app.worker():
        for handler in (breaks_off, breaks_off_in_a_thread):
            job = await handler.submit(None)
            with pytest.raises(JobFailed, match="points: a put failed after storing part of its rows"):
                await job.result(timeout=30)


async def test_a_put_that_was_refused_before_any_row_was_stored_may_be_mended(app: Backstay) -> None:
    @app.job("mends", max_attempts=1, results=[Point])
    async def mends(payload: None, ctx: Context) -> int:
        with pytest.raises(InvalidRow):
            await ctx.results(Point).put([{"number": 1}, {"number": "no number"}])
        return await ctx.results(Point).put([{"number": 1}])

    async with app, app.worker():
        job = await mends.submit(None)
        assert await job.result(timeout=30) == 1
        assert numbers(await app.results(Point).all(job.job_id)) == [1]


async def test_a_row_that_the_store_refuses_fails_its_own_job_of_a_batch(
    app: Backstay, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.batch_job("many", max_size=5, max_wait=5, max_attempts=1, results=[Point])
    async def many(numbers: list[int], ctx: BatchContext) -> list[int]:
        for item, number in zip(ctx, numbers, strict=True):
            await item.results(Point).put([Point(number=number)])
        return numbers

    async with app:
        put_rows = app.store.put_rows

        async def refusing(batches: Sequence[RowBatch], now: int) -> list[Verdict]:
            if any(row[0] == 3 for batch in batches for row in batch.rows):
                raise StoreError("the index cannot hold it")
            return await put_rows(batches, now)

        monkeypatch.setattr(app.store, "put_rows", refusing)
        jobs = await app.submit_many([("many", number) for number in range(5)])
        async with app.worker():
            for number, job in enumerate(jobs):
                if number == 3:
                    with pytest.raises(JobFailed, match="the index cannot hold it"):
                        await job.result(timeout=30)
                else:
                    assert await job.result(timeout=30) == number
                    assert [row.number for row in await app.results(Point).all(job.job_id)] == [number]


async def test_a_table_that_no_handler_names_is_made_when_it_is_first_put(app: Backstay) -> None:
    @app.job("work")
    async def work(payload: Any, ctx: Context) -> None:
        await ctx.results(Word).put([Word(word="cat", embedding=[1, 2])])

    async with app:
        with pytest.raises(UnknownTable, match="words"):
            await app.results(Word).all(NEVER)
        job_id = await completed(app, work, None)
        [row] = await app.results(Word).all(job_id)
        assert (row.word, row.embedding) == ("cat", [1.0, 2.0])


async def test_one_handler_reads_what_another_has_put(app: Backstay) -> None:
    put = putting(app)

    @app.job("sum")
    async def add_up(payload: str, ctx: Context) -> list[int]:
        points = ctx.results(Point)
        one = await points.get(payload, 2)
        return [
            sum([row.number async for row in points.all(payload)]),
            0 if one is None else one.number,
            len(await points.latest("town", put)),
            len(await points.by_subject("odd")),
            len(await points.page(payload)),
        ]

    async with app:
        first = await completed(app, put, 4, subject="town")
        job = await add_up.submit(first)
        await drain(app)
        assert await job.result(timeout=10) == [6, 2, 4, 2, 4]


async def test_the_latest_is_that_of_the_job_which_completed_last(app: Backstay) -> None:
    put = putting(app)
    async with app:
        latest = app.results(Point).latest
        assert await latest("town", "put") == []
        await completed(app, put, 2, subject="town")
        last = await completed(app, put, 3, subject="town")
        await completed(app, put, 4, subject="village")
        assert numbers(await latest("town", put)) == [0, 1, 2]

        await app.retry(last)

        assert numbers(await latest("town", "put")) == [0, 1]


class Restless:
    """Where the latest job is run again between the two looks at it, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    async def latest(self, subject: str, job_type: str) -> str:
        return NEVER

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        self.times -= 1
        if self.times >= 0:
            return RowPage(())
        return RowPage((StoredRow(NEVER, 0, RowOrigin(), (7, "here", None)),), attempt=2)

    async def rows_by_subject(self, *_: Any) -> RowPage:
        raise AssertionError("nobody asks for a subject here")


async def test_a_job_that_runs_again_while_it_is_looked_at_is_not_the_latest() -> None:
    assert numbers(await TableResults(Point, Restless(2)).latest("town", "put")) == [7]
    with pytest.raises(RowsWithdrawn, match="town"):
        await TableResults(Point, Restless(10)).latest("town", "put")


async def test_what_has_not_completed_has_no_rows_and_what_never_was_is_not_found(app: Backstay) -> None:
    put = putting(app)
    async with app:
        job = await put.submit(3)
        assert await app.results(Point).all(job.job_id) == []
        assert await app.results(Point).get(job.job_id, 1) is None
        with pytest.raises(JobNotFound, match=NEVER):
            await app.results(Point).all(NEVER)


@pytest.mark.parametrize("job_id", ["", None, 7])
async def test_whose_rows_are_meant_is_never_guessed(app: Backstay, job_id: Any) -> None:
    async with app:
        with pytest.raises(InvalidOption, match="give the id of the job"):
            app.results(Point).all(job_id)
        with pytest.raises(InvalidOption, match="give the id of the job"):
            await app.results(Point).get(job_id, 1)


async def test_what_a_table_has_not_is_not_asked_of_it(app: Backstay) -> None:
    async with app:
        with pytest.raises(ConfigurationError, match="subject_index=True"):
            app.results(Word).by_subject("pets")
        with pytest.raises(ConfigurationError, match="is not a result table"):
            app.results(dict)  # type: ignore[type-var]
        with pytest.raises(InvalidOption, match="cursor"):
            await app.results(Point).page(NEVER, after="no")
        with pytest.raises(InvalidOption, match="limit"):
            await app.results(Point).page(NEVER, limit=0)


async def test_rows_that_were_withdrawn_between_two_pages_are_not_half_read(app: Backstay) -> None:
    put = putting(app)
    async with app:
        job_id = await completed(app, put, 1_000)

        async def read() -> None:
            async for row in app.results(Point).all(job_id):
                if row.number == 0:
                    await app.retry(job_id)

        with pytest.raises(RowsWithdrawn, match=job_id):
            await read()


async def test_a_reused_result_brings_its_rows(app: Backstay) -> None:
    put = putting(app)
    async with app:
        donor = await completed(app, put, 3, content_hash="h")
        again = await put.submit(3, content_hash="h", reuse=True)

        rows = await app.results(Point).all(again.job_id)

        assert numbers(rows) == [0, 1, 2]
        assert {row.job_id for row in rows} == {donor}


async def test_rows_go_with_their_job(app: Backstay) -> None:
    put = putting(app)
    async with app:
        job_id = await completed(app, put, 600)
        kept = await completed(app, put, 2)

        await app.store.cleaned(await app.store.with_files(10))
        await app.purge(older_than=0, job_types=["put"])

        with pytest.raises(ResultGone, match=job_id):
            await app.results(Point).all(job_id)
        assert await app.results(Point).by_subject("odd") == []
        assert await app.store.drop_rows(job_id, 1_000) == await app.store.drop_rows(kept, 1_000) == 0


async def test_rows_of_a_batch_belong_to_their_own_jobs(app: Backstay) -> None:
    @app.batch_job("many", max_size=5, results=[Point])
    async def many(payloads: list[int], ctx: BatchContext) -> list[Any]:
        for i, payload in enumerate(payloads):
            await ctx.item(i).results(Point).put([Point(number=payload), Point(number=0)])
        return [ValueError("no") if payload == 2 else payload for payload in payloads]

    async with app, app.worker():
        jobs = [await many.submit(n, max_attempts=1) for n in (1, 2, 3)]
        assert await jobs[0].result(timeout=10) == 1
        assert await jobs[2].result(timeout=10) == 3
        with pytest.raises(JobFailed):
            await jobs[1].result(timeout=10)
        assert [numbers(await app.results(Point).all(job.job_id)) for job in jobs] == [[0, 1], [], [0, 3]]


async def test_two_models_of_one_table_must_be_the_same(app: Backstay) -> None:
    class Other(ResultRow, table="points", key="number"):
        number: int
        more: str = ""

    putting(app)
    app.job("other", results=[Other])(_nothing)

    with pytest.raises(ConfigurationError, match="two models declare the result table points"):
        async with app:
            pass


async def _nothing(payload: Any) -> None: ...


async def test_a_stored_table_cannot_change_its_key(make_app: Callable[..., Backstay]) -> None:
    class Other(ResultRow, table="points", key="place"):
        place: str

    first, second = make_app(), make_app()
    putting(first)
    second.job("other", results=[Other])(_nothing)
    async with first:
        pass

    with pytest.raises(SchemaMismatch, match="another name"):
        async with second:
            pass


async def test_rows_are_read_without_a_model_too(app: Backstay) -> None:
    put = putting(app)
    async with app:
        job_id = await completed(app, put, 3)
        page = await app.result_rows(job_id, "Points", limit=2)
        rest = await app.result_rows(job_id, "points", after=page.next)

        assert [row["number"] for row in [*page, *rest]] == [0, 1, 2]
        assert page[0].keys() >= {"job_id", "created_at", "place", "at"}
        with pytest.raises(UnknownTable, match="there is points"):
            await app.result_rows(job_id, "lines")


def test_the_blocking_app_reads_the_same_rows(tmp_path: Any) -> None:
    app = BlockingBackstay(f"sqlite:///{tmp_path}/jobs.db")

    @app.job("put", results=[Point])
    def put(payload: int, ctx: BlockingContext) -> int:
        return ctx.results(Point).put(_points(payload))

    with app, app.worker():
        job = put.submit(600, subject="town")
        job.result(timeout=10)
        points = app.results(Point)
        assert numbers(points.all(job.job_id)) == [row.number for row in points.stream(job.job_id)] == list(range(600))
        assert numbers(points.latest("town", "put")) == numbers(points.by_subject("here")) == list(range(600))
        row = points.get(job.job_id, 5)
        assert row is not None and row.number == 5
        assert numbers(points.page(job.job_id, limit=2)) == [0, 1]
        assert [each["number"] for each in app.result_rows(job.job_id, "points", limit=2)] == [0, 1]


def _points(count: int) -> Iterator[Point]:
    return (Point(number=n) for n in range(count))


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM result_points", "UPDATE result_points SET place = 'x'", "DROP TABLE result_points"],
)
async def test_sql_of_a_handler_does_not_reach_the_rows(app: Backstay, statement: str) -> None:
    put = putting(app)

    @app.job("change", max_attempts=1)
    async def change(payload: Any, ctx: Context) -> None:
        async with ctx.transaction() as tx:
            tx.execute("CREATE TABLE mine (result_points INTEGER, job INTEGER)")
            tx.execute("INSERT INTO mine VALUES (1, 1)")
            tx.execute("UPDATE mine SET result_points = 2, job = 2")
            tx.execute(payload or "SELECT 1")

    async with app:
        job_id = await completed(app, put, 1)
        refused = await change.submit(statement)
        await drain(app)
        with pytest.raises(JobFailed, match="not authorized"):
            await refused.result(timeout=10)
        await completed(app, change, None)
        assert [row.place for row in await app.results(Point).all(job_id)] == ["even"]


async def test_who_puts_rows_outside_of_a_handler_is_told_where_they_are_put(app: Backstay) -> None:
    async with app:
        with pytest.raises(AttributeError, match=r"ctx.results\(Point\).put"):
            app.results(Point).put([Point(number=1)])  # type: ignore[attr-defined]


async def test_a_model_without_a_table_is_refused_where_a_handler_names_it(app: Backstay) -> None:
    class Loose(ResultRow):
        number: int

    @app.job("work", results=[Loose])
    async def work(payload: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="Loose is not a result table"):
        async with app:
            pass
