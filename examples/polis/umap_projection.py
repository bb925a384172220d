"""The comment map: comments with similar meaning are close to one another.

It uses umap-learn if that is installed. It takes half a minute to load, so it is not required: without it, the same is
computed here with numpy, which is fast enough for a few thousand comments.
"""

from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
from scipy.optimize import curve_fit
from sklearn.decomposition import PCA

from .neighbours import Graph
from .votes import Numbers

BY_LIBRARY, BY_NUMPY = "umap-learn", "umap (numpy)"
SEED = 0
EPOCHS = 400
EPOCHS_BETWEEN_REPORTS = 10
PARTS = 4  # parts of an epoch: moving all points at once overshoots
REPULSIONS = 5  # random points that each pair is pushed away from, per step
STEP_MAX = 4.0
SPAN = 10.0  # extent of the map at the start


def project(
    vectors: Numbers,
    graph: Graph,
    n_components: int,
    n_neighbors: int,
    min_dist: float,
    metric: str,
    tell: Callable[[float], object] = lambda share: None,
) -> tuple[Numbers, str]:
    """Return a position per comment, and the name of the method. `tell` is called with the share that is done."""
    if len(vectors) <= n_components + 2:  # too few for a graph to have a shape
        return _in_a_row(len(vectors), n_components), BY_NUMPY
    if find_spec("umap") is not None:
        return _by_library(vectors, n_components, n_neighbors, min_dist, metric), BY_LIBRARY
    return _by_numpy(vectors, graph, n_components, min_dist, tell), BY_NUMPY


def _in_a_row(count: int, n_components: int) -> Numbers:
    places = np.zeros((count, n_components))
    places[:, 0] = np.arange(count)
    return places


def _by_library(vectors: Numbers, n_components: int, n_neighbors: int, min_dist: float, metric: str) -> Numbers:
    import umap

    reducer = umap.UMAP(
        n_neighbors=min(n_neighbors, len(vectors) - 1),
        n_components=n_components,
        min_dist=min_dist,
        metric=metric,
        random_state=SEED,
        n_jobs=1,
    )
    return np.asarray(reducer.fit_transform(vectors), dtype=np.float64)


def _by_numpy(
    vectors: Numbers, graph: Graph, n_components: int, min_dist: float, tell: Callable[[float], object]
) -> Numbers:
    """Move points in decreasing steps: neighbours attract, others repel."""
    dice = np.random.default_rng(SEED)
    places = _start(vectors, n_components)
    a, b = _curve(min_dist)
    for epoch in range(EPOCHS):
        rate = 1.0 - epoch / EPOCHS
        if epoch % EPOCHS_BETWEEN_REPORTS == 0:
            tell(epoch / EPOCHS)
        # A weak edge is sampled rarely, a strong one in every epoch.
        drawn = np.flatnonzero(dice.random(len(graph.weights)) < graph.weights)
        for part in np.array_split(dice.permutation(drawn), PARTS):
            _attract(places, graph, part, a, b, rate)
            _repel(places, graph, part, a, b, rate, dice)
    centred: Numbers = places - places.mean(axis=0)
    return centred


def _start(vectors: Numbers, n_components: int) -> Numbers:
    """Return start positions from the first two principal components."""
    places = np.zeros((len(vectors), n_components))
    possible = min(n_components, *vectors.shape)
    places[:, :possible] = PCA(possible, random_state=SEED).fit_transform(vectors)
    places *= SPAN / max(float(np.abs(places).max()), 1e-12)
    # Equal vectors would stay at one position forever.
    started: Numbers = places + np.random.default_rng(SEED).normal(scale=1e-3, size=places.shape)
    return started


def _curve(min_dist: float) -> tuple[float, float]:
    """Fit 1 / (1 + a·d^(2b)): 1 up to min_dist, and decreasing from there."""
    distances = np.linspace(0, 3, 300)
    wanted = np.where(distances < min_dist, 1.0, np.exp(-(distances - min_dist)))
    (a, b), _ = curve_fit(lambda d, a, b: 1 / (1 + a * d ** (2 * b)), distances, wanted, p0=(1.5, 0.9))
    return float(a), float(b)


def _attract(places: Numbers, graph: Graph, edges: Numbers, a: float, b: float, rate: float) -> None:
    sources, targets = graph.sources[edges], graph.targets[edges]
    between = places[sources] - places[targets]
    squared = np.maximum((between**2).sum(axis=1), 1e-9)
    pull = -2 * a * b * squared ** (b - 1) / (1 + a * squared**b)
    step = rate * np.clip(pull[:, np.newaxis] * between, -STEP_MAX, STEP_MAX)
    np.add.at(places, sources, step)
    np.add.at(places, targets, -step)


def _repel(
    places: Numbers, graph: Graph, edges: Numbers, a: float, b: float, rate: float, dice: np.random.Generator
) -> None:
    ends = np.tile(np.r_[graph.sources[edges], graph.targets[edges]], REPULSIONS)
    strangers = dice.integers(0, len(places), size=len(ends))
    between = places[ends] - places[strangers]
    squared = (between**2).sum(axis=1)
    push = np.where(ends == strangers, 0.0, 2 * b / ((0.001 + squared) * (1 + a * squared**b)))
    np.add.at(places, ends, rate * np.clip(push[:, np.newaxis] * between, -STEP_MAX, STEP_MAX))
