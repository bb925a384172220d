"""Reads a conversation from the PostgreSQL database of a Polis server, and writes it as an export.

Everything is read in one transaction that changes nothing, so that it is one moment of a conversation in which people
still vote. In the database of Polis an agreement is -1, unless its table `vote_convention` says otherwise; in an export
it is 1. A comment that is not active counts as rejected. The groups and the consensus are those of Polis's last
analysis.

The participants-votes.csv that is written has no columns of votes: votes.csv has these.
"""

import csv
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .export import COMMENT_COLUMNS, CONSENSUS, FILES, PARTICIPANT_COLUMNS, STRICT, SUMMARY, VOTE_COLUMNS, ExportError

SCHEMES = ("postgresql://", "postgres://")
ROWS_AT_ONCE = 10_000
AGREES = -1  # what Polis has always stored for an agreement

FIND = """
    SELECT c.zid, c.topic, coalesce(c.strict_moderation, false) AS strict
    FROM conversations c
    WHERE c.zid IN (SELECT zid FROM zinvites WHERE zinvite = $1) OR c.zid::text = $1
    ORDER BY c.zid::text = $1  -- a zinvite of digits goes before the zid that it equals
    LIMIT 1
"""
COMMENTS = """
    SELECT c.created, c.tid, c.pid, c.txt, CASE WHEN c.active THEN c.mod ELSE -1 END AS moderated, c.is_meta, c.is_seed,
        count(v.vote) FILTER (WHERE v.vote = $2) AS agrees, count(v.vote) FILTER (WHERE v.vote = -$2) AS disagrees
    FROM comments c
    LEFT JOIN votes_latest_unique v ON v.zid = c.zid AND v.tid = c.tid
    WHERE c.zid = $1
    GROUP BY c.zid, c.tid, c.created, c.pid, c.txt, c.active, c.mod, c.is_meta, c.is_seed
    ORDER BY c.tid
"""
VOTES = "SELECT created, tid, pid, coalesce(vote, 0) * $2::integer AS vote FROM votes WHERE zid = $1 ORDER BY created"
PARTICIPANTS = """
    SELECT p.pid, (SELECT count(*) FROM comments c WHERE c.zid = p.zid AND c.pid = p.pid) AS comments,
        count(v.tid) AS votes,
        count(v.vote) FILTER (WHERE v.vote = $2) AS agrees, count(v.vote) FILTER (WHERE v.vote = -$2) AS disagrees
    FROM participants p
    LEFT JOIN votes_latest_unique v ON v.zid = p.zid AND v.pid = p.pid
    WHERE p.zid = $1
    GROUP BY p.zid, p.pid
    ORDER BY p.pid
"""
MATH = """
    SELECT data->'base-clusters' AS base, data->'group-clusters' AS groups, data->'group-aware-consensus' AS consensus
    FROM math_main
    WHERE zid = $1
    ORDER BY modified DESC
    LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Math:
    """What Polis itself has found."""

    groups: Mapping[int, int]  # by participant
    consensus: Mapping[int, float]  # by comment


def is_database(source: str) -> bool:
    return source.startswith(SCHEMES)


async def write_export(url: str, conversation: str, folder: Path) -> None:
    """Write the export of a conversation into this folder. The conversation is named as in its address
    (pol.is/3nemnipcrc), or by its zid."""
    try:
        import asyncpg
    except ImportError:
        raise ExportError("reading from PostgreSQL needs asyncpg: python3 scripts/bootstrap.py test") from None
    try:
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                await _write(connection, conversation, folder)
        finally:
            await connection.close()
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise ExportError(f"the database is not one of a Polis server: {error}") from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise ExportError(f"the database of Polis cannot be read: {error}") from error


async def _write(connection: Any, conversation: str, folder: Path) -> None:
    found = await connection.fetchrow(FIND, conversation)
    if found is None:
        raise ExportError(f"the database has no conversation {conversation!r}: use its zinvite or its zid")
    zid = found["zid"]
    agrees = await _agree_value(connection)
    math = await _math(connection, zid)
    head = (*COMMENT_COLUMNS[:-1], "is-meta", "is-seed", CONSENSUS, COMMENT_COLUMNS[-1])
    rows = (_comment(row, math) async for row in connection.cursor(COMMENTS, zid, agrees, prefetch=ROWS_AT_ONCE))
    await _write_csv(folder / FILES[0], head, rows)
    votes = connection.cursor(VOTES, zid, agrees, prefetch=ROWS_AT_ONCE)
    await _write_csv(folder / FILES[1], VOTE_COLUMNS, (tuple(row) async for row in votes))
    people = connection.cursor(PARTICIPANTS, zid, agrees, prefetch=ROWS_AT_ONCE)
    await _write_csv(folder / FILES[2], PARTICIPANT_COLUMNS, (_participant(row, math) async for row in people))
    _write_summary(folder / SUMMARY, found["topic"] or "", strict=found["strict"])


async def _agree_value(connection: Any) -> int:
    if await connection.fetchval("SELECT to_regclass('vote_convention')") is None:
        return AGREES
    return await connection.fetchval("SELECT agree_value FROM vote_convention") or AGREES


async def _math(connection: Any, zid: int) -> Math:
    if await connection.fetchval("SELECT to_regclass('math_main')") is None:
        return Math({}, {})
    row = await connection.fetchrow(MATH, zid)
    if row is None:
        return Math({}, {})
    base, groups, consensus = (json.loads(row[name] or "null") or {} for name in ("base", "groups", "consensus"))
    members = dict(zip(base.get("id", ()), base.get("members", ()), strict=True)) if base else {}
    return Math(
        {int(pid): int(group["id"]) for group in groups for each in group["members"] for pid in members.get(each, ())},
        {int(tid): float(share) for tid, share in consensus.items()},
    )


def _comment(row: Any, math: Math) -> Sequence[object]:
    return (
        *(row["created"], row["tid"], row["pid"], row["agrees"], row["disagrees"], row["moderated"]),
        *(str(row["is_meta"]).lower(), str(row["is_seed"]).lower(), math.consensus.get(row["tid"], ""), row["txt"]),
    )


def _participant(row: Any, math: Math) -> Sequence[object]:
    group = math.groups.get(row["pid"], "")
    return (row["pid"], group, row["comments"], row["votes"], row["agrees"], row["disagrees"])


async def _write_csv(path: Path, head: Iterable[str], rows: AsyncIterator[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        async for row in rows:
            writer.writerow(row)


def _write_summary(path: Path, topic: str, *, strict: bool) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("topic", topic), (STRICT, str(strict).lower())])
