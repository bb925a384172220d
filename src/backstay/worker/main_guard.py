"""Refuses to open an app while a child process imports the main module.

A child process imports the main module to find its handlers. If that starts the program again, every child would submit
the same jobs and start a worker of its own.
"""

from __future__ import annotations

import sys

from backstay.errors import ConfigurationError

UNGUARDED = (
    "importing the main module starts the program again: process isolation imports it in every child process. Put what"
    ' starts the program under `if __name__ == "__main__":`'
)


def check() -> None:
    """Raise ConfigurationError while multiprocessing imports the main module. A child of a worker reports it to the
    worker instead, and exits, whatever exceptions the program catches."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return
    current = multiprocessing.current_process()
    if getattr(current, "_inheriting", False):
        if hasattr(current, "backstay_refuse"):
            current.backstay_refuse(UNGUARDED)
        raise ConfigurationError(UNGUARDED)
