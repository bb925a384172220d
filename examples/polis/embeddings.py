"""Vectors of the comments, by the model that the config names or by the one that is there."""

from collections.abc import Callable, Sequence
from logging import Logger

import numpy as np
from embedding import Embedder, MiniLM, WeightsMissing, WordLlama

from .tables import CommentEmbedding, Embedding
from .votes import Numbers

BATCH = 64  # comments between two words of progress


class NothingStored(Exception):
    """skip_embedding was asked for, and there is no vector to take."""


def embedder(name: str, log: Logger) -> Embedder:
    if name == "wordllama":
        return WordLlama()
    try:
        return MiniLM()
    except WeightsMissing as missing:
        log.warning("%s; using wordllama instead of %s", missing, name)
        return WordLlama()


def embed(model: Embedder, texts: Sequence[str], tell: Callable[[float], object]) -> list[Embedding]:
    found: list[Embedding] = []
    for start in range(0, len(texts), BATCH):
        for vector in model.embed(texts[start : start + BATCH]):
            found.append(
                # Six digits are all that 32 bits keep of a number below 1.
                Embedding(
                    vector=[round(float(number), 6) for number in vector],
                    dimensions=model.dimensions,
                    model=model.name,
                )
            )
        tell(len(found) / len(texts))
    return found


def stored(rows: Sequence[CommentEmbedding], bodies: dict[int, str]) -> list[Embedding]:
    """The vectors of an earlier job, for exactly these comments."""
    known = {row.comment_id: row for row in rows}
    lacking = [number for number, body in bodies.items() if number not in known or known[number].body != body]
    if lacking:
        raise NothingStored(
            f"skip_embedding: {len(lacking)} of {len(bodies)} comments have no stored vector (comment {lacking[0]} is"
            " one): run UMAP once without it"
        )
    return [known[number].embedding for number in bodies]


def matrix(embeddings: Sequence[Embedding], metric: str) -> Numbers:
    """A row per comment. What all comments of a conversation share says nothing about any of them: it is taken out."""
    vectors = np.array([each.vector for each in embeddings], dtype=np.float64)
    if metric != "cosine" or len(vectors) < 3:
        return vectors
    centred: Numbers = vectors - vectors.mean(axis=0)
    # A comment that is nothing but the average has no direction of its own; it keeps the one that it had.
    lost = np.linalg.norm(centred, axis=1) < 1e-9
    centred[lost] = vectors[lost]
    return centred
