"""The janitor of a worker, pass after pass, from the start of the first handler until SIGTERM."""

from __future__ import annotations

import asyncio
import signal

from holdfast import Retention
from holdfast.clock import SystemClock
from holdfast.files import LocalFiles
from holdfast.worker.janitor import Janitor

from bench_app import MARKS, app

LOOK_SECONDS = 0.002


async def main() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with app:
        tidying = asyncio.create_task(_tidy_up())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([tidying, stopped], return_when=asyncio.FIRST_COMPLETED)
        if tidying.done():
            tidying.result()  # it does not end by itself
        tidying.cancel()


async def _tidy_up() -> None:
    janitor = Janitor(app.store, SystemClock(), LocalFiles(str(app.store.files_root)), Retention())
    while not MARKS.count:  # noqa: ASYNC110 - the mark is left by another process
        await asyncio.sleep(LOOK_SECONDS)
    while True:
        await janitor.clean_up()
        await asyncio.sleep(LOOK_SECONDS)


asyncio.run(main())
