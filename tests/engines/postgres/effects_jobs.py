"""A handler in a child process whose SQL has every kind of parameter: it must stand at the top level of a module."""

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

from backstay import Backstay, BlockingContext

app = Backstay("sqlite:///unused.db")

TABLE = (
    "text text, whole bigint, real double precision, flag boolean, raw bytea, at timestamptz, day date, hour time,"
    " span interval, id uuid, price numeric, counts integer[], names text[], extra jsonb, nothing text"
)
VALUES: Sequence[object] = (
    "é",
    2**62,
    0.5,
    True,
    b"\x00\xff",
    datetime(2026, 11, 16, 15, 4, 34, 123456, tzinfo=UTC),
    date(2026, 11, 16),
    time(15, 4, 34),
    timedelta(days=1, seconds=2, microseconds=3),
    UUID("00000000-0000-7000-8000-000000000001"),
    Decimal("12.50"),
    [1, 2, 3],
    ["a", "b"],
    {"k": [1, None]},
    None,
)
INSERT = f"INSERT INTO every_kind VALUES ({', '.join(f'${n}' for n in range(1, len(VALUES) + 1))})"


@app.job("in_a_process", isolation="process", max_attempts=1)
def in_a_process(payload: str, ctx: BlockingContext) -> None:
    with ctx.transaction() as tx:
        tx.execute(INSERT.replace("every_kind", f"{payload}.every_kind"), VALUES)
