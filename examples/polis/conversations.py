"""Finds the exports: in the folder POLIS_EXPORTS (default: `exports`), with a folder for each conversation id.

A job's subject is the id of its conversation, and is all that a worker needs to find it. Workers on several hosts
need a folder that all of them see.
"""

import os
import re
from collections.abc import Callable
from pathlib import Path

from .export import Export, ExportError, read_export

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


def folder_of(conversation_id: str | None) -> Path:
    if not conversation_id:
        raise ExportError("whose conversation? Submit the job with its id as the subject: subject='36324'")
    return Path(os.environ.get("POLIS_EXPORTS") or "exports") / part_of_path(conversation_id)


def part_of_path(conversation_id: str) -> str:
    if not _ID.fullmatch(conversation_id):  # it becomes a part of a path
        raise ExportError(f"{conversation_id!r:.140} is not the id of a conversation: use letters, digits, _ . and -")
    return conversation_id


def conversation(conversation_id: str | None, tell: Callable[[float], object]) -> Export:
    return read_export(folder_of(conversation_id), conversation_id or "", tell)
