"""Which file and which write-ahead log are open, and whether they are still there.

This is checked after every commit. A system call for each file would be a tenth of a submit, so the folder is checked
first: as long as its change time is the same, nothing in it was removed or replaced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from backstay.clock import Clock, SystemClock
from backstay.errors import StoreGone

SETTLED_SECONDS = 2.0  # more than the time of a folder is coarse: what comes within a tick of it leaves no mark
FRESH_SECONDS = 1.0  # how long to believe it: a file can also be covered by a mount, which leaves none


class Sight(NamedTuple):
    """A folder, and when an entry of it was last added, removed or renamed. No program can set that time."""

    device: int
    inode: int
    changed_ns: int


class Folder:
    """Tells whether what was found in a folder still holds."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.clock: Clock = SystemClock()
        # Each is set at once: several threads read and write them.
        self._last: tuple[Sight | None, float] = None, 0.0  # and since when it is like that
        self._sure: tuple[Sight | None, float] = None, 0.0  # and until when

    def look(self) -> Sight:
        """Return how the folder is now. Ask before reading what is in it."""
        stat = os.stat(self.path)
        return Sight(stat.st_dev, stat.st_ino, stat.st_ctime_ns)

    def is_known(self, sight: Sight) -> bool:
        """Return whether everything is as it was found."""
        sure, until = self._sure
        return sight == sure and self.clock.monotonic() < until

    def found(self, sight: Sight) -> None:
        """Note that the files were read after this look at the folder. If its time was old enough, that still holds for
        as long as the time stays the same."""
        now = self.clock.monotonic()
        last, since = self._last
        if sight != last:
            self._last = sight, now
        elif now - since > SETTLED_SECONDS:
            self._sure = sight, now + FRESH_SECONDS


class Identity:
    """Which file this is, and which write-ahead log. A file that vanished or was replaced must never become a new,
    empty queue; and what is written to a log that was removed is seen by no other process, and lost with this one."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)  # not a Path, which os.stat would convert at each commit
        self.log = f"{path}-wal"
        self.inode = _inode(self.path)
        self.log_inode = _inode(self.log)  # SQLite keeps the file for as long as a connection is open
        # What a link names may be replaced in another folder.
        self.folder = None if os.path.islink(path) else Folder(str(path.parent))

    def check(self) -> None:
        if self.folder is None:
            self._check_files()
            return
        try:
            sight = self.folder.look()
        except OSError:
            self._check_files()
            return
        if not self.folder.is_known(sight):
            self._check_files()
            self.folder.found(sight)

    def _check_files(self) -> None:
        if _inode(self.path) != self.inode:
            raise StoreGone(
                f"{self.path} vanished or was replaced while the app was running: stop it, and restore the file"
            )
        if self.log_inode is None:
            self.log_inode = _inode(self.log)
        elif _inode(self.log) != self.log_inode:
            name = os.path.basename(self.path)
            raise StoreGone(
                f"{self.log} was removed or replaced while the app was running, and the last changes are in it: stop"
                f" every process that uses {name}, check it with PRAGMA integrity_check, and restore a backup if it is"
                " damaged; see docs/howto/backup"
            )


def _inode(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
