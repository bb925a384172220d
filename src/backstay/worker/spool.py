"""Files on their way from a child process to its parent, passed by path: a pipe would hold the whole message."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from backstay.files.local import PIECE_BYTES, Content, in_pieces

_PREFIX = "backstay-child-"


@contextlib.contextmanager
def spooled(content: Content) -> Iterator[str]:
    """Write content to a file and yield its path; the file is removed afterwards."""
    descriptor, path = tempfile.mkstemp(prefix=f"{_PREFIX}{os.getpid()}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            for piece in in_pieces(content, PIECE_BYTES):
                file.write(piece)
        yield path
    finally:
        Path(path).unlink(missing_ok=True)


def sweep(pid: int | None) -> None:
    """Remove what a killed child has left behind."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}{pid}-*"):
        path.unlink(missing_ok=True)
