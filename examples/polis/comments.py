"""How the groups voted on each comment: consensus of all, division between them, and which group it represents."""

from typing import Literal

import numpy as np

from .certainty import Groups
from .export import Export, Integers
from .groups import OpinionMap
from .tables import CommentExtremity, GroupVotes
from .votes import Numbers, VoteMatrix

AGREED_FROM = 0.6  # in every group: then it is consensus
APART_FROM = 0.5  # between two groups: then it is divisive
SURE_FROM = 1.2816  # z of 90 %: a difference that chance seldom makes
REPRESENTATIVE_MAX = 5  # comments per group


def comment_rows(
    conversation_id: str, export: Export, votes: VoteMatrix, opinions: OpinionMap, groups: Groups
) -> list[CommentExtremity]:
    # Weighted by explained variance: in a direction that explains nothing, loadings are noise.
    lengths = np.linalg.norm(opinions.loadings * np.sqrt(opinions.explained), axis=1)
    extremity = lengths / (lengths.max() or 1.0)
    totals = [votes.count(value, axis=0) for value in (1, -1, 0)]
    tallies = _tallies(votes, groups.labels, groups.count)
    speaks_for = _representatives(tallies)
    rows = []
    for place, comment_id in enumerate(votes.comment_ids.tolist()):
        agrees, disagrees, passes = (int(total[place]) for total in totals)
        by_group = {str(group): _group_votes(tallies[group, :, place]) for group in range(groups.count)}
        for_it = [each.agree_share for each in by_group.values()] or [_pulled(agrees, agrees + disagrees + passes)]
        against = [_pulled(each.disagrees, each.agrees + each.disagrees + each.passes) for each in by_group.values()]
        rows.append(
            CommentExtremity(
                comment_id=comment_id,
                conversation_id=conversation_id,
                body=export.comments[comment_id].body,
                agrees=agrees,
                disagrees=disagrees,
                passes=passes,
                extremity=float(extremity[place]),
                components=opinions.loadings[place].tolist(),
                group_votes=by_group,
                consensus=float(np.prod(for_it) ** (1 / len(for_it))),
                divisiveness=max(for_it) - min(for_it),
                kind=_kind(for_it, against),
                is_meta=export.comments[comment_id].is_meta,
                representative_of=[group for group in range(groups.count) if place in speaks_for[group]],
            )
        )
    return rows


def rows_of_comments_alone(conversation_id: str, export: Export) -> list[CommentExtremity]:
    """Return the rows of an export without votes.csv: only its counts are known."""
    return [
        CommentExtremity(
            comment_id=each.comment_id,
            conversation_id=conversation_id,
            body=each.body,
            agrees=each.agrees,
            disagrees=each.disagrees,
            passes=0,
            extremity=0.0,
            components=[],
            group_votes={},
            consensus=_pulled(each.agrees, each.agrees + each.disagrees),
            divisiveness=0.0,
            kind=_kind([_pulled(each.agrees, each.agrees + each.disagrees)], []),
            is_meta=each.is_meta,
            representative_of=[],
        )
        for each in sorted(export.let_in, key=lambda comment: comment.comment_id)
        if each.agrees + each.disagrees
    ]


def _tallies(votes: VoteMatrix, labels: Integers, groups: int) -> Integers:
    """groups × (agrees, disagrees, passes) × comments."""
    tallies = np.zeros((groups, 3, len(votes.comment_ids)), dtype=np.int64)
    for group in range(groups):
        cells = votes.cells[labels == group]
        for place, value in enumerate((1, -1, 0)):
            tallies[group, place] = np.count_nonzero(cells == value, axis=0)
    return tallies


def _group_votes(tally: Integers) -> GroupVotes:
    agrees, disagrees, passes = (int(count) for count in tally)
    share = _pulled(agrees, agrees + disagrees + passes)
    return GroupVotes(agrees=agrees, disagrees=disagrees, passes=passes, agree_share=share)


def _pulled(count: int, seen: int) -> float:
    """Return a share that is a half without votes, and near a half with few."""
    return (count + 1) / (seen + 2)


def _kind(for_it: list[float], against: list[float]) -> Literal["consensus", "divisive", "mixed"]:
    if min(for_it) >= AGREED_FROM or (against and min(against) >= AGREED_FROM):
        return "consensus"
    return "divisive" if max(for_it) - min(for_it) >= APART_FROM else "mixed"


def _representatives(tallies: Integers) -> list[set[int]]:
    """Return, per group, the comments that it agrees with significantly, and significantly more than everyone else."""
    chosen: list[set[int]] = []
    everybody = tallies.sum(axis=0)
    for own in tallies:
        others = everybody - own
        seen, seen_by_others = own.sum(axis=0), others.sum(axis=0)
        share, share_of_others = (own[0] + 1) / (seen + 2), (others[0] + 1) / (seen_by_others + 2)
        agrees = 2 * np.sqrt(seen + 1) * (share - 0.5)
        pooled = (own[0] + others[0] + 2) / (seen + seen_by_others + 4)
        spread = np.sqrt(pooled * (1 - pooled) * (1 / (seen + 2) + 1 / (seen_by_others + 2)))
        lead: Numbers = (share - share_of_others) / spread
        telling = np.flatnonzero((agrees > SURE_FROM) & (lead > SURE_FROM))
        chosen.append(set(telling[np.argsort(-lead[telling], kind="stable")][:REPRESENTATIVE_MAX].tolist()))
    return chosen
