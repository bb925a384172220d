"""Handlers in processes that leave something behind, or start processes of their own."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from backstay import Backstay, BlockingContext, ClaimLost, limits
from backstay.worker import process

_app = Backstay("sqlite:///unused.db")
SMALL_RESULT_BYTES = limits.MIB
SMALL_MESSAGE_BYTES = 3 * limits.MIB
Ctx = BlockingContext


def _hammer(ctx: Ctx, began: threading.Event) -> None:
    while True:
        with contextlib.suppress(ClaimLost):
            ctx.metric("stolen", 1)
            ctx.once("step", lambda: "the first job's")
            ctx.artifact("stolen.txt", "the first job's")
        began.set()


@_app.job("writes_to_its_pipe", isolation="process", max_attempts=1, timeout=60)
def writes_to_its_pipe(payload: int) -> str:
    """Nested deeper than a parser goes, to every socket that this process has."""
    message = b"[" * payload
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                os.write(descriptor, struct.pack("!i", len(message)) + message)
    return "written"


@_app.job("tells_its_environment", isolation="process", max_attempts=1)
def tells_its_environment(payload: str, ctx: Ctx) -> dict[str, Any]:
    return {"job_id": ctx.job_id, "payload": payload, "environment": dict(os.environ)}


@_app.job("leaves_a_thread_with_its_context", isolation="process", max_attempts=1)
def leaves_a_thread_with_its_context(payload: str, ctx: Ctx) -> str:
    if payload == "first":
        began = threading.Event()
        threading.Thread(target=_hammer, args=(ctx, began), daemon=True).start()
        began.wait()
        return "left"
    for _ in range(50):
        ctx.progress(0.5)
        time.sleep(0.005)
    return ctx.once("step", lambda: "its own")


@_app.job("returns_twice", isolation="process", max_attempts=1)
def returns_twice(payload: int, ctx: Ctx) -> int:
    os.fork()
    return payload


@_app.job("forks_with_its_context", isolation="process", max_attempts=1)
def forks_with_its_context(payload: str, ctx: Ctx) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            ctx.once("step", lambda: "of the copy")
        except ClaimLost as error:
            Path(payload).write_text(str(error))
    os.waitpid(pid, 0)


def _ignore(*_: Any) -> None: ...


@_app.job("leaves", isolation="process", max_attempts=1)
def leaves(payload: str) -> int:
    match payload:
        case "a thread":
            threading.Thread(target=time.sleep, args=(1000,), name="stays", daemon=True).start()
        case "a Timer":
            threading.Timer(1000, _ignore).start()
        case "an alarm":
            signal.alarm(1000)
        case "an interval timer":
            signal.setitimer(signal.ITIMER_VIRTUAL, 1000)
        case "a handler of SIGUSR1":
            signal.signal(signal.SIGUSR1, _ignore)
        case "blocked signals":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        case "a process":
            subprocess.Popen(["sleep", "1000"])
    return os.getpid()


@_app.job("starts_daemons", isolation="process", max_attempts=1)
def starts_daemons(payload: None) -> list[int]:
    """In a session of its own, and orphaned by a double fork."""
    shell = "sleep 1000 >/dev/null 2>&1 & echo $!"
    orphan = subprocess.run(["setsid", "sh", "-c", shell], stdout=subprocess.PIPE, check=True, text=True)
    apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    return [apart.pid, int(orphan.stdout)]


def square(number: int) -> int:
    return number * number


@_app.job("squares", isolation="process", max_attempts=1, timeout=100)
def squares(payload: str) -> list[Any]:
    context: Any = multiprocessing.get_context(payload)
    with context.Pool(2) as pool:
        first = pool.map(square, range(4))
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        second = list(executor.map(square, range(4)))
    return [first, second, os.getpid()]


@_app.job("terminates_pools", isolation="process", max_attempts=1, timeout=100)
def terminates_pools(payload: int) -> int:
    for _ in range(payload):
        with multiprocessing.get_context("fork").Pool(3) as pool:
            pool.apply_async(time.sleep, (1000,))
    return payload


def pool_and_hang(say: Callable[[Iterable[int]], None], method: str) -> None:
    """Start a pool that works for ever, say who that is, and wait for ever."""
    context: Any = multiprocessing.get_context(method)
    pool = context.Pool(2)
    pool.map(square, range(4))
    pool.apply_async(time.sleep, (1000,))
    say([os.getpid(), *(each.pid for each in multiprocessing.active_children())])
    threading.Event().wait()


@_app.job("pools_and_hangs", isolation="process", max_attempts=1)
def pools_and_hangs(payload: str, ctx: Ctx) -> None:
    pool_and_hang(lambda pids: ctx.log.info(" ".join(map(str, pids))), payload)


@_app.job("starts_programs_and_hangs", isolation="process", max_attempts=1)
def starts_programs_and_hangs(payload: None, ctx: Ctx) -> None:
    """One with an environment of its own, one in a session of its own."""
    plain = subprocess.Popen(["/bin/sleep", "1000"], env={})
    apart = subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    ctx.log.info("%d %d %d", os.getpid(), plain.pid, apart.pid)
    threading.Event().wait()


@_app.job("asks_from_threads", isolation="process", max_attempts=1)
def asks_from_threads(payload: int, ctx: Ctx) -> list[int]:
    with concurrent.futures.ThreadPoolExecutor(payload) as threads:
        return list(threads.map(lambda number: ctx.once(f"step {number}", lambda: number), range(payload)))


@_app.job("returns_bytes", isolation="process", max_attempts=3)
def returns_bytes(payload: int) -> str:
    limits.RESULT_BYTES_MAX, process.MESSAGE_BYTES_MAX = SMALL_RESULT_BYTES, SMALL_MESSAGE_BYTES
    return "x" * payload


@_app.batch_job("return_bytes", isolation="process", max_attempts=3, max_size=8, max_wait=0.2)
def return_bytes(payloads: list[int]) -> list[str]:
    limits.RESULT_BYTES_MAX, process.MESSAGE_BYTES_MAX = SMALL_RESULT_BYTES, SMALL_MESSAGE_BYTES
    return ["\\" * payload for payload in payloads]


def bind(make_app: Callable[..., Backstay]) -> Backstay:
    """Return an app on a test's own file with these handlers."""
    app = make_app()
    app.handlers.update(_app.handlers)
    return app
