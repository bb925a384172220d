"""SQL files: one per module of an engine, one named section per statement.

A section begins with `-- name: claim_plain` and ends where the next one begins. The comment that follows its name says
what the statement promises and which index serves it.

Lists of columns follow from the fields of a job. A statement has `{record_columns}` in their place, which is filled
once, when the file is read; a function in a migration has `{payload_bytes_max}` for a limit. What statements share is a
section that begins with `-- part: claimants`, and they have `{claimants}` in its place. Its comment is left out there.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from typing import NamedTuple

_NAME = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_LIST = re.compile(r"\{(\$?[a-z]\w*)\}")


class Sections(NamedTuple):
    statements: dict[str, str]  # by name
    parts: dict[str, str]  # that statements share


def read(package: str, lists: Mapping[str, str]) -> dict[str, str]:
    """Return every statement of an engine, by name."""
    folder = resources.files(package).joinpath("sql")
    return complete(sections(*(file for file in folder.iterdir() if file.name.endswith(".sql"))), lists)


def complete(found: Sections, lists: Mapping[str, str]) -> dict[str, str]:
    """Return statements with their lists of columns and the parts that they share."""
    parts = {name: filled(_bare(text), lists) for name, text in found.parts.items()}
    return {name: filled(text, {**lists, **parts}) for name, text in found.statements.items()}


def filled(statement: str, lists: Mapping[str, str]) -> str:
    unknown = set(_LIST.findall(statement)) - lists.keys()
    if unknown:
        raise ValueError(f"there is nothing to put in for {{{min(unknown)}}}: use one of {', '.join(lists)}")
    return _LIST.sub(lambda match: lists[match[1]], statement)


def sections(*files: Traversable) -> Sections:
    found = Sections({}, {})
    for file in files:
        heading, *rest = _NAME.split(file.read_text(encoding="utf-8"))
        if heading.strip():
            raise ValueError(f'{file.name} begins without a name: start it with "-- name: …"')
        for kind, name, text in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            if name in found.statements or name in found.parts:
                raise ValueError(f"two statements are named {name}: rename the one in {file.name}")
            (found.statements if kind == "name" else found.parts)[name] = text.strip() + "\n"
    return found


def _bare(part: str) -> str:
    """Return a part without the comment that begins it, and its last line break."""
    lines = part.rstrip("\n").splitlines(keepends=True)
    return "".join(itertools.dropwhile(lambda line: line.startswith("--"), lines))
