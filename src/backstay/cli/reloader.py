"""`--reload`, for development: one worker process, which is started again when a Python file changes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from backstay.cli.daemon import Supervisor, _ending, _Pulse, check_supervision, supervisor_log
from backstay.cli.output import Exit
from backstay.clock import within
from backstay.limits import WATCHED_FILES_MAX
from backstay.worker.stop import ABANDON_SECONDS, STOP_SECONDS

GRACE_SECONDS = 1.0  # unless --grace says otherwise: who has just saved a file wants to see what it does
LOOK_SECONDS = 0.4  # between looks at the files
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")


def run(arguments: list[str], grace_seconds: float) -> Exit:
    check_supervision()
    return asyncio.run(_Reloader(arguments, grace_seconds).run(1))


class _Reloader(Supervisor):
    async def _keep(self, index: int, pipe: int) -> None:
        files = Files(Path.cwd())
        supervisor_log.info("watching the Python files below %s", files.folder)
        while not self._stopping.is_set():
            life = asyncio.ensure_future(self._live(index, pipe))
            change = asyncio.ensure_future(files.changed())
            try:
                await _first(life, change)
                if life.done() and not self._stopping.is_set():
                    how = _ending(life.result())
                    supervisor_log.error("the worker process %s: waiting for a file to change", how)
                    await self._until_stopped_or(change)
                if change.done():
                    supervisor_log.info("%s has changed: starting again", change.result())
                    await self._end(index, life)
                await life
            finally:
                change.cancel()

    async def _until_stopped_or(self, change: asyncio.Future[str]) -> None:
        stopped = asyncio.ensure_future(self._stopping.wait())
        await _first(stopped, change)
        stopped.cancel()

    async def _end(self, index: int, life: asyncio.Future[int]) -> None:
        """Let the process finish what it runs, within the grace."""
        child = self._children.get(index)
        if child is None or child.returncode is not None:
            return
        with suppress(ProcessLookupError):
            child.send_signal(signal.SIGTERM)
        if not await within(self._grace_seconds + STOP_SECONDS + 2 * ABANDON_SECONDS, asyncio.wait({life})):
            child.kill()

    def _judge(self, index: int, code: int, pulse: _Pulse) -> None:
        """A broken file does not end this: the next change may mend it."""


async def _first(*waits: asyncio.Future[Any]) -> None:
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)


class Files:
    """The Python files below a folder, without those of virtual environments and of hidden folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen = self._read()

    async def changed(self) -> str:
        """Return the path of a file that is new, gone or different, once there is one."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            found = await asyncio.to_thread(self._read)
            before, self._seen = self._seen, found
            for path in sorted(found.keys() | before.keys()):
                if found.get(path) != before.get(path):
                    return str(Path(path).relative_to(self.folder))

    def _read(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in _python_files(self.folder):
            with suppress(OSError):  # it is gone
                found[path] = os.stat(path).st_mtime_ns
            if len(found) >= WATCHED_FILES_MAX:
                break
        return found


def _python_files(folder: Path) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = [each for each in folders if not each.startswith(".") and each not in _PASSED_OVER]
        yield from (os.path.join(place, name) for name in names if name.endswith(".py"))
