"""Generates a sample conversation in the format of an export: the same seed gives the same bytes.

It has three groups of participants, who differ as real people do: some are near the middle, most vote on only some of
the comments, some change their mind.
"""

import csv
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from .export import COMMENT_COLUMNS, FILES, PARTICIPANT_COLUMNS, SUMMARY, VOTE_COLUMNS
from .sample_comments import COMMENTS, KEPT_OUT, TITLE

CONVERSATION_ID = "millbrook"
PARTICIPANTS = 300
GROUP_SHARES = (0.42, 0.33, 0.25)
BEGIN = 1_772_355_600  # 1 March 2026, 9:00 UTC
LENGTH_SECONDS = int(timedelta(days=21).total_seconds())
CLARITY = 1.4  # over 1, people agree with their group more often than the numbers say
PLACED_FROM = 7  # Polis groups only participants with at least this many votes


@dataclass(frozen=True, slots=True)
class Cast:
    timestamp: int
    comment_id: int
    voter_id: int
    vote: int


def write_sample(folder: Path, *, seed: int = 7, participants: int = PARTICIPANTS) -> Path:
    dice = random.Random(seed)
    groups = dice.choices(range(len(GROUP_SHARES)), GROUP_SHARES, k=participants)
    votes = sorted(_votes(dice, groups), key=lambda vote: (vote.timestamp, vote.voter_id, vote.comment_id))
    last = {(vote.voter_id, vote.comment_id): vote.vote for vote in votes}
    authors = [dice.randrange(participants) for _ in range(len(COMMENTS) + len(KEPT_OUT))]
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / FILES[0], COMMENT_COLUMNS, _comment_rows(authors, last))
    _write(
        folder / FILES[1],
        VOTE_COLUMNS,
        ((each.timestamp, each.comment_id, each.voter_id, each.vote) for each in votes),
    )
    comment_ids = range(len(COMMENTS) + len(KEPT_OUT))
    _write(folder / FILES[2], (*PARTICIPANT_COLUMNS, *map(str, comment_ids)), _participant_rows(groups, authors, last))
    summary = (("topic", TITLE), ("voters", participants), ("comments", len(COMMENTS)), ("votes", len(votes)))
    _write(folder / SUMMARY, summary[0], summary[1:])
    return folder


def _votes(dice: random.Random, groups: Sequence[int]) -> Iterable[Cast]:
    for voter, group in enumerate(groups):
        arrives = BEGIN + int(LENGTH_SECONDS * dice.betavariate(1.2, 2.2))
        firmness = dice.betavariate(14, 1.3)  # 1: votes as the group does; 0: as the whole town would
        patience = min(len(COMMENTS), 5 + int(dice.gammavariate(2.6, 15)))
        at = arrives
        for comment_id in dice.sample(range(len(COMMENTS)), patience):
            at += dice.randint(4, 40)
            vote = _vote(dice, comment_id, group, firmness)
            yield Cast(at, comment_id, voter, vote)
            if dice.random() < 0.02:  # thinks again some days later
                yield Cast(at + dice.randint(3_600, 400_000), comment_id, voter, vote - 1 if vote == 1 else vote + 1)
        if dice.random() < 0.05:
            yield Cast(at + 9, len(COMMENTS) + dice.randrange(len(KEPT_OUT)), voter, -1)


def _vote(dice: random.Random, comment_id: int, group: int, firmness: float) -> int:
    agreement = COMMENTS[comment_id][1:]
    likely = firmness * agreement[group] + (1 - firmness) * sum(agreement) / len(agreement)
    likely = likely**CLARITY / (likely**CLARITY + (1 - likely) ** CLARITY)
    undecided = 0.04 + 0.16 * (1 - abs(2 * likely - 1))  # undecided participants pass more often
    if dice.random() < undecided:
        return 0
    return 1 if dice.random() < likely else -1


def _comment_rows(authors: Sequence[int], last: dict[tuple[int, int], int]) -> Iterable[Sequence[object]]:
    bodies = [(comment[0], 1) for comment in COMMENTS] + [(body, -1) for body in KEPT_OUT]
    for comment_id, (body, moderated) in enumerate(bodies):
        votes = [vote for (_, voted_on), vote in last.items() if voted_on == comment_id]
        at = BEGIN - 86_400 + comment_id * 997
        yield (
            *(at, comment_id, authors[comment_id]),
            *(votes.count(1), votes.count(-1), moderated, body),
        )


def _participant_rows(
    groups: Sequence[int], authors: Sequence[int], last: dict[tuple[int, int], int]
) -> Iterable[Sequence[object]]:
    for voter, group in enumerate(groups):
        cells = [last.get((voter, comment_id), "") for comment_id in range(len(authors))]
        voted = sum(cell != "" for cell in cells)
        placed = group if voted >= PLACED_FROM else ""
        yield (voter, placed, authors.count(voter), voted, cells.count(1), cells.count(-1), *cells)


def _write(path: Path, head: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
