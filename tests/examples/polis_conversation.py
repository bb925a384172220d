"""Small conversations whose answer is known, as exports in a folder."""

import csv
from collections.abc import Sequence
from pathlib import Path

from polis.export import PARTICIPANT_COLUMNS

COMMENT_COLUMNS = [
    "timestamp",
    "datetime",
    "comment-id",
    "author-id",
    "agrees",
    "disagrees",
    "moderated",
    "comment-body",
]
VOTE_COLUMNS = ["timestamp", "datetime", "comment-id", "voter-id", "vote"]
AT = 1_700_000_000
BUSES = (
    "More buses in the evening",
    "Buses should run on Sundays",
    "A bus ticket for a day",
    "Bus stops need a roof",
)
TREES = (
    "Plant trees in the park",
    "More trees by the street",
    "Old trees need water",
    "Trees give shade in the park",
)
FOOD = ("The market sells good bread", "Bread and cheese at the market", "A second market for cheese", "Fresh bread")


def write_conversation(
    folder: Path,
    bodies: Sequence[str],
    votes: Sequence[tuple[int, int, int]],
    *,
    moderated: Sequence[int] = (),
    groups: dict[int, int] | None = None,
) -> Path:
    """Votes are (voter, comment, vote) in the order of time, a second apart."""
    folder.mkdir(parents=True, exist_ok=True)
    comments = [
        (AT, "then", number, 0, 0, 0, -1 if number in moderated else 1, body) for number, body in enumerate(bodies)
    ]
    write_csv(folder / "comments.csv", COMMENT_COLUMNS, comments)
    cast = [(AT + place, "then", comment, voter, vote) for place, (voter, comment, vote) in enumerate(votes)]
    write_csv(folder / "votes.csv", VOTE_COLUMNS, cast)
    voters = sorted({voter for voter, _, _ in votes})
    rows = [(voter, (groups or {}).get(voter, ""), 0, 1, 1, 0) for voter in voters]
    write_csv(folder / "participants-votes.csv", PARTICIPANT_COLUMNS, rows)
    return folder


def write_csv(path: Path, head: Sequence[object], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([head, *rows])


def two_groups(folder: Path) -> Path:
    """Twelve comments, twenty voters. Half of the voters like buses and no trees, half the opposite; all like food."""
    votes = []
    for voter in range(20):
        for comment in range(12):
            likes = comment >= 8 or (comment < 4) == (voter < 10)
            votes.append((voter, comment, 1 if likes else -1))
    return write_conversation(folder, (*BUSES, *TREES, *FOOD), votes)
