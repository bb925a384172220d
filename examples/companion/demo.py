"""The demonstration: catches up as after a downtime, with a kill -9 in the middle; then shows what everyone
received."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from backstay import Job
from companion import jobs, sample
from companion.chat import Message
from companion.dynamodb_local import dynamodb_local
from companion.receiver import Receiver

PAST_DAYS = 3
KILL_AT = 5  # messages
END_SECONDS = 120
# Short leases and retries, so that the demonstration does not take minutes.
QUICK = {"BACKSTAY_LEASE": "3", "BACKSTAY_POLL_INTERVAL": "0.5", "COMPANION_BASE_DELAY_SECONDS": "0.5"}


def run(picture: str | None = None) -> int:
    console = Console(record=picture is not None, width=96 if picture else None, highlight=False)
    with ExitStack() as stack:
        if "BACKSTAY_URL" not in os.environ:
            console.print("starting DynamoDB Local; BACKSTAY_URL=sqlite:///companion.db does without")
            endpoint = stack.enter_context(dynamodb_local())
            os.environ["BACKSTAY_URL"] = f"dynamodb://companion?endpoint={endpoint}"
        jobs.app.url = os.environ["BACKSTAY_URL"]
        receiver = stack.enter_context(Receiver())
        os.environ["COMPANION_CHAT_URL"] = receiver.url
        good = asyncio.run(_catch_up(console, receiver))
    if picture:
        drawn = console.export_svg(title="examples/companion/run")
        Path(picture).write_text(re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL), encoding="utf-8")
    return 0 if good else 1


async def _catch_up(console: Console, receiver: Receiver) -> bool:
    now = datetime.now(UTC)
    for user in sample.users(now, PAST_DAYS):
        receiver.add(user, sample.written(user, now))
    receiver.gone.add("hedy")
    receiver.troubles.append((503, {}))  # the first message is answered with an error
    console.print(f"{len(receiver.users)} users in as many time zones, {PAST_DAYS} days to catch up on")
    async with jobs.app:
        if await jobs.app.find(job_type="daily_summary", limit=1):
            console.print("this queue has summaries in it, and sends none twice: give BACKSTAY_URL a new place")
            return False
        await jobs.set_up()
        await jobs.app.run_schedule("sync-users", by="the demonstration")
        killed = _killed_by(receiver)
        with _worker() as first:
            killed.pid = first.pid
            if not await asyncio.to_thread(killed.done.wait, END_SECONDS):
                raise TimeoutError(f"no message came in {END_SECONDS} s")
        console.print(f"a worker was killed (kill -9) between sending and noting it: “{killed.message} …”")
        with _worker():
            await _until_all_ended(receiver)
        summaries = sorted(
            await jobs.app.find(job_type="daily_summary", limit=1000),
            key=lambda job: (str(job.subject), job.payload["day"]),
        )
    console.print(_table(summaries, receiver))
    return _verdict(console, summaries, receiver)


class _Killing:
    def __init__(self) -> None:
        self.pid = 0
        self.message = ""
        self.done = threading.Event()


def _killed_by(receiver: Receiver) -> _Killing:
    """Kill the worker after its message is stored and before it is answered, so it cannot have settled the job."""
    killing = _Killing()

    def kill(message: Message) -> None:
        if len(receiver.messages) >= KILL_AT and not killing.done.is_set():
            os.kill(killing.pid, signal.SIGKILL)
            killing.message = message.text.partition(" you wrote")[0]
            killing.done.set()

    receiver.on_kept = kill
    return killing


@contextmanager
def _worker() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "backstay", "--app", "companion.jobs:app", "worker", "--log-level", "error"]
    process = subprocess.Popen(command, env={**os.environ, **QUICK})
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


async def _until_all_ended(receiver: Receiver) -> None:
    wanted = len(receiver.users) * PAST_DAYS
    async with asyncio.timeout(END_SECONDS):
        while True:
            found = await jobs.app.find(job_type="daily_summary", limit=1000)
            if sum(job.status in ("completed", "failed", "cancelled") for job in found) == wanted:
                return
            await asyncio.sleep(0.2)


def _table(summaries: list[Job], receiver: Receiver) -> Table:
    table = Table(
        "user", "time zone", "day", "entries", "came", "kept", "job", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for job in summaries:
        asked = jobs.SummaryOf.model_validate(job.payload)
        token = jobs.token(asked)
        table.add_row(
            asked.user_id,
            asked.timezone,
            f"{asked.day:%a %d %b}",
            str(job.result["entries"]) if job.result else "",
            f"{receiver.sends[token]} ×",
            str(int(token in receiver.messages)),
            f"[green]{job.status}" if job.status == "completed" else f"[red]{job.status}",
        )
    return table


def _verdict(console: Console, summaries: list[Job], receiver: Receiver) -> bool:
    sent = [job for job in summaries if job.status == "completed"]
    dead = [job for job in summaries if job.status == "failed"]
    repeated = sum(receiver.sends[token] - 1 for token in receiver.messages)
    console.print(
        f"{len(sent)} summaries sent, {len(receiver.messages)} messages kept: one for each user and day."
        f" {repeated} came again, or had been turned away at first. {len(dead)} dead letters:"
    )
    for reason in sorted({str(job.last_error) for job in dead}):
        console.print(f"  {reason}", markup=False)
    return len(sent) == len(receiver.messages) and len(sent) + len(dead) == len(receiver.users) * PAST_DAYS
