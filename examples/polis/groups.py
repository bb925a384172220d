"""The opinion map: participants who vote alike are close to each other, and clusters of them are groups."""

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score, silhouette_score

from .export import Integers
from .votes import NO_VOTE, Numbers, VoteMatrix

GROUPS_MAX = 5
PLACED_FROM_VOTES = 7  # participants with fewer votes are too uncertain to be put in a group
SILHOUETTE_SAMPLE = 5_000  # compares all pairs
SEED = 0  # the same votes give the same map
NO_GROUP = -1


@dataclass(frozen=True, slots=True)
class OpinionMap:
    places: Numbers  # participants × components
    loadings: Numbers  # comments × components: in which direction agreement with it moves a participant
    explained: Numbers  # share of the variance per component
    solver: str  # what was used


@dataclass(frozen=True, slots=True)
class Groups:
    labels: Integers  # per participant, NO_GROUP with too few votes; 0 is the largest group
    centres: Numbers

    @property
    def count(self) -> int:
        return len(self.centres)

    def sizes(self) -> list[int]:
        return [int(np.count_nonzero(self.labels == group)) for group in range(self.count)]


def opinion_map(votes: VoteMatrix, n_components: int, method: str) -> OpinionMap:
    """Compute the PCA; a missing vote counts as the average vote on that comment."""
    cells = votes.cells.astype(np.float64)
    cells[votes.cells == NO_VOTE] = np.nan
    centred = np.nan_to_num(cells - np.nanmean(cells, axis=0))
    possible = min(n_components, *centred.shape)
    # arpack finds fewer components than there are rows or columns; for tiny matrices `full` finds them all.
    solver = "full" if method == "arpack" and possible >= min(centred.shape) else method
    places, loadings = np.zeros((len(cells), n_components)), np.zeros((cells.shape[1], n_components))
    explained = np.zeros(n_components)
    if centred.any():  # if all vote the same, there is no direction
        pca = PCA(possible, svd_solver=solver, random_state=SEED)
        places[:, :possible] = pca.fit_transform(centred)
        loadings[:, :possible] = pca.components_.T
        explained[:possible] = pca.explained_variance_ratio_
    # Every missing vote pulls a participant to the middle; this compensates for it.
    seen = np.count_nonzero(votes.voted, axis=1)
    places *= np.sqrt(cells.shape[1] / seen)[:, np.newaxis]
    return OpinionMap(places, loadings, explained, solver)


def find_groups(places: Numbers, votes_cast: Integers, comments: int) -> Groups:
    """Run k-means on the map, with the number of groups that separates best."""
    placed = votes_cast >= min(PLACED_FROM_VOTES, comments)
    points = places[placed]
    labels = np.full(len(places), NO_GROUP, dtype=np.int64)
    if not len(points):
        return Groups(labels, np.empty((0, places.shape[1])))
    found = np.zeros(len(points), dtype=np.int64)
    best = -1.0
    distinct = len(np.unique(points.round(9), axis=0))  # rounded: people who vote the same have the same position
    for count in range(2, min(GROUPS_MAX, distinct, len(points) - 1) + 1):
        tried = KMeans(count, n_init=10, random_state=SEED).fit_predict(points)
        score = silhouette_score(points, tried, sample_size=min(len(points), SILHOUETTE_SAMPLE), random_state=SEED)
        if score > best:
            best, found = float(score), tried
    by_size = np.argsort(-np.bincount(found), kind="stable")
    labels[placed] = np.argsort(by_size)[found]
    centres = np.array([points[labels[placed] == group].mean(axis=0) for group in range(len(by_size))])
    return Groups(labels, centres)


def likeness(groups: Groups, participant_ids: Integers, others: dict[int, int]) -> float | None:
    """Return how well the groups match those of Polis: 1 the same, 0 no better than chance. None: Polis has none."""
    both = [
        (label, others[participant])
        for participant, label in zip(participant_ids.tolist(), groups.labels.tolist(), strict=True)
        if label != NO_GROUP and participant in others
    ]
    if not both:
        return None
    ours, theirs = zip(*both, strict=True)
    return float(adjusted_rand_score(ours, theirs))
