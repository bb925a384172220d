"""Handlers for child processes: they must stand at the top level of a module. The payload says where they write."""

import os
import signal
from pathlib import Path

from backstay import Backstay, BlockingContext

app = Backstay("sqlite:///unused.db")


@app.job("append", isolation="process")
def append(payload: str, ctx: BlockingContext) -> None:
    with Path(payload).open("a") as file:
        file.write("line\n")
    ctx.progress(0.5)


@app.job("append_once", isolation="process")
def append_once(payload: str, ctx: BlockingContext) -> None:
    def write() -> None:
        with Path(payload).open("a") as file:
            file.write("line\n")

    ctx.once("write", write)
    ctx.progress(0.5)


@app.job("hang", isolation="process")
def hang(payload: str) -> None:
    Path(payload).write_text(f"{os.getpid()} {os.getppid()}")
    while True:
        signal.pause()
