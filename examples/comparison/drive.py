"""Puts one of the three through the same scenes, and prints what was seen: `python -m comparison.drive on_celery`."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from comparison.outside import noted

WAIT_SECONDS = 60.0
UPTO = 8
WORKERS = {
    "on_backstay": ["-m", "backstay", "--app", "comparison.on_backstay:app", "worker", "--log-level", "warning"],
    "on_celery": ["-m", "celery", "--app", "comparison.on_celery", "worker", "--beat", "--concurrency", "2"],
    "on_procrastinate": ["-m", "comparison.on_procrastinate"],
}


def main(name: str) -> dict[str, Any]:
    system: Any = importlib.import_module(f"comparison.{name}")
    system.set_up()
    seen: dict[str, Any] = {}
    first = _start(name)
    try:
        order = system.submit("order", number=7)
        seen["order"] = system.result_of(order, WAIT_SECONDS)
        seen["charges"] = noted("charges")
        later = system.submit("count", after=3600, upto=1)
        seen["why"] = system.why_not_running(later)
        seen["refuses a wrong payload"] = _refuses(lambda: system.submit("count", upto="many"))
        _until(lambda: len(noted("strikes")) > 0)
        seen["strikes"] = True
        counted = system.submit("count", upto=UPTO)
        _until(lambda: 0 < system.progress_of(counted) < 1)
        seen["progress"] = True
    finally:
        _kill(first)
    killed_at = time.monotonic()
    second = _start(name)
    try:
        seen["after the kill"] = system.result_of(counted, WAIT_SECONDS)
        seen["seconds"] = time.monotonic() - killed_at
    finally:
        _kill(second)
    return seen


def _start(name: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, *WORKERS[name]]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sys.stderr, start_new_session=True)


def _kill(worker: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _refuses(submit: Callable[[], object]) -> bool:
    try:
        submit()
    except Exception:
        return True
    return False


def _until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError("it did not come")
        time.sleep(0.05)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
