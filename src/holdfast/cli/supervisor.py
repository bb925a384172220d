"""holdfast worker --processes N: keeps N processes of the same command alive, and ends with them.

Each child reads a pipe whose other end only the parent holds: when the parent dies, however it dies, the pipe closes
and the child stops as if it had been told to. Children have process groups of their own, so that a Ctrl-C in the
terminal reaches them once, through the parent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from holdfast.cli.exits import Exit
from holdfast.waits import within

log = logging.getLogger("holdfast.supervisor")
_PIPE = "HOLDFAST_SUPERVISOR_PIPE"
PAUSE_SECONDS = 0.5  # before the first restart; doubles with each that follows soon
PAUSE_SECONDS_MAX = 30.0
HEALTHY_SECONDS = 60.0  # a child that lived so long did not die of its start
ORPHAN_SECONDS = 15.0  # beyond the grace, before an orphan that cannot stop is ended


def supervise(count: int, arguments: list[str]) -> Exit:
    return asyncio.run(_Supervisor(arguments).run(count))


class _Supervisor:
    def __init__(self, arguments: list[str]) -> None:
        self._command = [sys.executable, "-m", "holdfast", *arguments]
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._code = Exit.OK

    async def run(self, count: int) -> Exit:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        theirs, ours = os.pipe()
        try:
            await asyncio.gather(*(self._keep(index, theirs) for index in range(1, count + 1)))
        finally:
            os.close(theirs)
            os.close(ours)
        return self._code

    async def _keep(self, index: int, pipe: int) -> None:
        pause = PAUSE_SECONDS
        while not self._stopping.is_set():
            started = time.monotonic()
            code = await self._live(index, pipe)
            if self._stopping.is_set():
                break
            if code == Exit.USAGE:  # it said why; another try would say the same
                self._code = Exit.USAGE
                self._stop(signal.SIGTERM)
                break
            if time.monotonic() - started > HEALTHY_SECONDS:
                pause = PAUSE_SECONDS
            log.error("worker process %d %s: starting another in %g s", index, _ending(code), pause)
            await self._rest(pause)
            pause = min(PAUSE_SECONDS_MAX, pause * 2)

    async def _live(self, index: int, pipe: int) -> int:
        """One child, from its start to its end."""
        child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(pipe,),
            env={**os.environ, _PIPE: str(pipe)},
            process_group=0,
        )
        self._children[index] = child
        log.info("worker process %d is pid %d", index, child.pid)
        if self._stopping.is_set():  # told to stop between the decision and the start
            child.send_signal(signal.SIGTERM)
        code = await child.wait()
        del self._children[index]
        well = code in (0, -signal.SIGTERM, -signal.SIGINT)  # a signal in the middle of its start ends it, rightly
        if self._stopping.is_set() and not well and self._code is Exit.OK:
            log.error("worker process %d %s", index, _ending(code))
            self._code = Exit.FAILED
        return code

    async def _rest(self, seconds: float) -> None:
        await within(seconds, self._stopping.wait())

    def _signalled(self, number: signal.Signals) -> None:
        log.info("%s: passed on to %d worker processes", number.name, len(self._children))
        self._stop(number)

    def _stop(self, number: signal.Signals) -> None:
        self._stopping.set()
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was killed by {name}"


# In the child


def is_child() -> bool:
    return _PIPE in os.environ


def watch_parent(stop: Callable[[], object], grace_seconds: float) -> None:
    """Stop when the parent is gone; end where even stopping does not work."""
    given = os.environ.pop(_PIPE, None)
    if given is None:
        return
    pipe = int(given)
    os.set_inheritable(pipe, False)

    def watch() -> None:
        os.read(pipe, 1)  # nobody ever writes: it returns when the last writer is gone
        log.warning("the supervisor is gone: this worker stops")
        stop()
        time.sleep(grace_seconds + ORPHAN_SECONDS)
        os._exit(Exit.FAILED)

    threading.Thread(target=watch, name="holdfast-supervisor", daemon=True).start()
