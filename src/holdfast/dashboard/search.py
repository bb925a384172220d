"""The search line of the jobs page: `type:embedding status:failed subject:"room 4"`, as conditions of find and as an
address that can be shared. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import cast
from urllib.parse import urlencode

import msgspec

from holdfast import ids, limits
from holdfast.checks import check_text
from holdfast.errors import InvalidOption
from holdfast.finding import ORDERS, FindOptions
from holdfast.lifecycle import Status

# What people write, and the condition of find that it is. Their order is that of the line.
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
    "worker": "a worker's id, as the page of workers has it",
    "tag": "nightly",
    "by": "anna",
    "root": "the id of a tree's first job",
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
LINE_LENGTH_MAX = 2_000  # what an address line carries everywhere
_TOKEN = re.compile(r'\s*((?:[^\s":]+:)?"(?:[^"\\]|\\.)*"|\S+)')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_PLAIN = re.compile(r'[^\s"\\]+')


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a part of the line, and what to write instead."""

    part: str
    says: str


class Search(msgspec.Struct, frozen=True):
    """What was asked for. With problems nothing is searched: half an answer would look like a whole one."""

    conditions: Mapping[str, str] = {}  # by qualifier
    problems: tuple[Problem, ...] = ()
    job_id: str | None = None  # the line was nothing but an id: that job is meant
    given: str = ""  # the line as it was written

    @property
    def line(self) -> str:
        """As it is shown: what was written where it has problems, else in the usual order."""
        return self.given if self.problems else written(self.conditions)

    @property
    def status(self) -> Status | None:
        return Status(self.conditions["status"]) if "status" in self.conditions and not self.problems else None

    def options(self) -> FindOptions:
        """For app.find."""
        return cast(FindOptions, {QUALIFIERS[name]: value for name, value in self.conditions.items()})

    def having(self, **changes: str | None) -> str:
        """The line with a condition more, another, or (None) one less."""
        conditions = {**self.conditions, **changes}
        return written({name: value for name, value in conditions.items() if value is not None})


def parse(line: str) -> Search:
    line = line.strip()
    if len(line) > LINE_LENGTH_MAX:
        return Search(problems=(Problem(line[:40] + "…", f"a search has at most {LINE_LENGTH_MAX:,} characters"),))
    if (job_id := _id(line)) is not None:
        return Search(job_id=job_id, given=line)
    conditions: dict[str, str] = {}
    problems: list[Problem] = []
    for token in _tokens(line):
        name, value, problem = _condition(token)
        if problem is None and conditions.get(name, value) != value:
            problem = f"{name}: was given twice; all conditions hold together, so that no job fits both"
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


def address(**conditions: str) -> str:
    """The part of an address behind the question mark: the same search for everyone who opens it."""
    line = written(conditions)
    return urlencode({"q": line}) if line else ""


def _tokens(line: str) -> Iterator[str]:
    return (found[1] for found in _TOKEN.finditer(line))


def _condition(token: str) -> tuple[str, str, str | None]:
    """Qualifier, value, and what is wrong."""
    name, colon, raw = token.partition(":")
    if not colon or '"' in name:
        return "", "", f"a word alone says nothing: write what it is, as in subject:{quoted(_bare(token))}"
    name = _SAME.get(name.lower(), name.lower())
    if name not in QUALIFIERS:
        return name, "", _unknown(name)
    value = _bare(raw)
    if not value:
        return name, "", f"{name}: needs a value, as in {name}:{EXAMPLES[name]}"
    value, problem = _checked(name, value)
    return name, value, problem


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, QUALIFIERS, n=1)
    meant = f"did you mean {near[0]}: ? " if near else ""
    return f"there is no qualifier {_short(name)}: {meant}There are {', '.join(f'{each}:' for each in QUALIFIERS)}"


def _checked(name: str, value: str) -> tuple[str, str | None]:
    match name:
        case "status":
            value = value.lower()
            return value, None if value in {*Status} else _one_of("status", value, [*Status])
        case "order":
            value = value.lower()
            return value, None if value in ORDERS else _one_of("order", value, ORDERS)
        case "root":
            found = _id(value)
            return found or value, None if found else "root: takes the whole id of a job, which is a UUID"
        case _:
            try:
                check_text(name, value, limits.KEY_LENGTH_MAX)
            except InvalidOption as error:
                return value, str(error)
            return value, None


def _one_of(name: str, value: str, known: tuple[str, ...] | list[Status]) -> str:
    near = difflib.get_close_matches(value, known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"{name}: is no {_short(value)!r}; {meant}there is {', '.join(known)}"


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
