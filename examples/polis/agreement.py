"""How well an analysis matches that of Polis itself, where the export has Polis's groups and consensus.

Where the groups hardly match, the reasons are looked for in the export: Polis changed its method over the years, and an
export has the groups of the day on which it was made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score

from .certainty import Groups
from .export import Integers
from .groups import NO_GROUP, PLACED_FROM_VOTES, SEED, divisions, placed, silhouette
from .tables import CommentExtremity
from .votes import Numbers, VoteMatrix

MATCHES_FROM = 0.6  # adjusted Rand index
EARLY_SHARE = 0.05  # of Polis's participants with too few votes: so many cannot have come in another way
OVERLAP_BELOW = 0.1  # silhouette of Polis's groups on our map: their people do not stand apart on it
CONSENSUS_AT_LEAST = 3  # comments, to compare two orders


class Agreement(BaseModel):
    """How the groups of an analysis match those of the export."""

    polis_groups: int
    people: int  # whom both have put in a group
    rand_index: float  # adjusted: 1 the same groups, 0 no better than chance
    reasons: list[str]  # why it is low; empty if it is not


@dataclass(frozen=True, slots=True)
class Both:
    """The participants whom Polis and this analysis have put in a group."""

    rows: Integers
    ours: Integers
    theirs: Integers


def agreement(votes: VoteMatrix, places: Numbers, groups: Groups, polis: Mapping[int, int]) -> Agreement | None:
    """Return how the groups match; None if the export has none."""
    both = _both(votes, groups, polis)
    if not len(both.rows):
        return None
    index = float(adjusted_rand_score(both.theirs, both.ours))
    return Agreement(
        polis_groups=len(set(polis.values())),
        people=len(both.rows),
        rand_index=index,
        reasons=_reasons(votes, places, groups, polis, both) if index < MATCHES_FROM else [],
    )


def consensus_rank_correlation(rows: Sequence[CommentExtremity], polis: Mapping[int, float]) -> float | None:
    """Return Spearman's correlation of the consensus on comments with that of Polis; None if the export has none."""
    pairs = [(row.consensus, polis[row.comment_id]) for row in rows if row.comment_id in polis]
    if len(pairs) < CONSENSUS_AT_LEAST:
        return None
    ours, theirs = (_ranks(np.array(each)) for each in zip(*pairs, strict=True))
    return float(np.corrcoef(ours, theirs)[0, 1]) if ours.std() and theirs.std() else None


def _ranks(values: Numbers) -> Numbers:
    """Return the rank of each value; equal ones share the middle of their ranks."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    middle: Numbers = np.cumsum(counts) - (counts - 1) / 2
    return middle[places]


def _both(votes: VoteMatrix, groups: Groups, polis: Mapping[int, int]) -> Both:
    theirs = np.array([polis.get(number, NO_GROUP) for number in votes.participant_ids.tolist()], dtype=np.int64)
    rows = np.flatnonzero((theirs != NO_GROUP) & (groups.labels != NO_GROUP))
    return Both(rows, groups.labels[rows], theirs[rows])


def _reasons(votes: VoteMatrix, places: Numbers, groups: Groups, polis: Mapping[int, int], both: Both) -> list[str]:
    return [
        reason
        for reason in (
            _too_few_votes(votes, polis),
            _other_number(votes, groups, polis, both),
            _missing_as_pass(votes, polis),
            _overlap(places, both),
            "there are no clear groups to agree on" if groups.clarity == "none" else "",
        )
        if reason
    ] or ["Polis's groups carry over from update to update while a conversation grows, which an export does not show"]


def _too_few_votes(votes: VoteMatrix, polis: Mapping[int, int]) -> str:
    cast = dict(zip(votes.participant_ids.tolist(), votes.cast.tolist(), strict=True))
    few = sum(cast.get(participant, 0) < PLACED_FROM_VOTES for participant in polis)
    if few < EARLY_SHARE * len(polis):
        return ""
    return (
        f"{few:,} of the {len(polis):,} people in Polis's groups have fewer than {PLACED_FROM_VOTES} votes: they come"
        " from a version of Polis without that threshold"
    )


def _other_number(votes: VoteMatrix, groups: Groups, polis: Mapping[int, int], both: Both) -> str:
    count = len(set(polis.values()))
    if count == groups.count or count not in groups.others:
        return ""
    rows = placed(votes)
    labels = np.full(len(votes.participant_ids), NO_GROUP, dtype=np.int64)
    labels[rows] = groups.others[count].labels
    index = adjusted_rand_score(both.theirs, labels[both.rows])
    return f"Polis has {count} groups instead of {groups.count}: divided into {count}, the index is {index:.2f}"


def _missing_as_pass(votes: VoteMatrix, polis: Mapping[int, int]) -> str:
    """Try Polis's earlier method: a missing vote counts as a pass, and not as the average vote."""
    voted = votes.voted & ~votes.meta
    filled = np.where(voted, votes.cells, np.int8(0))
    centred = filled - filled.mean(axis=0)
    if min(centred.shape) < 2 or not centred.any():
        return ""
    directions = PCA(2, svd_solver="randomized", random_state=SEED, copy=False).fit(centred).components_.T
    seen = np.maximum(np.count_nonzero(voted, axis=1) + votes.left_out, 1)
    centred[~voted] = 0.0
    places = centred @ directions * np.sqrt(len(votes.comment_ids) / seen)[:, np.newaxis]
    rows = placed(votes)
    count = len(set(polis.values()))
    division = divisions(places[rows]).get(count)
    if division is None:
        return ""
    theirs = [polis.get(number, NO_GROUP) for number in votes.participant_ids[rows].tolist()]
    known = [place for place, group in enumerate(theirs) if group != NO_GROUP]
    index = adjusted_rand_score([theirs[place] for place in known], division.labels[known])
    if index < MATCHES_FROM:
        return ""
    return (
        "Polis's groups come from a version that counted a missing vote as a pass: in that way, the index is"
        f" {index:.2f}"
    )


def _overlap(places: Numbers, both: Both) -> str:
    """Say if the people of Polis's groups are not apart from each other on the map of this export's votes."""
    _, theirs = np.unique(both.theirs, return_inverse=True)
    if theirs.max() == 0:
        return "Polis has put all of them into one group"
    sample = np.random.default_rng(0).permutation(len(theirs))[:2_000]
    points, labels = places[both.rows][sample], np.unique(theirs[sample], return_inverse=True)[1]
    apart = silhouette(cdist(points, points), labels, np.ones(len(labels))) if labels.max() else 0.0
    if apart >= OVERLAP_BELOW:
        return ""
    return f"Polis's groups overlap on the map of these votes (silhouette {apart:.2f}): they come from an earlier state"
