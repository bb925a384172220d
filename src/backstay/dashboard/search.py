"""Parses the search box of the jobs page into find options and a URL that can be shared. Pure.

A search is written like `type:embedding status:failed subject:"room 4"`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import cast

import msgspec

from backstay import ids, limits
from backstay.core.checks import check_text, closest
from backstay.core.states import OTHER_NAMES, Status
from backstay.errors import InvalidOption
from backstay.ops import lookup
from backstay.options import ORDERS, FindOptions

# Qualifiers and the find options they stand for, in the order in which a search is written.
QUALIFIERS = {
    "type": "job_type",
    "status": "status",
    "queue": "queue",
    "subject": "subject",
    "worker": "worker",
    "tag": "tag",
    "by": "created_by",
    "root": "root",
    "content": "content_hash",
    "order": "order",
}
EXAMPLES = {
    "type": "embedding",
    "status": "failed",
    "queue": "default",
    "subject": '"room 4"',
    "worker": "a worker ID, as shown on the Workers page",
    "tag": "nightly",
    "by": "anna",
    "root": "the ID of a tree's root job",
    "content": "a content hash",
    "order": "priority",
}
_SAME = {
    "job_type": "type",
    "created_by": "by",
    "content_hash": "content",
    "root_job_id": "root",
    "worker_id": "worker",
}
LINE_LENGTH_MAX = 2_000  # a URL of this length works everywhere
_TOKEN = re.compile(r'\s*((?:[^\s":]+:)?"(?:[^"\\]|\\.)*"|\S+)')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = re.compile(r'[^\s"\\]+')


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a part of the line, and what to write instead."""

    part: str
    says: str


class Search(msgspec.Struct, frozen=True):
    """A parsed search. With problems it is not run: partial results would look complete."""

    conditions: Mapping[str, str] = {}  # by qualifier
    problems: tuple[Problem, ...] = ()
    job_id: str | None = None  # the line is just a job id
    part: str | None = None  # the line is just a part of one; a problem until the job is found
    given: str = ""  # the line as entered

    @property
    def line(self) -> str:
        """As displayed: the text as entered if it has problems, else in canonical order."""
        return self.given if self.problems else written(self.conditions)

    @property
    def status(self) -> Status | None:
        return Status(self.conditions["status"]) if "status" in self.conditions and not self.problems else None

    def options(self) -> FindOptions:
        """For app.find."""
        return cast(FindOptions, {QUALIFIERS[name]: value for name, value in self.conditions.items()})

    def having(self, **changes: str | None) -> str:
        """Return the line with conditions added, replaced or (None) removed."""
        conditions = {**self.conditions, **changes}
        return written({name: value for name, value in conditions.items() if value is not None})


def parse(line: str) -> Search:
    line = line.strip()
    if len(line) > LINE_LENGTH_MAX:
        return Search(problems=(Problem(line[:40] + "…", f"a search may have at most {LINE_LENGTH_MAX:,} characters"),))
    if (job_id := _id(line)) is not None:
        return Search(job_id=job_id, given=line)
    if (part := lookup.part_of(line)) is not None:
        return Search(problems=(Problem(_short(line), "is not the ID of one job"),), part=part, given=line)
    conditions: dict[str, str] = {}
    problems: list[Problem] = []
    for token in _tokens(line):
        name, value, problem = _condition(token)
        if problem is None and conditions.get(name, value) != value:
            problem = f"{name}: is given twice, and no job can match both values"
        if problem is not None:
            problems.append(Problem(_short(token), problem))
        else:
            conditions[name] = value
    ordered = {name: conditions[name] for name in QUALIFIERS if name in conditions}
    return Search(ordered, tuple(problems), given=line)


def written(conditions: Mapping[str, str]) -> str:
    return " ".join(f"{name}:{quoted(conditions[name])}" for name in QUALIFIERS if name in conditions)


def quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tokens(line: str) -> Iterator[str]:
    return (found[1] for found in _TOKEN.finditer(line))


def _condition(token: str) -> tuple[str, str, str | None]:
    """Qualifier, value and problem."""
    name, colon, raw = token.partition(":")
    if not colon or '"' in name:
        return "", "", f"needs a qualifier, for example subject:{quoted(_bare(token))}"
    name = _SAME.get(name.lower(), name.lower())
    if name not in QUALIFIERS:
        return name, "", _unknown(name)
    value = _bare(raw)
    if not value:
        return name, "", f"needs a value{_example(name)}"
    value, problem = _checked(name, value)
    return name, value, problem


def _example(name: str) -> str:
    """Literal values are shown as they are written; others are described."""
    example = EXAMPLES[name]
    return f": {example}" if " " in example and not example.startswith('"') else f", for example {name}:{example}"


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, QUALIFIERS, n=1)
    hint = f" (did you mean {near[0]}:?)" if near else ""
    known = ", ".join(f"{each}:" for each in QUALIFIERS)
    return f"unknown qualifier {_short(name)!r}{hint}; use one of {known}"


def _checked(name: str, value: str) -> tuple[str, str | None]:
    match name:
        case "status":
            value = value.lower()
            return value, None if value in {*Status} else _one_of("status", value, [*Status], OTHER_NAMES)
        case "order":
            value = value.lower()
            return value, None if value in ORDERS else _one_of("order", value, ORDERS)
        case "root":
            found = _id(value)
            return found or value, None if found else "root: needs a full job ID, which is a UUID"
        case _:
            try:
                check_text(name, value, limits.KEY_LENGTH_MAX)
            except InvalidOption as error:
                return value, str(error)
            return value, None


def _one_of(name: str, value: str, known: Collection[str], others: Mapping[str, str] | None = None) -> str:
    near = closest(value, known, others or {})
    hint = f" (did you mean {near}?)" if near else ""
    return f"unknown {name} {_short(value)!r}{hint}; use one of {', '.join(known)}"


def _bare(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] == '"':
        return _ESCAPED.sub(r"\1", value[1:-1])
    return value


def _id(text: str) -> str | None:
    try:
        return ids.canonical(text) if len(text) >= 32 else None
    except InvalidOption:
        return None


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
