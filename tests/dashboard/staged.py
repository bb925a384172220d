"""A store with one of everything in it: what people see on the pages of the dashboard, and tests walk over.

`make_app` has the handlers, `fill` the jobs. Most of them really run, one after another, in this process; those that
stand in a state that nothing stays in by itself (running, on a worker) are claimed by hand and left there.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, SecretStr

from backstay import Backoff, Backstay, Context, Discard, ResultRow, Vector
from backstay.clock import MICROS
from backstay.codec import encode
from backstay.core.records import ClaimedJob, ClaimRequest, Hold, Note, WorkerRow
from backstay.limits import LOG_ENTRIES_MAX
from backstay.testing import drain

HOUR = 3600.0
CONVERSATION = "conversation 4021"
WORKER = "staged-worker-1"
PARTS = 16
LETTERS = 9


class Cluster(ResultRow, table="clusters", key="cluster_id"):
    cluster_id: int
    title: str
    size: int
    share: float
    keywords: list[str]


class Point(ResultRow, table="points", key="statement_id", subject="conversation", subject_index=True):
    statement_id: int
    conversation: str
    at: Vector[2]
    text: str
    embedding: Vector[8]


class Embedding(BaseModel):
    text: str = Field(description="What is embedded, up to some pages.", max_length=8000)
    model: Literal["small", "large"] = "small"
    api_key: str | None = Field(
        None, description="For models that are not ours.", json_schema_extra={"sensitive": True}
    )


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Line(BaseModel):
    sku: str
    count: Annotated[int, Field(ge=1, le=99)] = 1
    gift: bool = False


class Place(BaseModel):
    street: str
    city: str


class Order(BaseModel):
    """Every kind of field that a form can have."""

    customer: str = Field(description="Who pays.", min_length=2)
    amount: float = Field(gt=0)
    day: date
    not_before: datetime | None = None
    size: Size = Size.SMALL
    mode: Literal["fast", "careful"]
    rush: bool = False
    address: Place
    second_address: Place | None = None
    lines: list[Line] = []
    toppings: set[Literal["cheese", "olives", "rocket"]] = set()
    message: str = ""
    extra: dict[str, Any] = {}
    password: SecretStr | None = None


@dataclass
class Staged:
    """Ids of what is there, by the part that it plays."""

    jobs: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, part: str) -> str:
        return self.jobs[part]


def make_app(url: str, **options: Any) -> Backstay:
    app = Backstay(url, **options)
    _add_analysis(app)
    _add_mail(app)
    return app


def _add_analysis(app: Backstay) -> None:
    @app.job("embedding", queue="embeddings", max_attempts=3)
    async def embedding(payload: Embedding, ctx: Context) -> dict[str, Any]:
        ctx.log.info("embedding %d characters with the %s model", len(payload.text), payload.model)
        await ctx.metric("tokens", len(payload.text.split()))
        return {"model": payload.model, "dimensions": 384, "tokens": len(payload.text.split())}

    @app.job("report", queue="reports")
    async def report(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        ctx.log.info("drawing the map")
        await ctx.artifact("map.png", png())
        await ctx.artifact("report.html", PAGE)
        await ctx.artifact("notes.txt", "Three groups agree on most statements.\nOne does not.\n")
        await ctx.artifact("clusters.csv", "cluster,size\n0,120\n1,88\n2,32\n")
        await ctx.artifact("model.bin", bytes(range(256)) * 400)
        ctx.log.warning("%d statements were left out: too short", 12)
        await ctx.metric("statements", 240)
        await ctx.metric("seconds_drawing", 0.482)
        return {"groups": 3, "statements": 240, "title": "What the room agrees on"}

    @app.job("clustering", results=[Cluster, Point])
    async def clustering(payload: dict[str, Any], ctx: Context) -> dict[str, int]:
        titles = ("Bicycles & buses", "Parking", "Trees in the centre")
        await ctx.results(Cluster).put(
            Cluster(cluster_id=n, title=title, size=120 - 40 * n, share=0.5 / (n + 1), keywords=title.lower().split())
            for n, title in enumerate(titles)
        )
        await ctx.results(Point).put(
            Point(
                statement_id=n,
                conversation=CONVERSATION,
                at=[n % 16 / 8 - 1, n // 16 / 8 - 1],
                text=f"Statement {n}: {titles[n % 3]} matter to us",
                embedding=[round(n / (k + 3), 4) for k in range(8)],
            )
            for n in range(240)
        )
        return {"clusters": 3, "points": 240}

    @app.job("part", max_attempts=1)
    async def part(payload: int, ctx: Context) -> int:
        if payload == 5:
            raise ValueError(f"part {payload} has statements in an unsupported language")
        return payload * 10

    @app.job("gather")
    async def gather(payload: list[int]) -> int:
        return sum(payload)

    @app.job("analysis")
    async def analysis(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        late = payload.get("late", 0)
        first = await ctx.submit("embedding", {"text": "all statements"}, stage="EMBED", key="embed")
        parts = [
            await ctx.submit("part", n, key=f"part{n}", depends_on=[first], delay=HOUR if n >= PARTS - late else 0.0)
            for n in range(PARTS)
        ]
        await ctx.submit("gather", [1, 2], stage="GATHER", key="gather", depends_on=parts, trigger_rule="all_done")
        await ctx.wait_for_children(trigger_rule="all_done")
        return {"parts": PARTS, "of": payload["name"]}


def _add_mail(app: Backstay) -> None:
    @app.job("mail", queue="mail", max_attempts=4, backoff=Backoff(base=HOUR, factor=1, jitter=0))
    async def mail(payload: dict[str, Any], ctx: Context) -> str:
        if payload["to"].endswith(".invalid"):
            _deliver(payload["to"])
        return "sent"

    @app.job("charge", queue="mail", max_attempts=1)
    async def charge(payload: dict[str, Any], ctx: Context) -> None:
        if payload["amount"] > 900:
            raise Discard(f"{payload['amount']} is over the limit")
        ctx.log.error("the bank does not answer")
        _call_bank(payload)

    @app.job("order")
    async def order(payload: Order) -> str:
        return f"{payload.customer} pays {payload.amount:.2f}"

    @app.job("tick")
    async def tick(payload: None) -> None: ...


def _deliver(address: str) -> None:
    raise ConnectionError(f"no server takes mail for {address}")


def _call_bank(payload: dict[str, Any]) -> None:
    responses = {"bank": None}
    raise TimeoutError(f"bank: no answer within 30 s for an amount of {payload['amount']}, {len(responses)} asked")


async def fill(app: Backstay) -> Staged:
    """Into an open app. Every state, a tree that is done and one under way, files, tables, errors, schedules."""
    staged = Staged()
    await _ended(app, staged)
    await _trees(app, staged)
    await drain(app)
    await _active(app, staged)
    await _operated(app, staged)
    return staged


async def _ended(app: Backstay, staged: Staged) -> None:
    submit, jobs = app.submit, staged.jobs
    for name in ("first", "second"):
        jobs[f"report {name}"] = (await submit("report", {"name": name}, subject=CONVERSATION, tags=["weekly"])).job_id
    jobs["tables"] = (await submit("clustering", {"k": 3}, subject=CONVERSATION, created_by="anna")).job_id
    secret = {"text": "a walk through the park", "model": "large", "api_key": "sk-canary-1234"}
    jobs["secret"] = (await submit("embedding", secret, subject=CONVERSATION)).job_id
    for number in range(LETTERS):
        jobs[f"dead {number}"] = (await submit("charge", {"amount": 40 + number}, subject="customer 7")).job_id
    for number in range(2):
        jobs[f"discarded {number}"] = (await submit("charge", {"amount": 1000 + number}, priority="high")).job_id
    jobs["retrying"] = (await submit("mail", {"to": "someone@nowhere.invalid"}, priority="urgent")).job_id
    jobs["reused"] = (await submit("gather", [1, 2, 3], content_hash="abc", reuse=True)).job_id


async def _trees(app: Backstay, staged: Staged) -> None:
    done = await app.submit("analysis", {"name": "autumn"}, subject=CONVERSATION)
    going = await app.submit("analysis", {"name": "winter", "late": 4}, subject=CONVERSATION, priority=70)
    staged.jobs |= {"tree": done.job_id, "growing tree": going.job_id}


async def _active(app: Backstay, staged: Staged) -> None:
    submit, jobs = app.submit, staged.jobs
    running = await submit("report", {"name": "third"}, subject=CONVERSATION, priority=90)
    jobs["running"] = running.job_id
    jobs["pending"] = (
        await submit("embedding", {"text": "a word"}, priority="low", tags=["nightly", "b l a n k"])
    ).job_id
    jobs["scheduled"] = (await submit("mail", {"to": "anna@example.org"}, delay=timedelta(hours=5))).job_id
    jobs["waiting"] = (await submit("gather", [4], depends_on=[running, jobs["scheduled"]])).job_id
    jobs["cancelled"] = (await submit("mail", {"to": "ben@example.org"}, dedup_key="newsletter 12")).job_id
    await app.cancel(jobs["cancelled"], by="anna", reason="he has unsubscribed")
    child = (await app.find(root=jobs["growing tree"], status="scheduled", limit=1))[0]
    await app.reschedule(child.job_id)
    await claim(app, "part", "default")
    [claimed] = await claim(app, "report", "reports")
    await _tell(app, claimed)


async def claim(app: Backstay, job_type: str, queue: str) -> list[ClaimedJob]:
    """As a worker would, which then says nothing more."""
    request = ClaimRequest(
        worker_id=WORKER,
        worker_version="1.0",
        queues=(queue,),
        slots={job_type: 1},
        limit=1,
        lease_micros=24 * 3600 * MICROS,
        token=f"staged-{job_type}",
    )
    return await app.store.claim(request, app.clock.now())


async def _tell(app: Backstay, claimed: ClaimedJob) -> None:
    lines = [
        {"timestamp": f"2026-11-16T20:{n // 60:02d}:{n % 60:02d}.000Z", "level": level, "message": message}
        for n, (level, message) in enumerate(
            [("INFO", f"read part {n} of 60") for n in range(38)] + [("WARNING", "part 38 is empty: left out")]
        )
    ][-LOG_ENTRIES_MAX:]
    note = Note(
        Hold(claimed.job_id, claimed.attempt, "staged-report"),
        progress=0.62,
        stage="laying out the map",
        logs=encode(lines).decode(),
        metrics=encode({"statements": 148}).decode(),
    )
    now = app.clock.now()
    await app.store.note([note], now)
    await app.store.beat(
        WorkerRow(
            worker_id=WORKER,
            host="staged",
            pid=1,
            process_key="",
            version="1.0",
            queues=("default", "reports", "embeddings"),
            job_types=("report", "part", "gather", "embedding"),
            concurrency=4,
            started_at=now - 3 * 3600 * MICROS,
            heartbeat_at=now,
            running=(claimed.job_id,),
            ended=412,
            failed=9,
            busy_micros=900 * MICROS,
            lease_micros=24 * 3600 * MICROS,
        )
    )


async def _operated(app: Backstay, staged: Staged) -> None:
    await app.schedule("nightly-report", "30 3 * * 1-5", "report", {"name": "nightly"}, timezone="Europe/Berlin")
    await app.schedule("heartbeat", "@every 30s", "tick")
    await app.schedule("monthly-mail", "0 9 1 * *", "mail", {"to": "everyone@example.org"}, missed="skip")
    await app.pause_schedule("monthly-mail", by="anna")
    await app.pause_queue("mail", by="anna", reason="the provider is down")


def png(width: int = 480, height: int = 300) -> bytes:
    """A gradient with three spots, which is what a map of opinions looks like from afar."""
    spots = ((120, 100, b"\xd6\x5d\x3c"), (300, 80, b"\x3c\x82\x96"), (260, 220, b"\xd2\xaa\x3c"))
    rows = []
    for y in range(height):
        row = bytearray(bytes((236 - y // 8, 238 - y // 12, 232)) * width)
        for x, middle, colour in spots:
            half = int(max(0, 1600 - (y - middle) ** 2) ** 0.5)
            row[3 * (x - half) : 3 * (x + half)] = colour * (2 * half)
        rows.append(b"\0" + row)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


PAGE = """<!doctype html><meta charset="utf-8"><title>Report</title>
<style>body { font: 16px/1.5 Georgia, serif; margin: 2rem; color: #222; background: #fffdf8 }</style>
<h1>What the room agrees on</h1>
<p>Three groups of statements, and <em>one</em> that stands alone.</p>
<p id="script">No script has run.</p>
<script>document.getElementById("script").textContent = "A script has run."; top.__p = 1</script>
"""
