"""Encodes what handlers return: small plain values at once, others in a thread that can be stopped.

A model may run code of its own when it is encoded, and that code may run for ever or produce without end. It does so in
a thread, within the time of its job, and is stopped when the job is, or when the process grows too large. What stops it
is an exception that Python raises in that thread between two instructions: C code that never returns cannot be stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import Any

from backstay import codec
from backstay.errors import InvalidResult
from backstay.limits import MIB, RESULT_MEMORY_BYTES_MAX
from backstay.worker.memory import resident_bytes

LOOK_SECONDS = 0.05  # between looks at the memory: a generator fills a few megabytes meanwhile


class Unencoded:
    """A result that takes longer than a moment to encode."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def at_once(value: Any) -> str | Unencoded:
    """Return the JSON text of a result if it can be encoded at once."""
    if (text := codec.flat_json(value)) is not None:
        return text
    return codec.quick_result_json(value) if codec.is_quick(value) else Unencoded(value)


async def encoded(value: Any) -> str:
    """Return the JSON text of a result. Raises InvalidResult or ResultTooLarge."""
    found = value if isinstance(value, Unencoded) else at_once(value)
    return found if isinstance(found, str) else await _Encoding(found.value).text()


class _Stopped(BaseException):
    """Raised in the thread when its text is no longer needed."""


class _Encoding:
    def __init__(self, value: Any) -> None:
        self._value = value
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[str] = self._loop.create_future()
        self._context = contextvars.copy_context()
        self._is_written = False  # what follows runs no code of the value
        self._thread = threading.Thread(target=self._work, name="backstay-encoder", daemon=True)

    async def text(self) -> str:
        before = resident_bytes()
        self._thread.start()
        try:
            while not (await asyncio.wait({self._future}, timeout=LOOK_SECONDS))[0]:
                if not self._is_written and resident_bytes() - before > RESULT_MEMORY_BYTES_MAX:
                    raise InvalidResult(
                        f"encoding the result took more than {RESULT_MEMORY_BYTES_MAX // MIB} MiB of memory"
                        " (RESULT_MEMORY_BYTES_MAX): does one of its serializers produce without end?"
                    )
            return self._future.result()
        finally:
            if not self._future.done():
                self._stop()

    def _stop(self) -> None:
        self._future.cancel()
        if self._thread.ident is not None:
            import ctypes  # here: few workers ever need it, and it takes memory

            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(_Stopped))

    def _work(self) -> None:
        try:
            try:
                text, error = self._context.run(codec.result_json, self._value, self._written), None
            except Exception as raised:
                text, error = "", raised
            self._loop.call_soon_threadsafe(self._resolve, text, error)
        except (_Stopped, RuntimeError):  # stopped, or the loop is gone
            pass
        except BaseException as raised:  # of the value's own code; some wrap what stops them
            self._tell(raised)

    def _tell(self, raised: BaseException) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._resolve, "", InvalidResult(f"its code raised {raised!r:.300}"))

    def _written(self) -> None:
        self._is_written = True

    def _resolve(self, text: str, error: Exception | None) -> None:
        if self._future.done():
            return
        if error is None:
            self._future.set_result(text)
        else:
            self._future.set_exception(error)
