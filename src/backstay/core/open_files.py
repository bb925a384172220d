"""Too many open files: recognizes it behind errors of the system and of SQLite, and says what to do."""

from __future__ import annotations

import errno
import os

from backstay import posix

_SHORTAGES = (errno.EMFILE, errno.ENFILE)


def is_shortage(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in _SHORTAGES


def exhausted() -> bool:
    """Return whether this process can open no more files now; for errors that do not say why nothing was opened."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return is_shortage(error)
    return False


def what_to_do() -> str:
    return (
        f"this process has too many files and connections open{_limit()}: raise the limit with ulimit -n, or"
        " LimitNOFILE= of its systemd unit"
    )


def _limit() -> str:
    limit = posix.open_files_limit()
    return "" if limit is None else f" (its limit is {limit:,})"
