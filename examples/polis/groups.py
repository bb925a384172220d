"""The opinion map and its groups, by Polis's published method.

PCA of the votes; participants are pushed out from the middle by how few comments they voted on; those with at least
seven votes are clustered by k-means, first into a hundred base clusters, then these, weighted by their sizes, into two
to five groups. Polis takes the number of groups with the best silhouette; certainty.py decides that here.

k-means begins from the first distinct positions, in the order in which participants came: the same votes give the same
groups, and on an export of Polis mostly the groups that Polis found.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from sklearn.decomposition import PCA

from .export import Integers
from .votes import Numbers, VoteMatrix

GROUPS_MAX = 5
BASE_CLUSTERS = 100
BASE_STEPS, GROUP_STEPS = 100, 20  # of k-means, at most
BASE_CLUSTERS_PER_GROUP = 12  # beyond two groups: 12 base clusters allow a third, 24 a fourth
SETTLED = 0.01  # k-means ends when no centre moves further
PLACED_FROM_VOTES = 7  # participants with fewer votes are too uncertain to be put in a group
PLACED_AT_LEAST = 15  # participants: with fewer, those who voted most are added
SEED = 0  # the same votes give the same map
NO_GROUP = -1


@dataclass(frozen=True, slots=True)
class OpinionMap:
    places: Numbers  # participants × components
    loadings: Numbers  # comments × components: in which direction agreement with it moves a participant
    explained: Numbers  # share of the variance per component
    solver: str  # what was used


@dataclass(frozen=True, slots=True)
class Division:
    """The participants in a certain number of groups."""

    labels: Integers  # per placed participant
    silhouette: float  # 1: every group is far from the others; 0: groups touch everywhere


def opinion_map(votes: VoteMatrix, n_components: int, method: str) -> OpinionMap:
    """Compute the PCA. A missing vote counts as the average vote on that comment, and a comment that is about the
    participants as if all had passed."""
    voted = votes.voted
    seen = np.count_nonzero(voted, axis=0)
    means = np.where(voted, votes.cells, 0).sum(axis=0) / np.maximum(seen, 1)
    centred = votes.cells - means
    centred[~voted | votes.meta] = 0.0  # in place: in a large conversation each copy is hundreds of megabytes
    possible = min(n_components, *centred.shape)
    # arpack finds fewer components than there are rows or columns; for tiny matrices `full` finds them all.
    solver = "full" if method == "arpack" and possible >= min(centred.shape) else method
    places, loadings = np.zeros((len(centred), n_components)), np.zeros((centred.shape[1], n_components))
    explained = np.zeros(n_components)
    if centred.any():  # if all vote the same, there is no direction
        pca = PCA(possible, svd_solver=solver, random_state=SEED, copy=False)
        places[:, :possible] = pca.fit_transform(centred)
        loadings[:, :possible] = pca.components_.T
        explained[:possible] = pca.explained_variance_ratio_
    places *= _push(votes)[:, np.newaxis]
    return OpinionMap(places, loadings, explained, solver)


def _push(votes: VoteMatrix) -> Numbers:
    """Return how far to push each participant out: every missing vote pulls towards the middle.

    In Polis a comment that was removed, or is about the participants, stays in the matrix as one on which all passed.
    """
    passed = votes.left_out + np.count_nonzero(votes.meta)
    seen = np.count_nonzero(votes.voted & ~votes.meta, axis=1) + passed
    push: Numbers = np.sqrt((len(votes.comment_ids) + votes.left_out) / np.maximum(seen, 1))
    return push


def placed(votes: VoteMatrix) -> Integers:
    """Return the rows of the participants who voted often enough to be put in a group."""
    enough = votes.cast >= min(PLACED_FROM_VOTES, len(votes.comment_ids) + votes.left_out)
    lacking = PLACED_AT_LEAST - np.count_nonzero(enough)
    if lacking > 0:
        others = np.flatnonzero(~enough)
        enough[others[np.argsort(-votes.cast[others], kind="stable")][:lacking]] = True
    return np.flatnonzero(enough)


def divisions(points: Numbers) -> Mapping[int, Division]:
    """Return the divisions of these participants into two to five groups; none if they are all alike."""
    if not len(points):
        return {}
    base, centres = k_means(points, np.ones(len(points)), BASE_CLUSTERS, BASE_STEPS)
    weights = np.bincount(base).astype(np.float64)
    apart = cdist(centres, centres)
    found = {}
    for count in range(2, min(GROUPS_MAX, 2 + len(centres) // BASE_CLUSTERS_PER_GROUP, len(centres)) + 1):
        groups, _ = k_means(centres, weights, count, GROUP_STEPS)
        if groups.max() + 1 == count:
            found[count] = Division(groups[base], silhouette(apart, groups, weights))
    return found


def k_means(points: Numbers, weights: Numbers, count: int, steps: int) -> tuple[Integers, Numbers]:
    """Return the cluster of each point and the centres. Clusters that lose all their points vanish."""
    _, first = np.unique(points.round(9), axis=0, return_index=True)  # rounded: equal votes have equal positions
    centres = points[np.sort(first)[:count]]
    labels = np.zeros(len(points), dtype=np.int64)
    for _ in range(steps + 1):
        _, labels = np.unique(cdist(points, centres).argmin(axis=1), return_inverse=True)
        sums = np.array([np.bincount(labels, weights * axis) for axis in points.T])
        moved = (sums / np.bincount(labels, weights)).T
        settled = len(moved) == len(centres) and _shift(moved, centres) < SETTLED
        centres = moved
        if settled:
            break
    return labels.astype(np.int64), centres


def _shift(moved: Numbers, centres: Numbers) -> float:
    """Return how far the centre that moved most has moved; which one became which does not matter."""
    ordered = [each[np.lexsort(each.T[::-1])] for each in (moved, centres)]
    return float(np.linalg.norm(ordered[0] - ordered[1], axis=1).max())


def silhouette(apart: Numbers, labels: Integers, weights: Numbers) -> float:
    """Return the mean over all points of how much nearer their own group is than the next one. A point that is one
    participant alone in a group counts 0."""
    sizes = np.bincount(labels)
    people = np.bincount(labels, weights)[labels]
    everyone = np.arange(len(labels))
    means = apart @ np.eye(len(sizes))[labels]
    own = means[everyone, labels] / np.maximum(sizes[labels] - 1, 1)
    means /= sizes
    means[everyone, labels] = np.inf
    other = means.min(axis=1)
    larger = np.maximum(np.maximum(own, other), 1e-12)
    return float(np.where(people > 1, (other - own) / larger, 0.0).mean())
