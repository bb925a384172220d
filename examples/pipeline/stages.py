"""The three job types of the pipeline: collect -> analyse -> report.

Every handler may be killed at any moment and run again, so each writes one file, whole or not at all, at a place that
follows from its payload. The queue's database is found by HOLDFAST_URL, which main.py sets.
"""

import os
from pathlib import Path

from analysis import closest_pairs, measure, neighbours, total, weigh
from corpus import module_name, read_json, read_source, write_json, write_whole
from page import render
from pydantic import BaseModel

from holdfast import Backoff, BlockingContext, Holdfast

app = Holdfast()
SOON = Backoff(base=1, max=30)


class Collect(BaseModel):
    library: Path
    modules: list[str]
    output: Path


class Analyse(BaseModel):
    source: Path
    output: Path


class Report(BaseModel):
    sources: list[Path]
    output: Path


@app.job("collect", max_attempts=5, timeout=120, backoff=SOON, concurrency=4)
def collect(payload: Collect, ctx: BlockingContext) -> dict:
    """Read the modules of a shard. A plain `def`: it runs in a thread."""
    found = []
    for done, path in enumerate(payload.modules, 1):
        found.append({"module": module_name(path), "source": read_source(payload.library / path)})
        ctx.progress(done / len(payload.modules), stage=path)
    write_json(payload.output, found)
    ctx.log.info("read %d modules", len(found))
    return {"modules": len(found), "characters": sum(len(each["source"]) for each in found)}


@app.job("analyse", max_attempts=5, timeout=300, backoff=SOON, concurrency=os.cpu_count(), isolation="process")
def analyse(payload: Analyse, ctx: BlockingContext) -> dict:
    """Parse and count: pure CPU work, so it runs in a process of its own that can be killed."""
    collected = read_json(payload.source)
    measured = []
    for done, each in enumerate(collected, 1):
        try:
            measured.append(measure(each["module"], each["source"]))
        except SyntaxError as error:
            ctx.log.warning("%s cannot be parsed: %s", each["module"], error)
        ctx.progress(done / len(collected), stage=each["module"])
    write_json(payload.output, measured)
    ctx.metric("modules", len(measured))
    return {"modules": len(measured), "lines": total(measured, "lines"), "functions": total(measured, "functions")}


@app.job("report", max_attempts=5, timeout=300, backoff=SOON)
def report(payload: Report, ctx: BlockingContext) -> dict:
    """Compare every module with every other and write the page."""
    modules = sorted((each for path in payload.sources for each in read_json(path)), key=lambda each: each["module"])
    ctx.progress(0.05, stage="weighing words")
    vectors = weigh({each["module"]: each.pop("words") for each in modules})
    found = neighbours(vectors, lambda share: ctx.progress(0.1 + 0.8 * share, stage="comparing modules"))
    ctx.progress(0.9, stage="writing")
    for each in modules:
        each["telling_words"] = list(vectors[each["module"]])[:8]
        each["neighbours"] = found[each["module"]]
    substantial = {each["module"] for each in modules if each["lines"] >= 50}
    pairs = closest_pairs(found, substantial, 25)
    totals = {field: total(modules, field) for field in ("lines", "functions", "classes", "branches", "documented")}
    write_json(payload.output / "report.json", {"totals": totals, "closest_pairs": pairs, "modules": modules})
    write_whole(payload.output / "report.html", render(totals, pairs, modules))
    return {"modules": len(modules), **totals}
