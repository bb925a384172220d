"""Space kept aside so that running jobs can settle on a full disk.

A small file beside the database. When a settlement meets a full disk, the file goes and its space serves; until it
can be put back, new jobs are refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

RESERVE_BYTES_MAX = 8 * 1024 * 1024
RESERVE_SHARE = 8  # never more than an eighth of the volume: small test volumes have a reserve too


class Reserve:
    def __init__(self, database: Path) -> None:
        self.path = database.with_name(database.name + ".reserve")

    def ensure(self) -> bool:
        """True when the reserve is in place."""
        try:
            if self.path.stat().st_size > 0:
                return True
        except OSError:
            pass
        try:
            disk = shutil.disk_usage(self.path.parent)
            size = min(RESERVE_BYTES_MAX, disk.total // RESERVE_SHARE)
            if disk.free < 2 * size:  # what is free may be the reserve that another process has just given up
                return False
            descriptor = os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600)
            try:
                _allocate(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                self.path.unlink()
            return False
        return True

    def spend(self) -> bool:
        """Give the space to whoever needs it now; False when there is none left."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True


def _allocate(descriptor: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.write(descriptor, bytes(size))
