"""Prints the output of the commands."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rules.database import Found, SetUp
from rules.health import Health
from rules.worker import Worked


def set_up(console: Console, made: SetUp) -> None:
    again = f" Rules to embed again: {made.again}." if made.again else ""
    console.print(f"Tables and triggers are there. The model is {made.model}, {made.dimensions} dimensions.{again}")


def loaded(console: Console, count: int) -> None:
    stored = "1 rule is" if count == 1 else f"{count} rules are"
    console.print(f"{stored} stored; what was new or changed has its job, from the same transaction.")


def worked(console: Console, done: Worked) -> None:
    if done == Worked(0, 0, 0):
        console.print("Nothing waits to be embedded.\n")
        return
    left = f", {done.retrying} wait for another attempt" if done.retrying else ""
    dead = f", {done.failed} failed for good" if done.failed else ""
    console.print(f"{done.done} job{'' if done.done == 1 else 's'} completed{left}{dead}.\n")


def found(console: Console, question: str, rules: Sequence[Found]) -> None:
    table = Table("NEAR", "RULE", "TITLE", "PRIORITY", box=SIMPLE_HEAD, title=f"“{question}”", title_justify="left")
    for rule in rules:
        table.add_row(f"{rule.similarity:.2f}", rule.rule_id, rule.title, rule.priority)
    console.print(table if rules else "No rule has a vector yet: run “python -m rules work”.")


def jobs(console: Console, found: Health) -> None:
    table = Table("PRIORITY", "STATUS", "JOBS", "AVERAGE", "NEWEST", "OLDEST", box=SIMPLE_HEAD, title="Jobs, last day")
    table.title_justify = "left"
    for group in found.queue_health:
        times = (f"{moment:%Y-%m-%d %H:%M}" for moment in (group.newest_at, group.oldest_at))
        table.add_row(group.priority_name, group.status, str(group.count), _ms(group.average_time_ms), *times)
    console.print(table if found.queue_health else "There are no jobs.")


def workers(console: Console, found: Health) -> None:
    table = Table("WORKER", "COMPLETED", "AVERAGE", "FAILURES", box=SIMPLE_HEAD, title="Workers, last day")
    table.title_justify = "left"
    for each in found.workers:
        table.add_row(each.worker_id, str(each.completed), _ms(each.average_time_ms), str(each.failures))
    console.print(table if found.workers else "No worker runs now. One that leaves takes its figures along.")


def picture(console: Console) -> str:
    # Without web fonts.
    drawn = console.export_svg(title="examples/rules/run")
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"
