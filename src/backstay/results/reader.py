"""Reads rows from result tables: by job, key or subject, async and blocking.

A reader always names the `job_id`: the job whose rows are read is never guessed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from backstay import ids
from backstay.clock import Instant
from backstay.core import result_tables as core_result_tables
from backstay.core.port import Store
from backstay.core.result_tables import ResultTable, RowPage, RowQuery, Value
from backstay.core.states import Status
from backstay.errors import ConfigurationError, InvalidOption, JobNotFound, ResultGone, RowsWithdrawn, UnknownTable
from backstay.limits import FIND_LIMIT_MAX
from backstay.results import model
from backstay.results.model import ResultRow, from_stored, table_of

T = TypeVar("T")
R = TypeVar("R", bound=ResultRow)
PAGE = 500
INSTANT_MAX: Instant = 253_402_300_799_999_999  # the end of the year 9999
LATEST_TRIES = 5  # a job that is run again while its rows are read is no longer the latest


async def read(store: Store, table: ResultTable, ask: RowQuery) -> RowPage:
    """Return a page, or raise why there is none: no such job, or retention has removed it. A job that has not completed
    has no rows."""
    page = await store.rows(table, ask)
    if page.attempt == 0 and not page.items:
        [job] = await store.get([ask.job_id])
        if job is None:
            raise JobNotFound(f"no job {ask.job_id}")
        if job.archived_at is not None and job.status is Status.COMPLETED:
            raise ResultGone(f"job {ask.job_id} completed, but its rows were deleted by retention: submit it again")
    return page


class Source(Protocol):
    """Where rows come from: a store, or the worker of a run."""

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage: ...

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage: ...

    async def latest(self, subject: str, job_type: str) -> str | None: ...


class BlockingSource(Protocol):
    def rows(self, table: ResultTable, ask: RowQuery) -> RowPage: ...

    def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage: ...

    def latest(self, subject: str, job_type: str) -> str | None: ...


class RowsFound(list[T]):
    """A page of rows; pass `next` as `after=`; None at the end."""

    next: str | None = None


PlainRows = RowsFound[dict[str, Any]]


class StoreRows:
    """Reads the rows of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def rows(self, table: ResultTable, ask: RowQuery) -> RowPage:
        return await read(self._store, table, ask)

    async def rows_by_subject(self, table: ResultTable, subject: str, after: str | None, limit: int) -> RowPage:
        return await self._store.rows_by_subject(table, subject, after, limit)

    async def latest(self, subject: str, job_type: str) -> str | None:
        return await self._store.latest(subject, job_type)

    async def table(self, name: str) -> ResultTable:
        """Return a table by its name, however it is capitalised; UnknownTable if there is none."""
        return await stored_table(self._store, name)


async def plain_rows(
    store: Store, job_id: str, table: str, after: str | None, limit: int, subject: str | None
) -> PlainRows:
    """Return a page of a job's rows as dicts, for callers without the table's model."""
    found = await stored_table(store, table)
    if subject is not None and found.subject is None:
        raise InvalidOption(f"{found.name} has no subject column: leave it out")
    ask = msgspec.structs.replace(query_after(job_id, after, limit), subject=subject)
    if ask.after is not None:
        ask = msgspec.structs.replace(ask, after=model.key_value(found, ask.after))
    page = await read(store, found, ask)
    return found_page([model.plain(found, row) for row in page.items], page)


async def plain_subject_rows(store: Store, table: str, subject: str, after: str | None, limit: int) -> PlainRows:
    """Return a page of a subject's rows across all completed jobs as dicts, oldest first."""
    found = await stored_table(store, table)
    if not found.subject_index:
        raise InvalidOption(f"{found.name} has no index of its subject: declare it with subject_index=True")
    _refuse_limit(limit)
    place = None if after is None else _place(found, after)
    page = await store.rows_by_subject(found, subject, place, limit)
    rows = PlainRows(model.plain(found, row) for row in page.items)
    rows.next = None if page.next is None else str(page.next)
    return rows


def _place(table: ResultTable, after: str) -> str:
    """Return the cursor, if it can be one: it comes from outside."""
    at, job_id, key = core_result_tables.place(after)
    if not 0 <= at <= INSTANT_MAX:
        raise InvalidOption(f"after={after!r:.60} is not a cursor of this search: pass `next` of a page")
    return msgspec.json.encode((at, ids.canonical(job_id), model.key_value(table, key))).decode()


async def plain_row(store: Store, job_id: str, table: str, key: Any) -> dict[str, Any] | None:
    """Return one row by its key; any kind of key may be given as text."""
    found = await stored_table(store, table)
    ask = query(job_id, key=model.key_value(found, model.key_from(found, key)), limit=1)
    page = await read(store, found, ask)
    return next((model.plain(found, row) for row in page.items), None)


async def stored_table(store: Store, name: str) -> ResultTable:
    stored = {each.name.lower(): each for each in await store.result_tables()}
    found = stored.get(str(name).lower())
    if found is None:
        known = ", ".join(each.name for each in stored.values()) or "none at all"
        raise UnknownTable(f"there is no result table {name!r:.80}; there is {known}")
    return found


class Rows(Generic[R]):
    """`await` returns all of them as a list; `async for` reads page after page."""

    def __init__(self, pages: Callable[[], AsyncIterator[list[R]]]) -> None:
        self._pages = pages

    async def __aiter__(self) -> AsyncIterator[R]:
        async for page in self._pages():
            for row in page:
                yield row

    def __await__(self) -> Generator[Any, None, list[R]]:
        return self._all().__await__()

    async def _all(self) -> list[R]:
        return [row async for row in self]


class _Asked(Generic[R]):
    """The query, and how to interpret the answer: the same with and without await."""

    def __init__(self, model: type[R]) -> None:
        self._model = model
        self._table = table_of(model)

    if not TYPE_CHECKING:  # a hint at run time only: to type checkers, the class has no `put`

        def __getattr__(self, name: str) -> Any:
            if name == "put":
                raise AttributeError(
                    f"only the handler of a job can put rows: await ctx.results({self._model.__name__}).put(rows)"
                )
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _query(self, job_id: str, **more: Any) -> RowQuery:
        if more.get("subject") is not None and self._table.subject is None:
            raise InvalidOption(f"{self._table.name} has no subject: declare one with subject=")
        return query(job_id, **more)

    def _indexed(self, subject: str) -> str:
        if self._table.subject is None:
            raise ConfigurationError(
                f"{self._table.name} has no subject: declare it with subject=, and subject_index=True"
            )
        if not self._table.subject_index:
            raise ConfigurationError(
                f"{self._table.name} has no index of its subject: declare it with subject_index=True"
            )
        if not isinstance(subject, str):
            raise InvalidOption(f"subject={subject!r:.80}: a subject is a string")
        return subject

    def _found(self, page: RowPage) -> list[R]:
        return [from_stored(self._model, row) for row in page.items]

    def _one(self, page: RowPage) -> R | None:
        return next(iter(self._found(page)), None)

    def _page(self, page: RowPage) -> RowsFound[R]:
        return found_page(self._found(page), page)

    def _key(self, key: Any) -> Value:
        return model.key_value(self._table, key)


def query(job_id: str, **more: Any) -> RowQuery:
    if not isinstance(job_id, str) or not job_id:
        raise InvalidOption("give the id of the job whose rows you want")
    return RowQuery(job_id=ids.canonical(job_id), **more)


def query_after(job_id: str, after: str | None, limit: int) -> RowQuery:
    """Return the query for a page; its cursor contains the attempt of the page before."""
    _refuse_limit(limit)
    if after is None:
        return query(job_id, limit=limit)
    try:
        attempt, key = msgspec.json.decode(after, type=tuple[int, int | str])
    except (msgspec.DecodeError, TypeError):
        raise InvalidOption(f"after={after!r:.60} is not a cursor: pass `next` of a page") from None
    return query(job_id, limit=limit, after=key, attempt=attempt)


def _refuse_limit(limit: int) -> None:
    if not isinstance(limit, int) or not 1 <= limit <= FIND_LIMIT_MAX:
        raise InvalidOption(f"limit={limit!r}: use 1 to {FIND_LIMIT_MAX:,}")


def found_page(items: list[T], page: RowPage) -> RowsFound[T]:
    found = RowsFound(items)
    if page.next is not None:
        found.next = msgspec.json.encode((page.attempt, page.next)).decode()
    return found


def _following(ask: RowQuery, page: RowPage) -> RowQuery:
    return msgspec.structs.replace(ask, after=page.next, attempt=page.attempt)


def _refuse_withdrawn(job_id: str, page: RowPage) -> None:
    if page.attempt == 0:
        raise RowsWithdrawn(f"job {job_id} is running again")


def job_type_of(job_type: Any) -> str:
    """Return the type's name, given as a name or a handler."""
    return str(getattr(job_type, "name", job_type))


class TableResults(_Asked[R]):
    """The rows of a table: `rows = await app.results(Point).all(job_id)`."""

    def __init__(self, model: type[R], source: Source) -> None:
        super().__init__(model)
        self._source = source

    def all(self, job_id: str, subject: str | None = None) -> Rows[R]:
        """Return all rows of a job, by key, or those of a subject. There are none before it has completed."""
        ask = self._query(job_id, subject=subject, limit=PAGE)
        return Rows(lambda: self._pages(ask))

    async def get(self, job_id: str, key: Any) -> R | None:
        """Return one row, or None."""
        return self._one(await self._source.rows(self._table, self._query(job_id, key=self._key(key), limit=1)))

    async def page(self, job_id: str, after: str | None = None, limit: int = PAGE) -> RowsFound[R]:
        """Return a page of a job's rows, by key; pass its `next` as `after` of the following one."""
        return self._page(await self._source.rows(self._table, query_after(job_id, after, limit)))

    async def latest(self, subject: str, job_type: Any) -> list[R]:
        """Return the rows of the job of this subject and type that completed last; [] if there is none."""
        for _ in range(LATEST_TRIES):
            job_id = await self._source.latest(subject, job_type_of(job_type))
            if job_id is None:
                return []
            try:
                pages = self._pages(self._query(job_id, limit=PAGE), strictly=True)
                return [row async for page in pages for row in page]
            except RowsWithdrawn:
                continue
        raise RowsWithdrawn(
            f"the jobs of {subject!r:.80} are being rerun as fast as their rows are read: try again later"
        )

    def by_subject(self, subject: str) -> Rows[R]:
        """Return the rows of a subject across all completed jobs, oldest first. The table needs subject_index=True."""
        wanted = self._indexed(subject)
        return Rows(lambda: self._subject_pages(wanted))

    async def _pages(self, ask: RowQuery, *, strictly: bool = False) -> AsyncIterator[list[R]]:
        while True:
            page = await self._source.rows(self._table, ask)
            if strictly:
                _refuse_withdrawn(ask.job_id, page)
            yield self._found(page)
            if page.next is None:
                return
            ask = _following(ask, page)

    async def _subject_pages(self, subject: str) -> AsyncIterator[list[R]]:
        after: str | None = None
        while True:
            page = await self._source.rows_by_subject(self._table, subject, after, PAGE)
            yield self._found(page)
            if page.next is None:
                return
            after = str(page.next)


class BlockingTableResults(_Asked[R]):
    """The same for threads: lists, and iterators where there may be many rows."""

    def __init__(self, model: type[R], source: BlockingSource) -> None:
        super().__init__(model)
        self._source = source

    def all(self, job_id: str, subject: str | None = None) -> list[R]:
        """Return all rows of a job, by key, or those of a subject. There are none before it has completed."""
        return list(self.stream(job_id, subject))

    def stream(self, job_id: str, subject: str | None = None) -> Iterator[R]:
        """The same, page after page."""
        return self._rows(self._query(job_id, subject=subject, limit=PAGE))

    def get(self, job_id: str, key: Any) -> R | None:
        """Return one row, or None."""
        return self._one(self._source.rows(self._table, self._query(job_id, key=self._key(key), limit=1)))

    def page(self, job_id: str, after: str | None = None, limit: int = PAGE) -> RowsFound[R]:
        """Return a page of a job's rows, by key; pass its `next` as `after` of the following one."""
        return self._page(self._source.rows(self._table, query_after(job_id, after, limit)))

    def latest(self, subject: str, job_type: Any) -> list[R]:
        """Return the rows of the job of this subject and type that completed last; [] if there is none."""
        for _ in range(LATEST_TRIES):
            job_id = self._source.latest(subject, job_type_of(job_type))
            if job_id is None:
                return []
            try:
                return list(self._rows(self._query(job_id, limit=PAGE), strictly=True))
            except RowsWithdrawn:
                continue
        raise RowsWithdrawn(
            f"the jobs of {subject!r:.80} are being rerun as fast as their rows are read: try again later"
        )

    def by_subject(self, subject: str) -> list[R]:
        """Return the rows of a subject across all completed jobs, oldest first. The table needs subject_index=True."""
        return list(self._of_subject(self._indexed(subject)))

    def _rows(self, ask: RowQuery, *, strictly: bool = False) -> Iterator[R]:
        while True:
            page = self._source.rows(self._table, ask)
            if strictly:
                _refuse_withdrawn(ask.job_id, page)
            yield from self._found(page)
            if page.next is None:
                return
            ask = _following(ask, page)

    def _of_subject(self, subject: str) -> Iterator[R]:
        after: str | None = None
        while True:
            page = self._source.rows_by_subject(self._table, subject, after, PAGE)
            yield from self._found(page)
            if page.next is None:
                return
            after = str(page.next)
