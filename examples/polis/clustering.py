"""Clusters of comments in layers: one tree of mergers, cut at several heights, so that the layers nest."""

from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage

from .export import Integers
from .votes import Numbers

COMMENTS_PER_CLUSTER = (5, 12, 28)  # about how many, from the finest layer to the coarsest
CLUSTERS_MAX = 200  # more topics than that nobody reads


@dataclass(frozen=True, slots=True)
class Layer:
    labels: Integers  # per comment; 0 is the largest cluster
    centres: Numbers

    @property
    def count(self) -> int:
        return len(self.centres)

    def members(self, cluster: int, distances: Numbers) -> list[int]:
        """The places of its comments, nearest to its centre first."""
        own = np.flatnonzero(self.labels == cluster)
        nearest_first: list[int] = own[np.argsort(distances[own], kind="stable")].tolist()
        return nearest_first


def layers_of(places: Numbers) -> list[Layer]:
    """The finest first. At least one, which may have a single cluster."""
    if len(places) < 2 * COMMENTS_PER_CLUSTER[0]:
        return [_layer(places, np.ones(len(places), dtype=np.int64))]
    tree = linkage(places, method="ward")
    counts = dict.fromkeys(min(CLUSTERS_MAX, max(2, round(len(places) / each))) for each in COMMENTS_PER_CLUSTER)
    found: list[Layer] = []
    for count in counts:
        layer = _layer(places, fcluster(tree, count, criterion="maxclust"))
        if not found or layer.count < found[-1].count:  # equal heights can make two cuts one
            found.append(layer)
    return found


def _layer(places: Numbers, labels: Integers) -> Layer:
    known, numbered = np.unique(labels, return_inverse=True)
    by_size = np.argsort(-np.bincount(numbered), kind="stable")
    sorted_labels = np.argsort(by_size)[numbered].astype(np.int64)
    centres = np.array([places[sorted_labels == cluster].mean(axis=0) for cluster in range(len(known))])
    return Layer(sorted_labels, centres)


def distances_and_confidence(places: Numbers, layer: Layer) -> tuple[Numbers, Numbers]:
    """Per comment: how far from its cluster's centre, and how much nearer to that than to the next one."""
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
