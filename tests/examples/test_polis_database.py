"""Polis's own PostgreSQL database as the source of an analysis, with its tables as Polis makes them."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest
from polis.database import write_export
from polis.export import Export, ExportError, read_export

from tests.examples.rules_fixtures import execute, in_database
from tests.support.servers.postgres import Postgres

# The tables and columns that an analysis reads, with their names, types and defaults in a Polis server's database.
TABLES = """
    CREATE TABLE conversations (
        zid serial UNIQUE, topic varchar(1000), description varchar(50000), strict_moderation boolean DEFAULT false
    );
    CREATE TABLE zinvites (zid integer NOT NULL REFERENCES conversations(zid), zinvite varchar(300) NOT NULL UNIQUE);
    CREATE TABLE participants (
        pid integer NOT NULL, uid integer NOT NULL, zid integer NOT NULL REFERENCES conversations(zid),
        vote_count integer NOT NULL DEFAULT 0, created bigint, UNIQUE (zid, pid)
    );
    CREATE TABLE comments (
        tid integer NOT NULL, zid integer NOT NULL, pid integer NOT NULL, uid integer NOT NULL, created bigint,
        txt varchar(1000) NOT NULL, mod integer NOT NULL DEFAULT 0, active boolean NOT NULL DEFAULT true,
        is_meta boolean NOT NULL DEFAULT false, is_seed boolean NOT NULL DEFAULT false, UNIQUE (zid, tid)
    );
    CREATE TABLE votes (
        zid integer NOT NULL, pid integer NOT NULL, tid integer NOT NULL, vote smallint,
        weight_x_32767 smallint DEFAULT 0, created bigint
    );
    CREATE TABLE votes_latest_unique (
        zid integer NOT NULL, pid integer NOT NULL, tid integer NOT NULL, vote smallint,
        weight_x_32767 smallint DEFAULT 0, modified bigint, UNIQUE (zid, pid, tid)
    );
    CREATE RULE on_vote_insert_update_unique_table AS ON INSERT TO votes DO ALSO
        INSERT INTO votes_latest_unique (zid, pid, tid, vote, weight_x_32767, modified)
        VALUES (NEW.zid, NEW.pid, NEW.tid, NEW.vote, NEW.weight_x_32767, NEW.created)
        ON CONFLICT (zid, pid, tid) DO UPDATE SET vote = excluded.vote, modified = excluded.modified;
    CREATE TABLE math_main (
        zid integer NOT NULL, math_env varchar(999) NOT NULL, data jsonb NOT NULL,
        last_vote_timestamp bigint NOT NULL DEFAULT 0, modified bigint, UNIQUE (zid, math_env)
    );
"""
# Two conversations: of the first, comment 2 is rejected, 3 not moderated, 4 about the participant, 5 not active.
ROWS = """
    INSERT INTO conversations (zid, topic, strict_moderation) VALUES (7, 'Our river', true), (8, 'Another', false);
    INSERT INTO zinvites VALUES (7, '3nemnipcrc'), (8, '4other');
    INSERT INTO participants (pid, uid, zid)
        SELECT pid, 100 + pid, zid FROM generate_series(0, 2) pid, (VALUES (7), (8)) z (zid);
    INSERT INTO comments (tid, zid, pid, uid, created, txt, mod, active, is_meta, is_seed) VALUES
        (0, 7, 0, 100, 1726860676783, 'Clean it, and "soon"', 1, true, false, true),
        (1, 7, 1, 101, 1726860676784, E'Two\\nlines', 1, true, false, false),
        (2, 7, 1, 101, 1726860676785, 'Spam', -1, true, false, false),
        (3, 7, 1, 101, 1726860676786, 'Nobody has looked', 0, true, false, false),
        (4, 7, 2, 102, 1726860676787, 'I fish', 1, true, true, false),
        (5, 7, 2, 102, 1726860676788, 'Taken back', 1, false, false, false),
        (0, 8, 0, 100, 1726860676789, 'Of another conversation', 1, true, false, false);
    INSERT INTO votes (zid, pid, tid, vote, created) VALUES
        (7, 0, 0, -1, 1726860677000), (7, 1, 0, 1, 1726860677001);
    INSERT INTO votes (zid, pid, tid, vote, created) VALUES
        (7, 1, 0, -1, 1726860677002),
        (7, 2, 0, 0, 1726860677003), (7, 2, 1, 1, 1726860677004), (7, 2, 2, NULL, 1726860677005),
        (8, 0, 0, 1, 1726860677006);
"""
MATH = {
    "base-clusters": {"id": [3, 4], "members": [[0, 1], [2]], "x": [0, 1], "y": [0, 1], "count": [2, 1]},
    "group-clusters": [{"id": 0, "members": [3], "center": [0, 0]}, {"id": 1, "members": [4], "center": [1, 1]}],
    "group-aware-consensus": {"0": 0.5, "1": 0.25},
}
_numbers = itertools.count()


@pytest.fixture
async def polis_url(postgres: Postgres) -> AsyncIterator[str]:
    name = f"polis_{next(_numbers)}"
    await execute(postgres.url(), f"CREATE DATABASE {name}")
    url = in_database(postgres.url(), name)
    await execute(url, TABLES + ROWS)
    connection = await asyncpg.connect(url)
    await connection.execute("INSERT INTO math_main VALUES (7, 'prod', $1, 0, 2)", json.dumps(MATH))
    await connection.execute("INSERT INTO math_main VALUES (7, 'preprod', '{}', 0, 1)")
    await connection.close()
    yield url
    await execute(postgres.url(), f"DROP DATABASE {name} WITH (FORCE)")


async def exported(url: str, folder: Path, conversation: str = "3nemnipcrc") -> Export:
    await asyncio.to_thread((folder / conversation).mkdir, parents=True)
    await write_export(url, conversation, folder / conversation)
    return await asyncio.to_thread(read_export, folder / conversation, conversation)


@pytest.mark.parametrize("name", ["3nemnipcrc", "7"])
async def test_a_conversation_in_the_database_of_polis_becomes_an_export(
    polis_url: str, tmp_path: Path, name: str
) -> None:
    export = await exported(polis_url, tmp_path, name)
    assert export.title == "Our river"
    bodies = {each.comment_id: each.body for each in export.comments.values()}
    assert bodies[0] == 'Clean it, and "soon"' and bodies[1] == "Two lines" and len(bodies) == 6
    comment = export.comments[0]
    assert (comment.agrees, comment.disagrees, comment.is_seed, comment.polis_consensus) == (2, 0, True, 0.5)
    assert export.comments[4].is_meta and export.comments[4].polis_consensus is None
    votes = export.votes
    cast = list(zip(votes.voter_ids.tolist(), votes.comment_ids.tolist(), votes.values.tolist(), strict=True))
    assert cast == [(0, 0, 1), (1, 0, -1), (1, 0, 1), (2, 0, 0), (2, 1, -1), (2, 2, 0)], "an agreement is 1, not -1"
    assert export.polis_groups == {0: 0, 1: 0, 2: 1}


async def test_an_address_of_digits_is_found_before_the_number_of_another_conversation(
    polis_url: str, tmp_path: Path
) -> None:
    await execute(polis_url, "INSERT INTO zinvites VALUES (8, '7')")
    assert (await exported(polis_url, tmp_path, "7")).title == "Another"


async def test_strict_moderation_is_read_from_the_conversation(polis_url: str, tmp_path: Path) -> None:
    strict = await exported(polis_url, tmp_path / "strict")
    assert strict.strict and [each.comment_id for each in strict.let_in] == [0, 1, 4]
    await execute(polis_url, "UPDATE conversations SET strict_moderation = false")
    lax = await exported(polis_url, tmp_path / "lax")
    assert not lax.strict and [each.comment_id for each in lax.let_in] == [0, 1, 3, 4]


async def test_a_database_that_says_which_vote_is_an_agreement_is_believed(polis_url: str, tmp_path: Path) -> None:
    await execute(
        polis_url, "CREATE TABLE vote_convention (agree_value smallint); INSERT INTO vote_convention VALUES (1)"
    )
    export = await exported(polis_url, tmp_path)
    assert export.votes.values.tolist() == [-1, 1, -1, 0, 1, 0]
    assert (export.comments[0].agrees, export.comments[0].disagrees) == (0, 2)


async def test_a_database_without_an_analysis_of_polis_is_read_too(polis_url: str, tmp_path: Path) -> None:
    await execute(polis_url, "DROP TABLE math_main")
    export = await exported(polis_url, tmp_path)
    assert export.polis_groups == {} and export.comments[0].polis_consensus is None


async def test_what_cannot_be_read_is_said_in_a_sentence(polis_url: str, postgres: Postgres, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no conversation '9none': use its zinvite or its zid"):
        await exported(polis_url, tmp_path, "9none")
    with pytest.raises(ExportError, match="not one of a Polis server: relation"):
        await exported(postgres.url(), tmp_path / "other")
    with pytest.raises(ExportError, match='cannot be read: database "nowhere" does not exist'):
        await exported(in_database(postgres.url(), "nowhere"), tmp_path / "nowhere")
