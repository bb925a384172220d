"""Converts votes to a matrix: a row per participant, a column per comment; 1, 0 or -1 for a vote."""

from collections.abc import Callable
from dataclasses import dataclass
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
    counted: int  # the votes that count: the last max_votes on accepted comments

    def count(self, value: int, axis: int) -> Integers:
        """Count these votes per participant (axis 1) or per comment (axis 0)."""
        counts: Integers = np.count_nonzero(self.cells == value, axis=axis).astype(np.int64)
        return counts

    @property
    def voted(self) -> NDArray[np.bool_]:
        voted: NDArray[np.bool_] = self.cells != NO_VOTE
        return voted


def matrix_of(export: Export, max_votes: int, batch_size: int, tell: Callable[[float], object]) -> VoteMatrix:
    """Return the matrix. If a participant voted several times on a comment, the last vote counts."""
    votes = export.votes
    let_in = np.array(sorted(comment.comment_id for comment in export.let_in), dtype=np.int64)
    kept = np.flatnonzero(np.isin(votes.comment_ids, let_in))
    # A stable sort: of two votes in the same second, the later line in the file counts.
    kept = kept[np.argsort(votes.timestamps[kept], kind="stable")][-max_votes:]
    if not len(kept):
        raise ExportError("votes.csv has no vote on a comment that was let in: there is nothing to analyse")
    participant_ids, rows = np.unique(votes.voter_ids[kept], return_inverse=True)
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
    return VoteMatrix(participant_ids, comment_ids, cells, len(kept))


def _put_last(cells: NDArray[np.int8], rows: Integers, columns: Integers, values: Integers) -> None:
    """Write only the last vote per cell: numpy does not define which of two values for one cell wins."""
    places = rows * cells.shape[1] + columns
    _, from_the_end = np.unique(places[::-1], return_index=True)
    last = len(places) - 1 - from_the_end
    cells[rows[last], columns[last]] = values[last]
