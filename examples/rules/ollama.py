"""A model on an Ollama server, by its HTTP API, such as `nomic-embed-text`."""

from __future__ import annotations

import os
from collections.abc import Sequence

import httpx
import numpy as np
from embedding import Vectors

DEFAULT_URL = "http://127.0.0.1:11434"
ANSWER_SECONDS = 120.0  # the first call loads the model
DIMENSIONS = {"nomic-embed-text": 768}


class OllamaAway(Exception):
    """The server does not respond, or does not have the model: the texts are not the cause."""


class Ollama:
    def __init__(self, name: str, url: str | None = None) -> None:
        if name not in DIMENSIONS:
            raise ValueError(
                f"{name} is not known: write its dimensions into rules/ollama.py beside {list(DIMENSIONS)}"
            )
        self.name = name
        self.dimensions = DIMENSIONS[name]
        self._url = (url or os.environ.get("OLLAMA_URL") or DEFAULT_URL).rstrip("/")

    def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        vectors = np.asarray(self._ask(list(texts)), dtype=np.float32)
        if vectors.shape != (len(texts), self.dimensions):
            raise ValueError(f"{self.name} answered {vectors.shape} instead of {(len(texts), self.dimensions)} numbers")
        lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or not lengths.all():
            raise ValueError(f"{self.name} answered a vector without a direction")
        return vectors / lengths

    def _ask(self, texts: list[str]) -> object:
        try:
            answer = httpx.post(
                f"{self._url}/api/embed", json={"model": self.name, "input": texts}, timeout=ANSWER_SECONDS
            )
        except httpx.TransportError as error:
            raise OllamaAway(f"Ollama does not answer at {self._url}: {error}") from error
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise OllamaAway(f'Ollama at {self._url} does not have the model: run "ollama pull {self.name}"')
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"Ollama refused ({answer.status_code}): {answer.text[:200]}")
        said = answer.json()
        return said.get("embeddings") if isinstance(said, dict) else None  # any JSON: the shape is checked
