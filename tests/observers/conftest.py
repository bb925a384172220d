"""Apps without the developer's own settings, and a worker in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from backstay import Backstay

ROOT = Path(__file__).parents[2]
WorkerProcess = Callable[..., AbstractContextManager[None]]


@pytest.fixture(autouse=True)
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith(("BACKSTAY_", "OTEL_", "SENTRY_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def make_app(url: str) -> Callable[..., Backstay]:
    def make(**options: Any) -> Backstay:
        return Backstay(url, **options)

    return make


@pytest.fixture
def worker_process(url: str, tmp_path: Path) -> WorkerProcess:
    """`with worker_process(app, NAME=value):` runs `backstay worker` and ends it as a service manager does."""

    @contextmanager
    def running(app: str, **environment: str) -> Iterator[None]:
        process = subprocess.Popen(
            [sys.executable, "-m", "backstay", "--app", app, "worker", "--concurrency", "2"],
            env={**os.environ, "PYTHONPATH": str(ROOT), "BACKSTAY_URL": url, **environment},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=30)
            assert process.returncode == 0, said
        finally:
            process.kill()
            process.communicate()

    return running
