"""How many groups there are, and how certain that is.

An export is one sample of what people might have said, so the analysis is repeated on samples of the participants. A
larger number of groups is taken only if four of five samples separate better with it (Polis, which sees a conversation
grow, waits until it was better four times running). Groups that the samples do not find again are uncertain. The
analysis is also repeated on shuffled votes, in which there are no groups: if these separate as well, there are no clear
groups.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from sklearn.metrics import adjusted_rand_score

from .export import Integers
from .groups import NO_GROUP, SEED, Division, OpinionMap, divisions, opinion_map, placed
from .votes import NO_VOTE, Numbers, VoteMatrix

SAMPLES = 40
SHUFFLES = 20  # votes at random reach more than all of them in one case of twenty
SAMPLE_SHARE = 0.8  # of the participants
SAMPLE_MAX = 2_000  # participants: more make each sample slower, and hardly more certain
SAMPLED_FROM = 10  # participants: with fewer, a sample says nothing
BETTER_IN = 0.8  # of the samples, to take a larger number of groups
CLEAR_FROM, VAGUE_BELOW = 0.7, 0.4  # adjusted Rand index between the groups and those of the samples

Clarity = Literal["clear", "uncertain", "none"]


@dataclass(frozen=True, slots=True)
class Groups:
    labels: Integers  # per participant, NO_GROUP with too few votes; 0 is the largest group
    centres: Numbers
    silhouette: float | None  # None: one group
    stability: float | None  # how much of the groups the samples find again: 1 all, 0 no more than by chance
    by_chance: float | None  # the silhouette that shuffled votes reach
    clarity: Clarity
    others: Mapping[int, Division]  # by number of groups: the divisions that were considered

    @property
    def count(self) -> int:
        return len(self.centres)

    def sizes(self) -> list[int]:
        return [int(np.count_nonzero(self.labels == group)) for group in range(self.count)]


def find_groups(
    votes: VoteMatrix, opinions: OpinionMap, tell: Callable[[float], object] = lambda share: None
) -> Groups:
    """Return the groups. `tell` is called with the share of the work that is done."""
    rows = placed(votes)
    points = opinions.places[rows]
    found = divisions(points)
    if not found or max(each.silhouette for each in found.values()) <= 0:
        return _groups(votes, rows, points, np.zeros(len(rows), dtype=np.int64), None, None, None, "none", found)
    dice = np.random.default_rng(SEED)
    components = opinions.places.shape[1]
    samples: list[tuple[Integers, Mapping[int, Division]]] = []
    chance: list[Mapping[int, Division]] = []
    if len(rows) >= SAMPLED_FROM:
        for done in range(SAMPLES):
            samples.append(_sample(votes.of(rows), components, dice))
            tell((done + 1) / (SAMPLES + SHUFFLES))
        for done in range(SHUFFLES):
            chance.append(_shuffled(votes.of(rows), components, dice))
            tell((SAMPLES + done + 1) / (SAMPLES + SHUFFLES))
    count = _number(found, [sample for _, sample in samples])
    stability = _stability(found[count], count, samples)
    by_chance = _by_chance(count, chance)
    clarity = _clarity(found[count].silhouette, stability, by_chance)
    return _groups(
        *(votes, rows, points, found[count].labels, found[count].silhouette, stability, by_chance, clarity, found)
    )


def _groups(
    votes: VoteMatrix,
    rows: Integers,
    points: Numbers,
    found: Integers,
    silhouette: float | None,
    stability: float | None,
    by_chance: float | None,
    clarity: Clarity,
    others: Mapping[int, Division],
) -> Groups:
    labels = np.full(len(votes.participant_ids), NO_GROUP, dtype=np.int64)
    by_size = np.argsort(-np.bincount(found), kind="stable")
    labels[rows] = np.argsort(by_size)[found]
    centres = np.array([points[labels[rows] == group].mean(axis=0) for group in range(len(by_size))])
    return Groups(labels, centres, silhouette, stability, by_chance, clarity, others)


def _sample(votes: VoteMatrix, components: int, dice: np.random.Generator) -> tuple[Integers, Mapping[int, Division]]:
    """Return some of the participants, and the groups that are found among these alone."""
    size = min(SAMPLE_MAX, max(2, int(SAMPLE_SHARE * len(votes.participant_ids))))
    rows = np.sort(dice.choice(len(votes.participant_ids), size, replace=False))
    return rows, _divisions(votes.of(rows), components)


def _shuffled(votes: VoteMatrix, components: int, dice: np.random.Generator) -> Mapping[int, Division]:
    """Return the groups that are found if everyone votes on the same comments, and each comment gets the same votes,
    but from people at random."""
    size = min(SAMPLE_MAX, len(votes.participant_ids))
    sample = votes.of(np.sort(dice.choice(len(votes.participant_ids), size, replace=False)))
    cells = sample.cells.copy()
    for column in cells.T:
        seen = column != NO_VOTE
        column[seen] = dice.permutation(column[seen])
    return _divisions(replace(sample, cells=cells), components)


def _divisions(votes: VoteMatrix, components: int) -> Mapping[int, Division]:
    return divisions(opinion_map(votes, components, "randomized").places)


def _number(found: Mapping[int, Division], samples: list[Mapping[int, Division]]) -> int:
    """Return the number of groups: the smallest, unless a larger one is clearly better."""
    best = max(found, key=lambda count: found[count].silhouette)
    if not samples:
        return best
    chosen, *larger = sorted(found)
    for count in larger:
        both = [sample for sample in samples if count in sample and chosen in sample]
        better = [sample[count].silhouette > sample[chosen].silhouette for sample in both]
        if found[count].silhouette > found[chosen].silhouette and both and np.mean(better) >= BETTER_IN:
            chosen = count
    return chosen


def _stability(division: Division, count: int, samples: list[tuple[Integers, Mapping[int, Division]]]) -> float | None:
    likeness = [
        adjusted_rand_score(division.labels[rows], sample[count].labels) for rows, sample in samples if count in sample
    ]
    return float(np.mean(likeness)) if likeness else None


def _by_chance(count: int, shuffles: list[Mapping[int, Division]]) -> float | None:
    reached = [each[count].silhouette for each in shuffles if count in each]
    return max(reached) if reached else None


def _clarity(silhouette: float, stability: float | None, by_chance: float | None) -> Clarity:
    if stability is None:
        return "uncertain"
    if stability < VAGUE_BELOW or (by_chance is not None and silhouette <= by_chance):
        return "none"
    return "clear" if stability >= CLEAR_FROM else "uncertain"
