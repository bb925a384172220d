"""What the commands print."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rules.database import Found, SetUp
from rules.health import Health
from rules.working import Worked


def set_up(console: Console, made: SetUp) -> None:
    again = f" {made.again} rules are embedded again." if made.again else ""
    console.print(f"Tables and triggers are there. The model is {made.model}, {made.dimensions} dimensions.{again}")


def loaded(console: Console, count: int) -> None:
    console.print(f"{count} rules are stored, each with its job, in one transaction.")


def worked(console: Console, done: Worked) -> None:
    left = f", {done.retrying} wait for another attempt" if done.retrying else ""
    dead = f", {done.failed} failed for good" if done.failed else ""
    console.print(f"{done.done} jobs completed{left}{dead}.\n")


def found(console: Console, question: str, rules: Sequence[Found]) -> None:
    table = Table("NEAR", "RULE", "TITLE", "PRIORITY", box=SIMPLE_HEAD, title=f"“{question}”", title_justify="left")
    for rule in rules:
        table.add_row(f"{rule.similarity:.2f}", rule.rule_id, rule.title, rule.priority)
    console.print(table if rules else "No rule has a vector yet: run “python -m rules work”.")


def health(console: Console, found: Health) -> None:
    jobs = Table("PRIORITY", "STATUS", "JOBS", "AVERAGE", "NEWEST", "OLDEST", box=SIMPLE_HEAD, title="Jobs, last day")
    jobs.title_justify = "left"
    for group in found.queue_health:
        times = (f"{moment:%Y-%m-%d %H:%M}" for moment in (group.newest_at, group.oldest_at))
        jobs.add_row(group.priority_name, group.status, str(group.count), _ms(group.average_time_ms), *times)
    console.print(jobs if found.queue_health else "There are no jobs.")
    if found.workers:
        workers = Table("WORKER", "COMPLETED", "AVERAGE", "FAILURES", box=SIMPLE_HEAD, title="Workers, last day")
        for each in found.workers:
            workers.add_row(each.worker_id, str(each.completed), _ms(each.average_time_ms), str(each.failures))
        console.print(workers)


def picture(console: Console) -> str:
    # Without the fonts that it would fetch from elsewhere.
    drawn = console.export_svg(title="examples/rules/run")
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"
