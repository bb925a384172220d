"""The parent's side of a child process: fork it, hear it, stop it, let it go on, and see that nothing of it remains."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import apsw

from holdfast.clock import SystemClock
from holdfast.worker.child import _die_with_parent

LOOK_SECONDS = 0.05  # between looks at a child whose pipe a grandchild may keep open; its end is heard at once
LAST_WORDS_BYTES = 4_000  # of a child's output in a message: a traceback, not a log
STOPS_MAX = 1_000  # tries to stop a child outside a transaction: it is inside for a few milliseconds in a hundred
STOP_AGAIN_SECONDS = 0.005  # about what a transaction takes
_RESTORED = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGHUP)


class Link:
    """What a child holds of the pipes to its parent."""

    def __init__(self, says: int, waits: int) -> None:
        self._says = says
        self._waits = waits

    def say(self, line: bytes) -> None:
        os.write(self._says, line + b"\n")

    def wait(self) -> None:
        """Until the parent says so. Blocks this thread, and if it is the event loop's, that too."""
        os.read(self._waits, 1)


@contextmanager
def forked(program: Callable[[Link], None], output: Path, seconds: float) -> Iterator[Child]:
    """A child that runs `program`. On leaving the block it is dead, and so is all that it started."""
    child = _fork(program, output, seconds)
    try:
        yield child
    finally:
        child.end()


def _fork(program: Callable[[Link], None], output: Path, seconds: float) -> Child:
    hears, says = os.pipe()
    waits, tells = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Newer Pythons warn of threads. Those of pytest and its plugins hold no lock that a child needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _become(program, Link(says, waits), output, parent)
    os.close(says)
    os.close(waits)
    with contextlib.suppress(OSError):  # the child does it too: whoever comes first
        os.setpgid(pid, pid)
    return Child(pid, hears, tells, output, seconds)


def _become(program: Callable[[Link], None], link: Link, output: Path, parent: int) -> NoReturn:
    """Never returns: what called us belongs to the parent."""
    code = 1
    try:
        gc.freeze()  # what the parent's garbage would close (sockets, event loops, databases) is shared with it
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)
        _die_with_parent(parent)
        signal.set_wakeup_fd(-1)
        for each in _RESTORED:
            signal.signal(each, signal.SIG_DFL)
        _redirect(output)
        program(link)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


def _redirect(output: Path) -> None:
    """A test's captured output is the parent's; logs go along, for the message of a failure."""
    nothing = os.open(os.devnull, os.O_RDWR)
    file = os.open(output, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    for theirs, ours in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(theirs, ours)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115  it lives as long as we do
    logging.getLogger().handlers[:] = [logging.StreamHandler(sys.stderr)]


class Child:
    """A process that we started, and its group."""

    def __init__(self, pid: int, hears: int, tells: int, output: Path, seconds: float) -> None:
        self.pid = pid
        self._hears = hears
        self._tells = tells
        self._ear = select.poll()  # not select.select: it knows no descriptor from 1,024
        self._ear.register(hears, select.POLLIN)
        self._output = output
        self._clock = SystemClock()
        self._seconds = seconds
        self._deadline = self._clock.monotonic() + seconds
        self._buffer = b""
        self._status: int | None = None

    def hear(self) -> bytes | None:
        """The next line; None when it has ended. AssertionError when it does neither in time."""
        while b"\n" not in self._buffer:
            left = self._deadline - self._clock.monotonic()
            if left <= 0:
                raise AssertionError(f"a worker did not end within {self._seconds:g} s.{self.last_words()}")
            if self._ear.poll(min(left, LOOK_SECONDS) * 1000):
                if not (chunk := os.read(self._hears, 65536)):
                    return None
                self._buffer += chunk
            elif self._has_ended():
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _has_ended(self) -> bool:
        """Without reaping it: while it is a zombie, nobody else can get its id or its group."""
        if self._status is not None:
            return True
        if not hasattr(os, "waitid"):
            return False
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop(self, database: Path) -> None:
        """SIGSTOP for the whole group, outside any transaction. A process that stops while it holds SQLite's write lock
        stops everyone: that is a limit of one file, and not what a stall is to show."""
        for _ in range(STOPS_MAX):
            os.killpg(self.pid, signal.SIGSTOP)
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                self._status = status
                raise AssertionError(f"a worker died while it was being stopped ({self.death()}).{self.last_words()}")
            if _is_writable(database):
                return
            os.killpg(self.pid, signal.SIGCONT)
            time.sleep(STOP_AGAIN_SECONDS)
        raise AssertionError(f"a worker could not be stopped outside a transaction in {STOPS_MAX:,} tries")

    def go_on(self) -> None:
        self._deadline = self._clock.monotonic() + self._seconds
        os.write(self._tells, b"!")
        os.killpg(self.pid, signal.SIGCONT)

    def end(self) -> None:
        """The group first, and then the child itself is reaped: until then its id is surely its own."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            _, self._status = os.waitpid(self.pid, 0)
        for descriptor in (self._hears, self._tells):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def death(self) -> str:
        """How it ended, in words."""
        if self._status is None:
            return "it lives"
        code = os.waitstatus_to_exitcode(self._status)
        return f"exit status {code}" if code >= 0 else signal.Signals(-code).name

    def last_words(self) -> str:
        try:
            text = self._output.read_bytes()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        except OSError:
            text = ""
        return f" Its last words:\n{text}" if text else ""


def _is_writable(database: Path) -> bool:
    connection = apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
