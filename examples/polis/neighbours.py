"""The neighbour graph of the comments, with weights. UMAP projects it."""

from dataclasses import dataclass

import numpy as np
from sklearn.neighbors import NearestNeighbors

from .export import Integers
from .votes import Numbers

SEARCH_STEPS = 64  # steps of the bisection below


@dataclass(frozen=True, slots=True)
class Graph:
    """An undirected graph: entry n of each array is one edge, with source < target."""

    sources: Integers
    targets: Integers
    weights: Numbers  # 0 to 1
    distances: Numbers
    nearest: Integers  # per comment its nearest neighbour


def neighbour_graph(vectors: Numbers, n_neighbors: int, metric: str) -> Graph:
    """Return UMAP's fuzzy graph: weights decrease with distance, such that all comments have a similar total weight."""
    if len(vectors) < 2:
        empty = np.empty(0, dtype=np.int64)
        return Graph(empty, empty, np.empty(0), np.empty(0), np.zeros(len(vectors), dtype=np.int64))
    count = min(n_neighbors, len(vectors) - 1)
    search = NearestNeighbors(n_neighbors=count, metric=metric).fit(vectors)
    distances, neighbours = search.kneighbors()  # without an argument, no point is its own neighbour
    strengths = _strengths(distances, count)
    sources, targets = np.repeat(np.arange(len(vectors)), count), neighbours.ravel()
    size = len(vectors)
    # Both directions of a pair have one key; the union of two probabilities is a + b - ab.
    keys, places = np.unique(np.minimum(sources, targets) * size + np.maximum(sources, targets), return_inverse=True)
    absent = np.ones(len(keys))
    np.multiply.at(absent, places, 1 - strengths.ravel())
    lengths = np.zeros(len(keys))
    lengths[places] = distances.ravel()
    return Graph(keys // size, keys % size, 1 - absent, lengths, neighbours[:, 0].astype(np.int64))


def _strengths(distances: Numbers, count: int) -> Numbers:
    """Return exp(-(distance - nearest) / width), with a width such that a comment's weights sum to log2 of its
    neighbours."""
    wanted = np.log2(count) if count > 1 else 1.0
    beyond = np.maximum(distances - distances[:, :1], 0.0)
    low, high = np.zeros(len(distances)), np.full(len(distances), max(float(beyond.max()), 1e-9) * 1e3)
    for _ in range(SEARCH_STEPS):
        width = (low + high) / 2
        too_wide = np.exp(-beyond / width[:, np.newaxis]).sum(axis=1) > wanted
        high, low = np.where(too_wide, width, high), np.where(too_wide, low, width)
    strengths: Numbers = np.exp(-beyond / np.maximum((low + high) / 2, 1e-12)[:, np.newaxis])
    return strengths
