"""Creates the rows of the UMAP stage from positions and layers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .clustering import Layer, cluster_key, distances_and_confidence
from .export import Comment
from .keywords import keywords_of
from .language import Vocabulary
from .neighbours import Graph
from .tables import ClusterAssignment, ClusterKeywords, GraphEdge
from .votes import Numbers

SAMPLES_MAX = 10  # comments that represent a cluster


@dataclass(frozen=True, slots=True)
class Measured:
    """A layer, with measurements of each comment."""

    layer: Layer
    distances: Numbers
    confidence: Numbers


def measured(places: Numbers, layers: Sequence[Layer]) -> list[Measured]:
    return [Measured(layer, *distances_and_confidence(places, layer)) for layer in layers]


def assignment_rows(
    conversation_id: str, comments: Sequence[Comment], layers: Sequence[Measured]
) -> list[ClusterAssignment]:
    return [
        ClusterAssignment(
            comment_id=comment.comment_id,
            conversation_id=conversation_id,
            clusters=[int(each.layer.labels[place]) for each in layers],
            distance_to_centroid=[float(each.distances[place]) for each in layers],
            confidence=[float(each.confidence[place]) for each in layers],
        )
        for place, comment in enumerate(comments)
    ]


def cluster_rows(
    conversation_id: str, comments: Sequence[Comment], layers: Sequence[Measured], vocabulary: Vocabulary
) -> list[ClusterKeywords]:
    rows = []
    for number, each in enumerate(layers):
        words = keywords_of(vocabulary, each.layer, each.confidence)
        for cluster in range(each.layer.count):
            members = each.layer.members(cluster, each.distances)
            x, y = (float(value) for value in each.layer.centres[cluster][:2])
            rows.append(
                ClusterKeywords(
                    cluster_key=cluster_key(number, cluster),
                    conversation_id=conversation_id,
                    layer=number,
                    cluster_id=cluster,
                    size=len(members),
                    x=x,
                    y=y,
                    keywords=[word for word, _ in words[cluster]],
                    keyword_weights=[weight for _, weight in words[cluster]],
                    sample_comments=[comments[place].comment_id for place in members[:SAMPLES_MAX]],
                    parent=_parent(layers, number, members[0]),
                    children=_children(layers, number, members),
                )
            )
    return rows


def _parent(layers: Sequence[Measured], number: int, member: int) -> str | None:
    """Return the coarser cluster that contains it: layers nest, so any of its comments tells."""
    if number + 1 == len(layers):
        return None
    return cluster_key(number + 1, int(layers[number + 1].layer.labels[member]))


def _children(layers: Sequence[Measured], number: int, members: Sequence[int]) -> list[str]:
    if number == 0:
        return []
    finer = np.unique(layers[number - 1].layer.labels[list(members)])
    return [cluster_key(number - 1, int(cluster)) for cluster in finer]


def edge_rows(conversation_id: str, comments: Sequence[Comment], graph: Graph) -> list[GraphEdge]:
    rows = []
    for source, target, weight, distance in zip(
        graph.sources.tolist(), graph.targets.tolist(), graph.weights.tolist(), graph.distances.tolist(), strict=True
    ):
        one, other = sorted((comments[source].comment_id, comments[target].comment_id))
        nearest = int(graph.nearest[source]) == target or int(graph.nearest[target]) == source
        rows.append(
            GraphEdge(
                edge_id=f"{one}_{other}",
                conversation_id=conversation_id,
                source=one,
                target=other,
                weight=weight,
                distance=distance,
                nearest=nearest,
            )
        )
    return rows
