"""The words that tell the clusters of a layer apart."""

import re
from collections.abc import Sequence

import numpy as np
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS, CountVectorizer

from .clustering import Layer
from .votes import Numbers

KEYWORDS_MAX = 8
# Words that occur in proposals on any topic.
_PROPOSALS = """
    need needs should want wants make makes made get gets got bring come comes going let like just people everybody
    nobody somebody instead whatever something anything nothing really much many more most even also still new old
    town place places thing things way would could must may might does did doing done dont cant wont isnt whether
    one two three four year years day days half least month months use uses used change changes
"""
PROPOSAL_WORDS = frozenset(_PROPOSALS.split())
WORD_LENGTH_MAX = 60  # a topic name has three keywords; longer strings are not words
WORD = re.compile(r"[^\W\d_][^\W_]{2,}")


def words_of(text: str) -> list[str]:
    found = WORD.findall(text.lower().replace("'", "").replace("’", ""))
    return [_singular(word) for word in found if len(word) <= WORD_LENGTH_MAX]


def _singular(word: str) -> str:
    """buses → bus, shops → shop: two forms of one word should not compete."""
    if word.endswith(("ses", "xes", "ches", "shes")) and len(word) > 4:
        return word[:-2] if word[:-2].endswith(("s", "x", "ch", "sh")) else word[:-1]
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith("oes"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3 else word


def keywords_of(texts: Sequence[str], layer: Layer, confidence: Numbers) -> list[list[tuple[str, float]]]:
    """Return, per cluster, its words with their weights, the most distinctive first: TF-IDF with a cluster as one
    document.

    A comment is weighted by how clearly it belongs to its cluster.
    """
    left_out = {_singular(word) for word in ENGLISH_STOP_WORDS | PROPOSAL_WORDS} | ENGLISH_STOP_WORDS | PROPOSAL_WORDS
    wordings = [" ".join(word for word in words_of(text) if word not in left_out) for text in texts]
    counter = CountVectorizer(tokenizer=str.split, token_pattern=None, lowercase=False, binary=True)
    try:
        counts = counter.fit_transform(wordings).toarray().astype(np.float64)
    except ValueError:  # no word is left: comments of stop words only, or in a script without words
        return [[] for _ in range(layer.count)]
    names = counter.get_feature_names_out()
    counts *= confidence[:, np.newaxis]
    per_cluster = np.array([counts[layer.labels == cluster].sum(axis=0) for cluster in range(layer.count)])
    share = per_cluster / np.maximum(per_cluster.sum(axis=1, keepdims=True), 1)
    rarity = np.log(1 + per_cluster.sum(axis=1).mean() / np.maximum(per_cluster.sum(axis=0), 1e-9))
    weights = share * rarity
    found = []
    for row in weights:
        best = np.lexsort((names, -row))[:KEYWORDS_MAX]
        found.append([(str(names[place]), float(row[place])) for place in best if row[place] > 0])
    return found
