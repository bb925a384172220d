"""Where apsw's exceptions end: each becomes an error of ours that says what to do."""

from __future__ import annotations

import apsw

from holdfast.errors import StoreBusy, StoreError, StoreFull, StoreMoved, StoreUnsafe

MOVED = "holdfast moved: "  # how the words of a trigger begin that keeps a queue from changing while it moves


def translate(error: BaseException, path: str) -> BaseException:
    match error:
        case apsw.FullError():
            return StoreFull(f"no space left for {path}: free some disk space; running jobs can still finish")
        case apsw.BusyError() | apsw.LockedError():
            return StoreBusy(f"{path} was locked by other processes for too long: repeat the call")
        case apsw.NotADBError():
            return StoreUnsafe(f"{path} is not an SQLite database: choose another file")
        case apsw.CorruptError():
            return StoreError(f"{path} is damaged ({error}): restore a backup; see docs/howto/backup")
        case apsw.ReadOnlyError() | apsw.CantOpenError() | apsw.PermissionsError():
            return StoreError(f"{path} cannot be written ({error}): check the folder and its permissions")
        case apsw.ConstraintError() if str(error).startswith(MOVED):
            return StoreMoved(str(error).removeprefix(MOVED))
        case apsw.IOError():
            return StoreError(f"disk error on {path} ({error}): nothing of this call was acknowledged")
        case apsw.Error():
            return StoreError(f"{type(error).__name__} on {path}: {error}")
        case _:
            return error
