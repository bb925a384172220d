"""The interface of every model in this folder, and their common checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]


class Embedder(Protocol):
    """Texts to vectors. Each vector has length 1, so the dot product of two is the cosine of their angle."""

    @property
    def name(self) -> str:
        """The name stored with vectors: those of two models must never be compared."""

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text, in order. An empty text has no direction, and raises ValueError."""


def checked(texts: Sequence[str]) -> list[str]:
    # A string is a sequence of strings too: without this, "abc" would give three vectors.
    if isinstance(texts, str):
        raise TypeError("embed() takes a list of texts: write embed([text])")
    for place, text in enumerate(texts):
        if not text.strip():
            raise ValueError(f"text {place} of {len(texts)} is empty: there is nothing to embed")
    return list(texts)


def unit(vectors: Vectors) -> Vectors:
    lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / lengths
