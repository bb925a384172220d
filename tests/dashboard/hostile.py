"""A store whose every text would run if a page let it: payloads, results, errors, logs, files, rows, names, reasons."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backstay import Backstay, Context, ResultRow
from backstay.clock import MICROS
from backstay.core.records import WorkerRow
from backstay.testing import drain
from tests.dashboard.vectors import VECTORS, some

AT_ONCE = 7  # texts in one job: its page shows them all, and a subject has room for them
FILES = ("page.html", "picture.svg", "notes.txt", "rows.csv", "result.json", "feed.xml", "all.bin")


class Saying(ResultRow, table="sayings", key="number"):
    number: int
    text: str
    parts: list[str]


@dataclass(frozen=True)
class Hostile:
    jobs: list[str]  # with everything in them
    subjects: list[str]  # of these jobs, and of a second run each
    children: list[str]  # that failed
    cancelled: str
    key: str  # whose name is hostile, too


def make_app(folder: Path) -> Backstay:
    app = Backstay(f"sqlite:///{folder}/jobs.db", artifacts=f"file://{folder}/files")

    @app.job("saying", max_attempts=1, results=[Saying])
    async def saying(payload: dict[str, Any], ctx: Context) -> Any:
        texts = payload["texts"]
        await ctx.progress(0.5, texts[0][:200])
        for text in texts:
            ctx.log.warning("%s", text)
        for name in FILES:
            await ctx.artifact(name, _file(name, texts))
        for number, text in enumerate(texts):
            await ctx.submit("fall", text, stage=text[:200], key=f"fall{number}", subject=text)
        await ctx.wait_for_children(trigger_rule="all_done")
        await ctx.results(Saying).put(Saying(number=n, text=text, parts=[text]) for n, text in enumerate(texts))
        return {text: [text] for text in texts}

    @app.job("fall", max_attempts=1)
    async def fall(payload: str) -> None:
        raise type(payload, (ValueError,), {})(payload)

    return app


def _file(name: str, texts: list[str]) -> str:
    said = "\n".join(texts)
    if name.endswith(".svg"):
        parts = '<script>top.__p("svg")</script><image href="http://canary.invalid/svg.png"/>'
        return f'<svg xmlns="http://www.w3.org/2000/svg" onload="__p(1)">{parts}</svg>'
    if name.endswith(".xml"):
        return '<x:script xmlns:x="http://www.w3.org/1999/xhtml">__p("xml")</x:script>'
    return f"<!doctype html><title>x</title>{said}" if name.endswith(".html") else said


async def fill(app: Backstay) -> Hostile:
    submitted, subjects = [], []
    for number, texts in enumerate(some(AT_ONCE)):
        subject = " ".join(texts)[:512]
        subjects.append(subject)
        await app.submit("saying", {"texts": list(texts[::-1])}, subject=subject)
        job = await app.submit(
            "saying",
            {"texts": list(texts), **dict.fromkeys(texts, texts[0])},
            subject=subject,
            tags=[text[:128] for text in texts],
            created_by=texts[number % len(texts)][:128],
            dedup_key=f"{number} {texts[-1]}",
            content_hash=texts[0],
            fairness_key=texts[-1],
        )
        submitted.append(job.job_id)
    for text in VECTORS:
        await app.submit(
            "saying", {"texts": [text]}, subject=text, tags=[text[:128]], created_by=text[:128], delay=3600
        )
    await drain(app)
    late = await app.submit("saying", {"texts": []}, delay=3600)
    await app.cancel(late.job_id, by=VECTORS[3][:128], reason="\n".join(VECTORS)[:2000])
    await _operate(app)
    created = await app.create_key(VECTORS[5], ["admin"])
    children = [job.job_id for root in submitted for job in await app.find(root=root, job_type="fall", limit=1)]
    return Hostile(submitted, subjects, children, late.job_id, created.text)


async def _operate(app: Backstay) -> None:
    for number, text in enumerate(VECTORS):
        await app.create_key(text[:128], ["read"], by=text[:128])
        async with app.audited("job.cancel", text, by=text, via="dashboard", before={text: text}, remote=text) as entry:
            entry.after = {text: [text]}
        await app.store.beat(_worker(number, text, app.clock.now()))
    for number, texts in enumerate(some(AT_ONCE)):
        name = f"s{number}"
        await app.schedule(name, "@daily", "saying", {"texts": list(texts)}, subject=texts[0])
        await app.pause_schedule(name, by=texts[1][:128])
        await app.pause_queue(f"q{number}", by=texts[2][:128], reason="\n".join(texts))
        await app.limit(key=f"k{number}", concurrency=1, by=texts[0][:128])
    await app.pause_type("fall", by=VECTORS[3][:128], reason="\n".join(VECTORS)[:2000])


def _worker(number: int, text: str, now: int) -> WorkerRow:
    return WorkerRow(
        worker_id=f"{number} {text}",
        host=text,
        pid=number,
        process_key=text,
        version=text,
        queues=(text, "default"),
        job_types=(text,),
        concurrency=1,
        started_at=now,
        heartbeat_at=now,
        lease_micros=3600 * MICROS,
    )
