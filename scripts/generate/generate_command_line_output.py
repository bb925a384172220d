"""Write docs/reference/command-line-output.md: what the commands print, on a terminal, about a small queue.

python scripts/generate/generate_command_line_output.py            write
python scripts/generate/generate_command_line_output.py --check    exit 1 if the page is not current
python scripts/generate/generate_command_line_output.py --wide     print the same on a terminal of 140 columns

The queue is staged at a fixed time, with fixed ids, so that the page changes only when the commands do. The output is
real: each command runs in a process of its own, on a pseudo-terminal.
"""

import asyncio
import os
import pty
import re
import shlex
import sys
import tempfile
import termios
import traceback
import types
from pathlib import Path
from typing import NoReturn

import msgspec

from backstay import Backoff, Backstay, Context, ids
from backstay.cli.main import main as backstay_main
from backstay.clock import MICROS, Instant
from backstay.core import schedules
from backstay.core.lifecycle import Completed, Outcome, Raised, decide
from backstay.core.records import ClaimedJob, ClaimRequest, ErrorEntry, Finding, Hold, Note, WorkerRow
from backstay.core.schedules import firing
from backstay.engines.sqlite import maintenance
from backstay.files.local import LocalFiles

PAGE = Path(__file__).parents[2] / "docs/reference/command-line-output.md"
NOW: Instant = 1_794_821_400 * MICROS  # 2026-11-16 09:30:00 UTC
CRASHED = 99  # no command exits with it
MINUTE = 60 * MICROS
HOUR = 60 * MINUTE
WORKER = "web-1:4711:5f2e9c"
TOKEN = "t" * 32  # of the only worker
COMPLETED_PER_MINUTE = [3, 2, 4, 1, 0, 2, 5, 7, 6, 4, 3, 2, 2, 1, 0, 0, 1, 3, 4, 6, 8, 9, 7, 5, 3, 2, 4, 3, 2, 1]
# Machine-dependent output of the engine, replaced by fixed values.
OF_THE_MACHINE = {
    "engine": "SQLite 3.54.1 by apsw 3.54.1.0",
    "file system": "ext4, local",
    "access": "/srv/shop/jobs.db is readable by its owner only (600)",
    "disk space": "48,210 MiB of 102,400 MiB free, the file has 0.4 MiB",
    "WAL": "0.3 MiB",
}


class _Clock:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> Instant:
        return self.at

    def monotonic(self) -> float:
        return self.at / MICROS


def _app(clock: _Clock) -> Backstay:
    app = Backstay("sqlite:///jobs.db", clock=clock)

    async def nothing(payload: dict, ctx: Context) -> None: ...

    for name, queue, attempts in (
        ("resize_image", "images", 5),
        ("send_mail", "mail", 3),
        ("nightly", "default", 5),
        ("import_orders", "default", 5),
        ("check_stock", "default", 5),
        ("report", "default", 5),
    ):
        app.job(name, queue=queue, max_attempts=attempts, backoff=Backoff(60, 2, 3600, jitter=0))(nothing)
    return app


# The scenario


class _Stage:
    """Puts jobs into their states, through the verbs that a worker uses."""

    def __init__(self, app: Backstay, clock: _Clock) -> None:
        self.app = app
        self.clock = clock
        self.named: dict[str, str] = {}

    def at(self, instant: Instant) -> None:
        self.clock.at = instant

    async def submit(self, name: str, job_type: str, payload: object, **options: object) -> None:
        self.named[name] = (await self.app.submit(job_type, payload, **options)).job_id

    async def claim(self, job_type: str, queue: str, limit: int = 1) -> list[ClaimedJob]:
        request = ClaimRequest(WORKER, "0.1.0", (queue,), {job_type: limit}, limit, MINUTE, TOKEN)
        return await self.app.store.claim(request, self.clock.at)

    async def end(self, claimed: list[ClaimedJob], outcome: Outcome, took: int) -> None:
        self.at(self.clock.at + took)
        settled = [
            decide(job, outcome, now=self.clock.at, backoff=Backoff(60, 2, 3600, 0), draw=0, token=TOKEN, by=WORKER)
            for job in claimed
        ]
        await self.app.store.apply(settled, self.clock.at)

    async def fail(self, claimed: list[ClaimedJob], error: str, message: str) -> None:
        trace = (
            f'Traceback (most recent call last):\n  File "/srv/shop/shop.py", line 42, in send\n{error}: {message}\n'
        )
        await self.end(claimed, Raised(ErrorEntry(claimed[0].attempt, self.clock.at, error, message, trace)), 300_000)


async def _stage(app: Backstay, clock: _Clock) -> dict[str, str]:
    stage = _Stage(app, clock)
    async with app:
        await _schedules(stage)
        await _resized(stage)
        await _mails(stage)
        await _nightly(stage)
        await _retrying(stage)
        stage.at(NOW - 5 * MINUTE)
        await app.pause_queue("mail", by="ada", reason="the provider is down")
        await app.limit_queue("images", 500)
        stage.at(NOW)
        await app.store.beat(_worker(stage))
    return stage.named


async def _resized(stage: _Stage) -> None:
    for minute, number in enumerate(COMPLETED_PER_MINUTE):
        stage.at(NOW - (len(COMPLETED_PER_MINUTE) - minute) * MINUTE)
        if number:
            await stage.app.submit_many([("resize_image", {"image": n}) for n in range(number)])
            stage.at(stage.clock.at + 40_000)
            await stage.end(await stage.claim("resize_image", "images", number), Completed('{"width":800}'), 1_400_000)


async def _mails(stage: _Stage) -> None:
    for name, error, message in (
        ("refused", "SMTPServerDisconnected", "Connection unexpectedly closed"),
        ("bounced", "SMTPRecipientsRefused", "550 no such user here"),
    ):
        stage.at(NOW - 40 * MINUTE)
        await stage.submit(name, "send_mail", {"to": f"{name}@example.org"}, subject=f"customer:{len(name)}")
        for pause in (1_000_000, MINUTE + 1_000_000, 2 * MINUTE + 1_000_000):
            stage.at(stage.clock.at + pause)
            await stage.app.store.promote(stage.clock.at, 10)
            await stage.fail(await stage.claim("send_mail", "mail"), error, message)
    stage.at(NOW - 4 * MINUTE)
    await stage.submit("held", "send_mail", {"to": "edsger@example.org"}, subject="customer:12", priority="high")
    await stage.submit("later", "send_mail", {"to": "ada@example.org"}, delay=2 * 3600, subject="customer:7")


async def _nightly(stage: _Stage) -> None:
    stage.at(NOW - 90_000_000)
    await stage.submit("nightly", "nightly", {"day": "2026-11-15"}, subject="day:2026-11-15")
    root = stage.named["nightly"]
    await stage.submit("orders", "import_orders", {"day": "2026-11-15"}, parent=root, stage="load")
    await stage.submit("stock", "check_stock", {"day": "2026-11-15"}, parent=root, stage="load")
    parts = [stage.named["orders"], stage.named["stock"]]
    await stage.submit("report", "report", {"day": "2026-11-15"}, parent=root, depends_on=parts, stage="write")
    for job_type in ("nightly", "import_orders"):
        claimed = await stage.claim(job_type, "default")
    await stage.end(claimed, Completed('{"orders":412}'), 31_000_000)
    stage.at(NOW - 12_000_000)
    [stock] = await stage.claim("check_stock", "default")
    held = Hold(stock.job_id, stock.attempt, TOKEN)
    logged = [{"timestamp": "2026-11-16T09:29:50.200Z", "level": "INFO", "message": "165 of 412 articles"}]
    note = Note(held, progress=0.4, stage="counting", logs=msgspec.json.encode(logged).decode())
    await stage.app.store.note([note], stage.clock.at)
    await stage.app.store.extend([held, Hold(root, 1, TOKEN)], NOW + MINUTE, NOW - MICROS)


async def _retrying(stage: _Stage) -> None:
    stage.at(NOW - 20 * MICROS)
    await stage.submit("retrying", "resize_image", {"image": 4711}, subject="customer:9")
    await stage.fail(await stage.claim("resize_image", "images"), "TimeoutError", "no answer within 10 s")


async def _schedules(stage: _Stage) -> None:
    day = {"day": "yesterday"}
    for name, rule, zone, job_type in (
        ("nightly", "30 3 * * *", "Europe/Berlin", "nightly"),
        ("stock", "*/20 * * * 1-5", "UTC", "check_stock"),
        ("prices", "@hourly", "UTC", "import_orders"),
    ):
        tick = schedules.parse(rule, zone).latest(NOW)
        stage.at(tick - MINUTE)
        await stage.app.schedule(name, rule, job_type, day, timezone=zone, missed="skip" if name == "stock" else "one")
        [stored] = [each for each in await stage.app.store.schedules() if each.name == name]
        stage.at(tick + 20_000)
        await stage.app.store.fire([firing(stored, stage.clock.at)], stage.clock.at)  # type: ignore[list-item]
        await stage.end(await stage.claim(job_type, "default"), Completed("null"), 2_200_000)
    stage.at(NOW - 12 * MINUTE)
    await stage.app.pause_schedule("prices", by="ada")


def _worker(stage: _Stage) -> WorkerRow:
    running = (stage.named["nightly"], stage.named["stock"])
    return WorkerRow(
        worker_id=WORKER,
        host="web-1",
        pid=4711,
        process_key="",
        version="0.1.0",
        queues=("default", "images", "mail"),
        job_types=tuple(sorted(stage.app.handlers)),
        concurrency=10,
        started_at=NOW - 26 * HOUR,
        heartbeat_at=NOW - 4 * MICROS,
        running=running,
        ended=1204,
        failed=31,
        busy_micros=1204 * 1_360_000,
    )


# The page

INTRODUCTION = """\
# What the commands print

On a terminal of 80 columns, about a small queue at 09:30 UTC. In a wider terminal, a pipe or a file the tables have
more columns and whole ids; `--json` has everything. [All commands and options](command-line.md).

This page is written by `scripts/generate/generate_command_line_output.py`, from real output; a test fails when it is
not current.
"""


def _sections(named: dict[str, str]) -> list[tuple[str, str, list[str]]]:
    """Return headings, introductions, and the commands to show. Ids may be shortened, as everywhere."""
    end = {name: job_id[-12:] for name, job_id in named.items()}
    return [
        ("Help", "", ["--help", "logs --help"]),
        ("submit", "", ["""submit send_mail '{"to": "alan@example.org"}' --priority high"""]),
        ("list", "", ["list --limit 9", "list --status failed"]),
        ("show", "", [f"show {end['refused']}"]),
        ("explain", "", [f"explain {end[name]}" for name in ("held", "report", "retrying")]),
        ("tree", "The job that was asked for has a star. An arrow leads from a job to one that waits for it.",
         [f"tree {end['report']}"]),
        ("logs", "", [f"logs {end['stock']}", f"logs {end['held']}"]),
        ("workers", "", ["workers"]),
        ("queues", "", ["queues"]),
        ("schedules", "", ["schedules", "schedules show nightly"]),
        ("dead", "", ["dead"]),
        ("stats", "", ["stats --minutes 30"]),
        ("doctor", "", ["doctor"]),
        ("Changing things", "", [
            f"reprioritise {end['held']} urgent",
            f"reschedule {end['later']} --in 5m",
            f"cancel {end['retrying']} --reason 'asked for by mistake'",
            "queues resume mail",
            "queues limit images none",
            "dead retry --error SMTPServerDisconnected",
            "schedules pause nightly",
            "schedules run nightly",
            "purge --older-than 10m --yes",
        ]),
        ("Errors", "One line on stderr, and an [exit code](command-line.md#exit-codes).",
         ["show 019a", "submit send_mail '{to: alan}'", "lsit"]),
    ]  # fmt: skip


def page(columns: int = 80) -> str:
    """Return the text of the page. ValueError if a line is wider than the terminal."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return _text(columns)
        finally:
            os.chdir(before)


def _text(columns: int) -> str:
    _settle_environment()
    clock = _Clock()
    app = _app(clock)
    ids._random.seed(1)
    named = asyncio.run(_stage(app, clock))
    shop = types.ModuleType("shop")
    shop.app = app  # type: ignore[attr-defined]
    sys.modules["shop"] = shop
    parts = [INTRODUCTION]
    for heading, says, commands in _sections(named):
        parts.append(f"## {heading if heading[0].isupper() else f'`{heading}`'}\n" + (f"\n{says}\n" if says else ""))
        shown = "\n\n".join(f"$ backstay {command}\n{_on_a_terminal(command, columns)}" for command in commands)
        parts.append(f"```text\n{shown}\n```\n")
    return "\n".join(parts)


def _settle_environment() -> None:
    for name in [name for name in os.environ if name.startswith("BACKSTAY_") or name in ("COLUMNS", "NO_COLOR")]:
        del os.environ[name]
    os.environ |= {"BACKSTAY_APP": "shop:app", "LOGNAME": "ada", "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
    own = maintenance.diagnose

    def diagnose(*arguments: object) -> list[Finding]:
        return [
            Finding(each.check, "ok", OF_THE_MACHINE[each.check]) if each.check in OF_THE_MACHINE else each
            for each in own(*arguments)
        ]

    maintenance.diagnose = diagnose
    LocalFiles.look = lambda files: "in /srv/shop/jobs.db.files"  # type: ignore[method-assign]


def _on_a_terminal(command: str, columns: int) -> str:
    """Return the output on a terminal, without colours."""
    child, terminal = pty.fork()
    if child == 0:
        _run_and_exit(command, columns)
    said = bytearray()
    try:
        while chunk := os.read(terminal, 65536):
            said += chunk
    except OSError:  # Linux raises this when the last writer has closed
        pass
    os.close(terminal)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said.decode()).replace("\r\n", "\n")
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == CRASHED:
        raise RuntimeError(f"backstay {command}\n{text}")
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n")]
    if wide := [line for line in lines if len(line) > columns]:
        raise ValueError(f"backstay {command}: wider than {columns} columns:\n" + "\n".join(wide))
    return "\n".join(lines)


def _run_and_exit(command: str, columns: int) -> NoReturn:
    code = CRASHED
    try:
        termios.tcsetwinsize(0, (50, columns))
        for number, name in ((1, "stdout"), (2, "stderr")):
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False, buffering=1))  # noqa: SIM115
        ids._random.seed(command)
        code = backstay_main(shlex.split(command))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> int:
    if "--wide" in sys.argv[1:]:
        print(page(140))
        return 0
    text = page()
    current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == text
    if "--check" in sys.argv[1:]:
        if not current:
            print(f"{PAGE} is not current: run python scripts/generate/{Path(__file__).name}")
        return 0 if current else 1
    if not current:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
