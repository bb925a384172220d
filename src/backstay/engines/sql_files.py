"""SQL files: one per module of an engine, one named section per statement.

A section begins with `-- name: claim_plain` and ends where the next one begins. The comment that follows its name says
what the statement promises and which index serves it.

Lists of columns follow from the fields of a job. A statement has `{record_columns}` in their place, which is filled
once, when the file is read; a function in a migration has `{payload_bytes_max}` for a limit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_LIST = re.compile(r"\{(\$?[a-z]\w*)\}")


def read(package: str, lists: Mapping[str, str]) -> dict[str, str]:
    """Return every statement of an engine, by name, with its lists of columns."""
    folder = resources.files(package).joinpath("sql")
    found = sections(*(file for file in folder.iterdir() if file.name.endswith(".sql")))
    return {name: filled(text, lists) for name, text in found.items()}


def filled(statement: str, lists: Mapping[str, str]) -> str:
    unknown = set(_LIST.findall(statement)) - lists.keys()
    if unknown:
        raise ValueError(f"there is nothing to put in for {{{min(unknown)}}}: use one of {', '.join(lists)}")
    return _LIST.sub(lambda match: lists[match[1]], statement)


def sections(*files: Traversable) -> dict[str, str]:
    found: dict[str, str] = {}
    for file in files:
        heading, *parts = _NAME.split(file.read_text(encoding="utf-8"))
        if heading.strip():
            raise ValueError(f'{file.name} begins without a name: start it with "-- name: …"')
        for name, text in zip(parts[::2], parts[1::2], strict=True):
            if name in found:
                raise ValueError(f"two statements are named {name}: rename the one in {file.name}")
            found[name] = text.strip() + "\n"
    return found
