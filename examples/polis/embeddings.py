"""Vectors of the comments, by the model in the config or the one that is installed."""

from collections.abc import Callable, Sequence
from logging import Logger

import numpy as np
from embedding import Embedder, MiniLM, WeightsMissing, WordLlama

from .tables import CommentEmbedding, Embedding
from .votes import Numbers

BATCH = 64  # comments between two reports of progress


class NothingStored(Exception):
    """skip_embedding is set, but no vectors are stored."""


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
    """Return the vectors of an earlier job, for exactly these comments."""
    known = {row.comment_id: row for row in rows}
    lacking = [number for number, body in bodies.items() if number not in known or known[number].body != body]
    if lacking:
        raise NothingStored(
            f"skip_embedding: {len(lacking)} of {len(bodies)} comments have no stored vector (comment {lacking[0]} is"
            " one): run UMAP once without it"
        )
    return [known[number].embedding for number in bodies]


def matrix(embeddings: Sequence[Embedding], metric: str) -> Numbers:
    """Return a row per comment, with the mean of the conversation subtracted: what all comments share does not
    distinguish them."""
    vectors = np.array([each.vector for each in embeddings], dtype=np.float64)
    if metric != "cosine" or len(vectors) < 3:
        return vectors
    centred: Numbers = vectors - vectors.mean(axis=0)
    # A comment equal to the mean has no direction left; it keeps its original one.
    lost = np.linalg.norm(centred, axis=1) < 1e-9
    centred[lost] = vectors[lost]
    return centred
