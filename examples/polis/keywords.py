"""The words that tell the clusters of a layer apart."""

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from .clustering import Layer
from .language import Vocabulary
from .votes import Numbers

KEYWORDS_MAX = 8


def keywords_of(words: Vocabulary, layer: Layer, confidence: Numbers) -> list[list[tuple[str, float]]]:
    """Return, per cluster, its words with their weights, the most distinctive first: TF-IDF with a cluster as one
    document.

    A comment is weighted by how clearly it belongs to its cluster.
    """
    counter = CountVectorizer(analyzer=list, binary=True)
    try:
        counts = counter.fit_transform(words.texts).astype(np.float64)
    except ValueError:  # no word is left: comments of stop words only, or in a script without words
        return [[] for _ in range(layer.count)]
    stems = counter.get_feature_names_out()
    weighted = counts.multiply(confidence[:, np.newaxis]).tocsr()
    per_cluster = np.stack(
        [np.asarray(weighted[layer.labels == cluster].sum(axis=0)).ravel() for cluster in range(layer.count)]
    )
    share = per_cluster / np.maximum(per_cluster.sum(axis=1, keepdims=True), 1)
    rarity = np.log(1 + per_cluster.sum(axis=1).mean() / np.maximum(per_cluster.sum(axis=0), 1e-9))
    weights = share * rarity
    found = []
    for row in weights:
        best = np.lexsort((stems, -row))[:KEYWORDS_MAX]
        found.append([(words.forms[str(stems[place])], float(row[place])) for place in best if row[place] > 0])
    return found
