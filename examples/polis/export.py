"""Reads an export of a Polis conversation: a folder with comments.csv, votes.csv and participants-votes.csv.

A vote is 1 (agree), 0 (pass) or -1 (disagree). A comment whose `moderated` is -1 was kept out of the conversation; with
strict moderation, which a line `strict-moderation,true` in summary.csv turns on, so was one whose `moderated` is 0.

Polis has changed the form over the years, and every form is read: columns that an analysis can do without (`datetime`,
`xid`) may be missing, and newer ones (`is-meta`, `is-seed`, `group-informed-consensus`) are used where they exist. An
export of comments alone, without the other two files, has topics but no groups.
Any error in a file is an ExportError with the file, the line and what was expected there.
"""

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import compress
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]

COMMENT_COLUMNS = ("timestamp", "comment-id", "author-id", "agrees", "disagrees", "moderated", "comment-body")
VOTE_COLUMNS = ("timestamp", "comment-id", "voter-id", "vote")
PARTICIPANT_COLUMNS = ("participant", "group-id", "n-comments", "n-votes", "n-agree", "n-disagree")
FILES = ("comments.csv", "votes.csv", "participants-votes.csv")
OTHER_NAMES = {"participants-votes.csv": "participant-votes.csv"}  # as the report page of Polis names it
SUMMARY = "summary.csv"  # optional: lines of `name,value`; `topic` is the conversation's title
CONSENSUS = "group-informed-consensus"
CONVENTION, AGREE_IS_ONE = "vote-convention", "agree=+1"  # a line of it since 2026, and what it says
STRICT = "strict-moderation"  # the line of it that no export of Polis has
LINES_BETWEEN_REPORTS = 2_000
INTEGER_MAX = 2**53  # ids beyond this do not survive JSON
NO_SURPRISE = frozenset(("", "1", "0", "-1"))  # the votes in participants-votes.csv
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
    moderated: int  # 1: accepted, 0: not moderated, -1: rejected
    body: str
    agrees: int = 0  # as the file counts them
    disagrees: int = 0
    is_meta: bool = False  # it is about the participants, not about the question
    is_seed: bool = False  # the organisers wrote it
    polis_consensus: float | None = None  # group-informed, as Polis computed it


@dataclass(frozen=True, slots=True)
class Votes:
    """Every vote that was cast, in the order of the file: entry n of each array is one vote."""

    timestamps: Integers
    comment_ids: Integers
    voter_ids: Integers
    values: Integers

    def __len__(self) -> int:
        return len(self.values)


_NONE: Integers = np.empty(0, dtype=np.int64)
NO_VOTES = Votes(_NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class Export:
    conversation_id: str
    title: str
    comments: Mapping[int, Comment]
    votes: Votes
    polis_groups: Mapping[int, int]  # the groups that Polis itself had found, by participant; may be empty
    digest: str  # of the files: the same digest, the same conversation
    strict: bool = False  # only accepted comments count, not those that no moderator has seen

    @property
    def let_in(self) -> list[Comment]:
        return [each for each in self.comments.values() if is_let_in(each.moderated, self.strict)]


def is_let_in(moderated: int, strict: bool) -> bool:
    return moderated == 1 or (moderated == 0 and not strict)


def read_export(folder: Path, conversation_id: str, tell: Callable[[float], object] = lambda share: None) -> Export:
    """Read all of it. `tell` is called with the share of the work that is done."""
    comments_file, votes_file, participants_file = files_of(folder)
    sizes = [path.stat().st_size if path else 0 for path in (comments_file, votes_file, participants_file)]
    position = _Position(tell, sum(sizes) or 1)
    summary = _read_summary(folder / SUMMARY)
    strict = summary.get(STRICT, "").strip().lower() == "true"
    if (declared := summary.get(CONVENTION, AGREE_IS_ONE)).replace(" ", "").split(";")[0] != AGREE_IS_ONE:
        raise ExportError(f"{folder / SUMMARY} declares votes as {declared[:80]!r}: only {AGREE_IS_ONE} is read")
    comments = _read_comments(comments_file, strict, position)
    votes, groups = NO_VOTES, {}
    if votes_file is not None and participants_file is not None:
        votes = _read_votes(votes_file, position)
        if not np.isin(votes.comment_ids, list(comments)).any():
            raise ExportError(f"{votes_file}: no vote is on a comment of {FILES[0]}: are they of one conversation?")
        groups = _read_groups(participants_file, position)
    title = _clean(summary.get("topic", "")) or f"Conversation {conversation_id}"
    digest = _digest([each for each in (comments_file, votes_file, participants_file) if each], strict)
    return Export(conversation_id, title, comments, votes, groups, digest, strict)


class _Position:
    """How much of the files has been read."""

    def __init__(self, tell: Callable[[float], object], size: int) -> None:
        self._tell = tell
        self._size = size
        self._before = 0  # bytes of the files that were read to their end

    def at(self, place: int) -> None:
        self._tell(min(1.0, (self._before + place) / self._size))

    def end(self, size: int) -> None:
        self._before += size


def add_strict(folder: Path) -> None:
    """Note in an export that moderation was strict."""
    path = folder / SUMMARY
    lines = path.read_text(encoding="utf-8-sig") if path.is_file() else ""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(lines + ("" if lines.endswith("\n") or not lines else "\n") + f"{STRICT},true\n")


def files_of(folder: Path) -> tuple[Path, Path | None, Path | None]:
    """Return the three files. The last two are None if the export is one of comments alone."""
    if not folder.is_dir():
        raise ExportError(f"{folder} is not a folder: put the export's files ({', '.join(FILES)}) there")
    comments, votes, participants = (_file(folder, name) for name in FILES)
    if comments is not None and (votes is None) == (participants is None):
        return comments, votes, participants
    missing = next(name for name in FILES if _file(folder, name) is None)
    raise ExportError(f"{folder / missing} is missing: an export has {', '.join(FILES)}")


def _file(folder: Path, name: str) -> Path | None:
    possible = (folder / name, folder / OTHER_NAMES.get(name, name))
    return next((path for path in possible if path.is_file()), None)


def moment(timestamp: int) -> datetime:
    """Parse a time: exports have seconds or milliseconds since 1970."""
    return datetime.fromtimestamp(timestamp / 1000 if timestamp > 100_000_000_000 else timestamp, UTC)


def _read_comments(path: Path, strict: bool, position: _Position) -> dict[int, Comment]:
    comments: dict[int, Comment] = {}
    for line, row in _rows(path, COMMENT_COLUMNS, position):
        comment_id = _integer(path, line, "comment-id", row["comment-id"])
        if comment_id in comments:
            raise ExportError(f"{path} line {line}: comment {comment_id} is there twice")
        moderated = _integer(path, line, "moderated", row["moderated"])
        if moderated not in (-1, 0, 1):
            raise ExportError(f"{path} line {line}: moderated is {moderated}: it is -1, 0 or 1")
        body = _clean(row["comment-body"])
        if not body and is_let_in(moderated, strict):
            raise ExportError(f"{path} line {line}: comment {comment_id} has no text")
        if len(body.encode()) > BODY_BYTES_MAX:
            raise ExportError(f"{path} line {line}: comment {comment_id} has over {BODY_BYTES_MAX:,} bytes of text")
        comments[comment_id] = Comment(
            comment_id=comment_id,
            author_id=_integer(path, line, "author-id", row["author-id"]),
            timestamp=_timestamp(path, line, row["timestamp"]),
            moderated=moderated,
            body=body,
            agrees=_integer(path, line, "agrees", row["agrees"]),
            disagrees=_integer(path, line, "disagrees", row["disagrees"]),
            is_meta=_flag(path, line, "is-meta", row.get("is-meta", "")),
            is_seed=_flag(path, line, "is-seed", row.get("is-seed", "")),
            polis_consensus=_share(path, line, CONSENSUS, row.get(CONSENSUS, "")),
        )
    if not any(is_let_in(comment.moderated, strict) for comment in comments.values()):
        why = ": moderation is strict, and no comment was accepted" if strict else ""
        raise ExportError(f"{path} has no comment that was let in: there is nothing to analyse{why}")
    return comments


def _read_votes(path: Path, position: _Position) -> Votes:
    columns: tuple[list[int], ...] = ([], [], [], [])
    timestamps, comment_ids, voter_ids, values = columns
    for line, row in _rows(path, VOTE_COLUMNS, position):
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


def _read_groups(path: Path, position: _Position) -> dict[int, int]:
    """Read the groups of participants; votes are read from votes.csv, which has their order."""
    groups: dict[int, int] = {}
    seen: set[int] = set()
    for line, head, values in _lines(path, PARTICIPANT_COLUMNS, position):
        row = {name: values[head.index(name)] for name in PARTICIPANT_COLUMNS}
        participant = _integer(path, line, "participant", row["participant"])
        if participant in seen:
            raise ExportError(f"{path} line {line}: participant {participant} is there twice")
        seen.add(participant)
        for name in PARTICIPANT_COLUMNS[2:]:
            _integer(path, line, name, row[name])
        if not NO_SURPRISE.issuperset(compress(values, map(str.isdigit, head))):
            _say_which(path, line, head, values)
        if row["group-id"].strip():
            groups[participant] = _integer(path, line, "group-id", row["group-id"])
    return groups


def _say_which(path: Path, line: int, head: list[str], values: list[str]) -> None:
    for name, value in zip(head, values, strict=True):
        if name.isdigit() and value.strip() not in NO_SURPRISE:
            raise ExportError(f"{path} line {line}: the vote on {name} is {value[:40]!r}: it is 1, 0, -1 or blank")


def _rows(path: Path, columns: tuple[str, ...], position: _Position) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each line as a dict."""
    for line, head, values in _lines(path, columns, position):
        yield line, dict(zip(head, values, strict=True))


def _lines(path: Path, columns: tuple[str, ...], position: _Position) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield the number, the names and the values of each line. Files saved by a spreadsheet begin with a byte order
    mark, which utf-8-sig drops."""
    try:
        with path.open("rb") as raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="") as file:
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
                if reader.line_num % LINES_BETWEEN_REPORTS == 0:
                    position.at(raw.tell())
                yield reader.line_num, head, values
            position.end(path.stat().st_size)
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


def _flag(path: Path, line: int, column: str, text: str) -> bool:
    match text.strip().lower():
        case "true" | "t" | "1":
            return True
        case "false" | "f" | "0" | "":
            return False
        case other:
            raise ExportError(f"{path} line {line}: {column} is {other[:40]!r}: it is true or false")


def _share(path: Path, line: int, column: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        number = float(text)
    except ValueError:
        raise ExportError(f"{path} line {line}: {column} is {text[:40]!r}: it is a number") from None
    if not 0 <= number <= 1:
        raise ExportError(f"{path} line {line}: {column} is {text[:40]!r}: it is between 0 and 1")
    return number


def _read_summary(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return {row[0]: row[1] for row in csv.reader(file) if len(row) >= 2}
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise ExportError(f"{path} cannot be read: {error}") from error


def _clean(text: str) -> str:
    """Return the text on one line, without control characters: PostgreSQL cannot store a NUL."""
    return " ".join(_CONTROLS.sub(" ", text).split())


def _digest(files: list[Path], strict: bool) -> str:
    digest = hashlib.sha256(b"strict" if strict else b"")
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
