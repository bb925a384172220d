"""Clusters of comments in layers: one tree of mergers, cut at several heights, so that the layers nest."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from .export import Integers
from .votes import Numbers

COMMENTS_PER_CLUSTER = 5  # about how many on the finest layer
CLUSTERS_MAX = 200  # no one reads more topics than that
COARSE = range(3, 11)  # topics of the coarsest layer: few enough to be seen at a glance


@dataclass(frozen=True, slots=True)
class Layer:
    labels: Integers  # per comment; 0 is the largest cluster
    centres: Numbers

    @property
    def count(self) -> int:
        return len(self.centres)

    def members(self, cluster: int, distances: Numbers) -> list[int]:
        """Return the positions of its comments, nearest to its centre first."""
        own = np.flatnonzero(self.labels == cluster)
        nearest_first: list[int] = own[np.argsort(distances[own], kind="stable")].tolist()
        return nearest_first


def layers_of(places: Numbers) -> list[Layer]:
    """Return the layers, finest first. At least one, which may have a single cluster."""
    if len(places) < 2 * COMMENTS_PER_CLUSTER:
        return [_layer(places, np.ones(len(places), dtype=np.int64))]
    tree = linkage(places, method="ward")
    found: list[Layer] = []
    for count in _counts(len(places)):
        layer = _layer(places, fcluster(tree, count, criterion="maxclust"))
        if not found or layer.count < found[-1].count:  # with equal heights, two cuts can be the same
            found.append(layer)
    return found


def _counts(comments: int) -> tuple[int, int, int]:
    """Return the number of clusters of each layer: from many to few in equal steps."""
    finest = min(CLUSTERS_MAX, round(comments / COMMENTS_PER_CLUSTER))
    coarsest = min(finest, max(COARSE[0], min(COARSE[-1], round(comments**0.35))))
    return finest, round((finest * coarsest) ** 0.5), coarsest


def _layer(places: Numbers, labels: Integers) -> Layer:
    known, numbered = np.unique(labels, return_inverse=True)
    by_size = np.argsort(-np.bincount(numbered), kind="stable")
    sorted_labels = np.argsort(by_size)[numbered].astype(np.int64)
    centres = np.array([places[sorted_labels == cluster].mean(axis=0) for cluster in range(len(known))])
    return Layer(sorted_labels, centres)


def distances_and_confidence(places: Numbers, layer: Layer) -> tuple[Numbers, Numbers]:
    """Return, per comment, its distance to its cluster's centre, and how much nearer that is than the next one."""
    to_all = np.linalg.norm(places[:, np.newaxis] - layer.centres[np.newaxis], axis=2)
    own = to_all[np.arange(len(places)), layer.labels]
    if layer.count == 1:
        return own, np.ones(len(places))
    to_all[np.arange(len(places)), layer.labels] = np.inf
    other = to_all.min(axis=1)
    confidence: Numbers = np.divide(other, own + other, out=np.ones(len(places)), where=(own + other) > 0)
    return own, confidence


def cluster_key(layer: int, cluster: int) -> str:
    return f"layer{layer}_{cluster}"
