"""Converts votes to a matrix: a row per participant, a column per comment; 1, 0 or -1 for a vote.

Rows are in the order in which participants first voted, which is the order that Polis's clustering starts from.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .export import Export, ExportError, Integers

Numbers: TypeAlias = NDArray[np.float64]

NO_VOTE = -2  # the value for no vote: a matrix of bytes has no NaN
CELLS_MAX = 250_000_000  # a byte each here, eight in the projection: 2 GB


@dataclass(frozen=True, slots=True)
class VoteMatrix:
    participant_ids: Integers
    comment_ids: Integers
    cells: NDArray[np.int8]
    meta: NDArray[np.bool_]  # per comment: it is about the participants, and says nothing about their opinions
    left_out: int  # how many comments had votes before moderators removed them: these have no column
    cast: Integers  # per participant: the comments that they voted on, including those that were left out
    counted: int  # the votes that count: the last max_votes on accepted comments

    def count(self, value: int, axis: int) -> Integers:
        """Count these votes per participant (axis 1) or per comment (axis 0)."""
        counts: Integers = np.count_nonzero(self.cells == value, axis=axis).astype(np.int64)
        return counts

    @property
    def voted(self) -> NDArray[np.bool_]:
        voted: NDArray[np.bool_] = self.cells != NO_VOTE
        return voted

    def of(self, rows: Integers) -> "VoteMatrix":
        """Return the votes of these participants."""
        return replace(self, participant_ids=self.participant_ids[rows], cells=self.cells[rows], cast=self.cast[rows])


def matrix_of(export: Export, max_votes: int, batch_size: int, tell: Callable[[float], object]) -> VoteMatrix:
    """Return the matrix. If a participant voted several times on a comment, the last vote counts."""
    votes = export.votes
    let_in = np.array(sorted(comment.comment_id for comment in export.let_in), dtype=np.int64)
    # A stable sort: of two votes in the same second, the later line in the file counts.
    in_time = np.argsort(votes.timestamps, kind="stable")
    accepted = np.isin(votes.comment_ids[in_time], let_in)
    kept = in_time[accepted][-max_votes:]
    if not len(kept):
        raise ExportError("votes.csv has no vote on a comment that was let in: there is nothing to analyse")
    participant_ids, rows = _by_arrival(votes.voter_ids[kept])
    comment_ids, columns = np.unique(votes.comment_ids[kept], return_inverse=True)
    if len(participant_ids) * len(comment_ids) > CELLS_MAX:
        raise ExportError(
            f"{len(participant_ids):,} participants times {len(comment_ids):,} comments are more than"
            f" {CELLS_MAX:,} cells: use a smaller max_votes"
        )
    cells = np.full((len(participant_ids), len(comment_ids)), NO_VOTE, dtype=np.int8)
    for start in range(0, len(kept), batch_size):
        batch = slice(start, start + batch_size)
        _put_last(cells, rows[batch], columns[batch], votes.values[kept[batch]])
        tell(min(1.0, (start + batch_size) / len(kept)))
    removed = in_time[~accepted]
    meta = np.array([export.comments[number].is_meta for number in comment_ids.tolist()], dtype=np.bool_)
    return VoteMatrix(
        participant_ids,
        comment_ids,
        cells,
        meta,
        len(np.unique(votes.comment_ids[removed])),
        np.count_nonzero(cells != NO_VOTE, axis=1) + _on_removed(export, removed, participant_ids),
        len(kept),
    )


def _by_arrival(voter_ids: Integers) -> tuple[Integers, Integers]:
    """Return the participants in the order of their first votes, and the row of each vote."""
    sorted_ids, first, places = np.unique(voter_ids, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return sorted_ids[order], rank[places]


def _on_removed(export: Export, removed: Integers, participant_ids: Integers) -> Integers:
    """Return on how many removed comments each participant voted."""
    votes = export.votes
    pairs = np.unique(np.stack([votes.voter_ids[removed], votes.comment_ids[removed]], axis=1), axis=0)
    voters, counts = np.unique(pairs[:, 0], return_counts=True)
    found = dict(zip(voters.tolist(), counts.tolist(), strict=True))
    return np.array([found.get(participant, 0) for participant in participant_ids.tolist()], dtype=np.int64)


def _put_last(cells: NDArray[np.int8], rows: Integers, columns: Integers, values: Integers) -> None:
    """Write only the last vote per cell: numpy does not define which of two values for one cell wins."""
    places = rows * cells.shape[1] + columns
    _, from_the_end = np.unique(places[::-1], return_index=True)
    last = len(places) - 1 - from_the_end
    cells[rows[last], columns[last]] = values[last]
