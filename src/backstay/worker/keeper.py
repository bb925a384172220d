"""The keeper of a handler's process: forks it, waits for its end, and kills whatever it leaves behind.

    worker ──starts──▶ keeper ──forks──▶ child ──▶ what handlers start: pools, programs, daemons

Keeper and child are subreapers: a process that loses its parent anywhere below becomes theirs, so that nothing escapes
by a double fork or a new session. The child ends what a handler left when the handler returns; the keeper does when the
child is dead, however it died, and it kills the child when the worker asks, or is gone. It ends as the child ended.
Where the keeper itself was killed, the worker finds what is left by a mark in its environment and by the keeper's
process group.

This file is run by its path, before the user's program or anything else of this package is imported: the fork happens
while there is one thread and little memory. It needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any

IS_USED = sys.platform.startswith("linux")  # elsewhere there are no subreapers: the worker kills the child itself
LOOK_SECONDS = 5.0  # between looks at whether the worker still lives, in case the kernel does not tell
TRACKER_SECONDS = 2.0  # for multiprocessing's resource tracker, which removes semaphores of those that were killed
KILL_SECONDS = 5.0  # a process that is stuck in the kernel, or of another user, stays
GUARD_HINT = ' (a script that uses process isolation must start its work under `if __name__ == "__main__":`)'
MARK = "BACKSTAY_KEPT"  # in the environment of a keeper and of all below it: a word of its own
_TRACKER = b"multiprocessing.resource_tracker"
_PDEATHSIG, _SUBREAPER = 1, 36  # of prctl


def main(pipe: int, control: int, worker: int) -> None:
    """Run the keeper; never returns. `pipe` connects the child to the worker. Any input on `control`, or its end, is
    the order to kill."""
    if not IS_USED:
        os.close(control)
        _run_child(pipe)
    _prctl(_SUBREAPER, 1)
    _prctl(_PDEATHSIG, signal.SIGUSR1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for each in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, ignore)  # the worker decides when a child ends, not who signals the whole group
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        for descriptor in (woken, wake, control):
            os.close(descriptor)
        _become_child(keeper)
        _run_child(pipe)
    os.close(pipe)
    status = _watch(child, worker, control, woken)
    end_children((), TRACKER_SECONDS)
    _end_as(status)


def _watch(child: int, worker: int, control: int, woken: int) -> int:
    """Return the child's status once it has ended."""
    while True:
        ready, _, _ = select.select([control, woken], [], [], LOOK_SECONDS)
        if woken in ready:
            os.read(woken, 4096)
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
        if control in ready or os.getppid() != worker:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1]


def _end_as(status: int) -> None:
    if os.WIFSIGNALED(status):
        with contextlib.suppress(ImportError, ValueError, OSError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child's own dump is enough
        number = os.WTERMSIG(status)
        with contextlib.suppress(OSError):  # SIGKILL
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pause()
    os._exit(os.waitstatus_to_exitcode(status))


# The child


def ignore(number: int, frame: FrameType | None) -> None:
    """Ignore a signal in this process. SIG_IGN would be inherited by what a handler starts, which could then not be
    terminated."""


def _become_child(keeper: int) -> None:
    signal.set_wakeup_fd(-1)
    for each in (signal.SIGCHLD, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)
    _prctl(_SUBREAPER, 1)
    die_with_parent(keeper)


def die_with_parent(parent: int) -> None:
    """Die with the parent, on Linux. Elsewhere the closed pipe ends a child."""
    _prctl(_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)


def _run_child(descriptor: int) -> None:
    """Import the user's program as multiprocessing does, then serve calls. Never returns."""
    import json
    import pickle
    from multiprocessing import process, spawn
    from multiprocessing.connection import Connection

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, ignore)
    os.set_inheritable(descriptor, False)
    pipe: Connection[Any, Any] = Connection(descriptor)
    current: Any = process.current_process()

    def refuse(reason: str) -> None:
        pipe.send_bytes(json.dumps(["broken", reason]).encode())
        os._exit(1)

    try:
        start = pickle.loads(pipe.recv_bytes())  # noqa: S301  # from the worker, as multiprocessing does it
    except (EOFError, OSError):
        os._exit(0)  # the worker is gone
    current._inheriting = True  # how multiprocessing marks a process that imports a main module
    current.backstay_refuse = refuse
    try:
        spawn.prepare(start["preparation"])
    except BaseException as error:
        refuse(f"importing the main module raised {type(error).__name__}: {str(error)[:2000]}{GUARD_HINT}")
    del current._inheriting, current.backstay_refuse
    from backstay.worker.process_child import main

    main(pipe, *start["handler"])
    os._exit(0)


# Processes below this one


def end_children(spared: Collection[int], tracker_seconds: float = 0.0) -> int:
    """Kill all processes below this one except those spared; return how many had not ended by themselves. Only direct
    children are killed: their own children are then adopted by this process, and killed next."""
    killed: set[int] = set()
    began = time.monotonic()
    while (passed := time.monotonic() - began) < KILL_SECONDS:
        left = [pid for pid in children() if pid not in spared and not _reaped(pid)]
        if not left:
            break
        for pid in left:
            if pid in killed or (passed < tracker_seconds and _is_tracker(pid)):
                continue
            with contextlib.suppress(ProcessLookupError, PermissionError):  # of another user: sudo
                os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(0.001)
    return len(killed)


def end_orphans(keeper: int, mark: str) -> None:
    """Kill what a keeper that was killed has left: all processes with this mark or in the keeper's process group. Its
    number is not used again before the keeper is reaped. A process that has left the group as well as its environment,
    or that belongs to another user, is not found."""
    sought = f"{MARK}={mark}".encode()
    began = time.monotonic()
    while time.monotonic() - began < KILL_SECONDS:
        left = [pid for pid in _pids() if _is_marked(pid, sought) or _is_in_group(pid, keeper)]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.001)


def _is_marked(pid: int, sought: bytes) -> bool:
    with contextlib.suppress(OSError):
        return sought in _read(f"/proc/{pid}/environ").split(b"\0")  # of a zombie it is empty
    return False


def _is_in_group(pid: int, group: int) -> bool:
    with contextlib.suppress(OSError, IndexError, ValueError):
        state, _, found, *_ = _stat(pid)
        return int(found) == group and state not in b"ZX"  # dead already
    return False


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # not Linux
        return []


def children(of: int | None = None) -> list[int]:
    """Return the children of this process, or of another one."""
    folder = f"/proc/{of or 'self'}/task"
    try:
        return [int(pid) for thread in os.listdir(folder) for pid in _words(f"{folder}/{thread}/children")]
    except OSError:  # not Linux, or a kernel without these files
        return list(_children_by_stat(of or os.getpid()))


def _children_by_stat(parent: int) -> Iterator[int]:
    for pid in _pids():
        with contextlib.suppress(OSError, IndexError, ValueError):
            if int(_stat(pid)[1]) == parent:
                yield pid


def _stat(pid: int) -> list[bytes]:
    """Return the state of a process, its parent, its process group and more."""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _words(path: str) -> list[bytes]:
    return _read(path).split()


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _is_tracker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _TRACKER in _read(f"/proc/{pid}/cmdline")
    return False


def _prctl(option: int, value: int) -> None:
    import ctypes  # here: a worker, which imports this file too, spares itself the memory

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
