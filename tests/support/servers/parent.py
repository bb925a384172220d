"""Servers that end with the process which started them, so that a killed test run leaves none behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with_parent(how: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Return the `preexec_fn` of such a server. Another signal than SIGKILL is for a server that handles it: a run in
    the background of a script has SIGINT and SIGQUIT ignored, and whatever it starts inherits that."""
    parent = os.getpid()

    def prepare() -> None:
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, how)
            if os.getppid() != parent:  # it ended before this was asked for
                os._exit(1)

    return prepare
