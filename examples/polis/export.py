"""Reads an export of a Polis conversation: a folder with comments.csv, votes.csv and participants-votes.csv.

A vote is 1 (agree), 0 (pass) or -1 (disagree). A comment whose `moderated` is -1 was kept out of the conversation.
Any error in a file is an ExportError with the file, the line and what was expected there.
"""

import csv
import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]

COMMENT_COLUMNS = (
    *("timestamp", "datetime", "comment-id", "author-id"),
    *("agrees", "disagrees", "moderated", "comment-body"),
)
VOTE_COLUMNS = ("timestamp", "datetime", "comment-id", "voter-id", "vote")
PARTICIPANT_COLUMNS = ("participant", "group-id", "n-comments", "n-votes", "n-agree", "n-disagree")
FILES = ("comments.csv", "votes.csv", "participants-votes.csv")
SUMMARY = "summary.csv"  # optional: lines of `name,value`; `topic` is the conversation's title
INTEGER_MAX = 2**53  # ids beyond this do not survive JSON
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
BODY_BYTES_MAX = 200_000  # of a comment: it is stored in rows, and an item of DynamoDB holds 400 KB
TIMESTAMP_MAX = 253_402_300_800_000  # the year 9999, in milliseconds


class ExportError(Exception):
    """The export cannot be read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Comment:
    comment_id: int
    author_id: int
    timestamp: int
    moderated: int
    body: str

    @property
    def let_in(self) -> bool:
        return self.moderated != -1


@dataclass(frozen=True, slots=True)
class Votes:
    """Every vote that was cast, in the order of the file: entry n of each array is one vote."""

    timestamps: Integers
    comment_ids: Integers
    voter_ids: Integers
    values: Integers

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Export:
    conversation_id: str
    title: str
    comments: Mapping[int, Comment]
    votes: Votes
    polis_groups: Mapping[int, int]  # the groups that Polis itself had found, by participant; may be empty
    digest: str  # of the three files: the same digest, the same conversation

    @property
    def let_in(self) -> list[Comment]:
        return [comment for comment in self.comments.values() if comment.let_in]


def read_export(folder: Path, conversation_id: str) -> Export:
    if not folder.is_dir():
        raise ExportError(f"{folder} is no folder: put the export's files ({', '.join(FILES)}) there")
    for name in FILES:
        if not (folder / name).is_file():
            raise ExportError(f"{folder / name} is missing: an export has {', '.join(FILES)}")
    comments = _read_comments(folder / FILES[0])
    votes = _read_votes(folder / FILES[1])
    if not np.isin(votes.comment_ids, list(comments)).any():
        raise ExportError(f"{folder / FILES[1]}: no vote is on a comment of {FILES[0]}: are they of one conversation?")
    groups = _read_groups(folder / FILES[2])
    title = _read_title(folder / SUMMARY) or f"Conversation {conversation_id}"
    return Export(conversation_id, title, comments, votes, groups, _digest(folder))


def moment(timestamp: int) -> datetime:
    """Parse a time: exports have seconds or milliseconds since 1970."""
    return datetime.fromtimestamp(timestamp / 1000 if timestamp > 100_000_000_000 else timestamp, UTC)


def _read_comments(path: Path) -> dict[int, Comment]:
    comments: dict[int, Comment] = {}
    for line, row in _rows(path, COMMENT_COLUMNS):
        comment_id = _integer(path, line, "comment-id", row["comment-id"])
        if comment_id in comments:
            raise ExportError(f"{path} line {line}: comment {comment_id} is there twice")
        moderated = _integer(path, line, "moderated", row["moderated"])
        if moderated not in (-1, 0, 1):
            raise ExportError(f"{path} line {line}: moderated is {moderated}: it is -1, 0 or 1")
        body = _clean(row["comment-body"])
        if not body and moderated != -1:
            raise ExportError(f"{path} line {line}: comment {comment_id} has no text")
        if len(body.encode()) > BODY_BYTES_MAX:
            raise ExportError(f"{path} line {line}: comment {comment_id} has over {BODY_BYTES_MAX:,} bytes of text")
        comments[comment_id] = Comment(
            comment_id,
            _integer(path, line, "author-id", row["author-id"]),
            _timestamp(path, line, row["timestamp"]),
            moderated,
            body,
        )
    if not any(comment.let_in for comment in comments.values()):
        raise ExportError(f"{path} has no comment that was let in: there is nothing to analyse")
    return comments


def _read_votes(path: Path) -> Votes:
    columns: tuple[list[int], ...] = ([], [], [], [])
    timestamps, comment_ids, voter_ids, values = columns
    for line, row in _rows(path, VOTE_COLUMNS):
        vote = _integer(path, line, "vote", row["vote"])
        if vote not in (-1, 0, 1):
            raise ExportError(f"{path} line {line}: vote is {vote}: it is 1 (agree), 0 (pass) or -1 (disagree)")
        timestamps.append(_timestamp(path, line, row["timestamp"]))
        comment_ids.append(_integer(path, line, "comment-id", row["comment-id"]))
        voter_ids.append(_integer(path, line, "voter-id", row["voter-id"]))
        values.append(vote)
    if not values:
        raise ExportError(f"{path} has no votes: there is nothing to analyse")
    return Votes(*(np.array(column, dtype=np.int64) for column in columns))


def _read_groups(path: Path) -> dict[int, int]:
    """Read the groups of participants; votes are read from votes.csv, which has their order."""
    groups: dict[int, int] = {}
    seen: set[int] = set()
    for line, row in _rows(path, PARTICIPANT_COLUMNS):
        participant = _integer(path, line, "participant", row["participant"])
        if participant in seen:
            raise ExportError(f"{path} line {line}: participant {participant} is there twice")
        seen.add(participant)
        for name in PARTICIPANT_COLUMNS[2:]:
            _integer(path, line, name, row[name])
        for name, value in row.items():
            if name not in PARTICIPANT_COLUMNS and value.strip() not in ("", "1", "0", "-1"):
                raise ExportError(f"{path} line {line}: the vote on {name} is {value[:40]!r}: it is 1, 0, -1 or blank")
        if row["group-id"].strip():
            groups[participant] = _integer(path, line, "group-id", row["group-id"])
    return groups


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each line as a dict. Files saved by a spreadsheet begin with a byte order mark, which utf-8-sig drops."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            head = next(reader, None)
            if head is None:
                raise ExportError(f"{path} is empty: its first line names the columns {', '.join(columns)}")
            _check_head(path, head, columns)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(head):
                    raise ExportError(
                        f"{path} line {reader.line_num}: {len(values)} values where the first line names {len(head)}"
                    )
                yield reader.line_num, dict(zip(head, values, strict=True))
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is not UTF-8 text (byte {error.start:,}): export it again") from error
    except csv.Error as error:
        raise ExportError(f"{path} line {reader.line_num}: {error}") from error
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error


def _check_head(path: Path, head: list[str], columns: tuple[str, ...]) -> None:
    if missing := [name for name in columns if name not in head]:
        raise ExportError(f"{path} line 1 lacks the column {missing[0]}: an export has {', '.join(columns)}")
    if twice := [name for name, count in Counter(head).items() if count > 1]:
        raise ExportError(f"{path} line 1 has the column {twice[0]} twice")


def _integer(path: Path, line: int, column: str, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        raise ExportError(f"{path} line {line}: {column} is {text[:40]!r}: it is a whole number") from None
    if abs(number) > INTEGER_MAX:
        raise ExportError(f"{path} line {line}: {column} is {number}: that is too large")
    return number


def _timestamp(path: Path, line: int, text: str) -> int:
    number = _integer(path, line, "timestamp", text)
    if not 0 <= number < TIMESTAMP_MAX:
        raise ExportError(f"{path} line {line}: timestamp is {number}: it is seconds or milliseconds since 1970")
    return number


def _read_title(path: Path) -> str:
    if not path.is_file():
        return ""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            found = {row[0]: row[1] for row in csv.reader(file) if len(row) >= 2}
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error
    return _clean(found.get("topic", ""))


def _clean(text: str) -> str:
    """Return the text on one line, without control characters: PostgreSQL cannot store a NUL."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in FILES:
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
