"""What the commands print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from rules.database import Found
from rules.health import Health
from rules.working import Worked


def set_up(console: Console, again: int) -> None:
    console.print("Tables and triggers are there." + (f" {again} rules are embedded again." if again else ""))


def loaded(console: Console, count: int) -> None:
    console.print(f"{count} rules are stored, each with its job, in one transaction.")


def worked(console: Console, done: Worked) -> None:
    left = f", {done.retrying} wait for another attempt" if done.retrying else ""
    dead = f", {done.failed} failed for good" if done.failed else ""
    console.print(f"{done.done} jobs completed{left}{dead}.")


def found(console: Console, question: str, rules: Sequence[Found]) -> None:
    table = Table("NEAR", "RULE", "TITLE", "PRIORITY", box=SIMPLE_HEAD, title=f"“{question}”", title_justify="left")
    for rule in rules:
        table.add_row(f"{rule.similarity:.2f}", rule.rule_id, rule.title, rule.priority)
    console.print(table if rules else "No rule has a vector yet: run “python -m rules work”.")


def health(console: Console, found: Health) -> None:
    jobs = Table("PRIORITY", "STATUS", "JOBS", "AVERAGE", "NEWEST", "OLDEST", box=SIMPLE_HEAD, title="Jobs, last day")
    for group in found.queue_health:
        times = (f"{moment:%Y-%m-%d %H:%M:%S}" for moment in (group.newest_at, group.oldest_at))
        jobs.add_row(group.priority_name, group.status, str(group.count), _ms(group.average_time_ms), *times)
    console.print(jobs if found.queue_health else "There are no jobs.")
    if found.workers:
        workers = Table("WORKER", "COMPLETED", "AVERAGE", "FAILURES", box=SIMPLE_HEAD, title="Workers, last day")
        for each in found.workers:
            workers.add_row(each.worker_id, str(each.completed), _ms(each.average_time_ms), str(each.failures))
        console.print(workers)


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f} ms"
