"""A process that has imported everything, and forks on request: a new worker in milliseconds, not a second.

Requests come as JSON lines on stdin, {"program": "module:function", "options": {…}, "failpoints": "…"}; events
go as JSON lines to stdout: spawned, and, as waitpid tells them, stopped, continued, exited, killed. The zygote
has no threads and opens no store: its children are as clean as a new process.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any

import backstay
from backstay import failpoints
from tests.campaigns.processes import retention as retention_process
from tests.campaigns.processes import schedule as schedule_process
from tests.campaigns.processes import submit as submit_process
from tests.campaigns.processes import worker as worker_process
from tests.campaigns.storm import submit as storm_submit
from tests.campaigns.storm import work as storm_work

_PRELOADED = (
    backstay,
    retention_process,
    schedule_process,
    submit_process,
    worker_process,
    storm_submit,
    storm_work,
)
_PR_SET_PDEATHSIG = 1
_UNTIL_ANSWERED = {signal.SIGTERM}


def main() -> None:
    heard, wakeup = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: set[int] = set()
    requests = b""
    _say(event="ready", pid=os.getpid())
    while True:
        readable, _, _ = select.select([0, heard], [], [])
        if heard in readable:
            os.read(heard, 4096)
        _reap(children)
        if 0 in readable:
            chunk = os.read(0, 65536)
            if not chunk:
                break
            *lines, requests = (requests + chunk).split(b"\n")
            for line in lines:
                children.add(_spawn(json.loads(line)))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def _spawn(request: dict[str, Any]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, _UNTIL_ANSWERED)  # on a busy machine, one may arrive before the child runs
    pid = os.fork()
    if pid == 0:
        _become(request)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _UNTIL_ANSWERED)
    _say(event="spawned", request=request["request"], pid=pid)
    return pid


def _become(request: dict[str, Any]) -> None:
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # asked to stop before it has begun: do not start
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _UNTIL_ANSWERED)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        errors = os.open(request["errors"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        failpoints.switch(request["failpoints"])
        module, _, function = request["program"].partition(":")
        asyncio.run(getattr(importlib.import_module(module), function)(**request["options"]))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(children: set[int]) -> None:
    while children:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
        except ChildProcessError:
            return
        if pid == 0:
            return
        at = time.time_ns() // 1000
        if os.WIFSTOPPED(status):
            _say(event="stopped", pid=pid, code=os.WSTOPSIG(status), at=at)
        elif os.WIFCONTINUED(status):
            _say(event="continued", pid=pid, code=0, at=at)
        else:
            children.discard(pid)
            killed = os.WIFSIGNALED(status)
            code = os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
            _say(event="killed" if killed else "exited", pid=pid, code=code, at=at)


def _say(**event: Any) -> None:
    os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
