"""A model on an Ollama server, by its HTTP API: `nomic-embed-text` or any other that embeds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property

import httpx
import numpy as np
from embedding import Vectors

DEFAULT_URL = "http://127.0.0.1:11434"
ANSWER_SECONDS = 120.0  # the first call loads the model


class OllamaAway(Exception):
    """The server does not respond, or does not have the model: the texts are not the cause."""


class Ollama:
    def __init__(self, name: str, url: str | None = None) -> None:
        self.name = name
        self._url = (url or os.environ.get("OLLAMA_URL") or DEFAULT_URL).rstrip("/")

    @cached_property
    def dimensions(self) -> int:
        """How many numbers its vectors have, as the server says; if it does not, as a vector shows."""
        said = self._post("/api/show", {"model": self.name})
        facts = said.get("model_info") if isinstance(said, dict) else None
        if isinstance(facts, dict):
            length = facts.get(f"{facts.get('general.architecture')}.embedding_length")
            if isinstance(length, int) and length > 0:
                return length
        [vector] = self._ask(["dimensions"], 1)
        return len(vector)

    def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.empty((0, self.dimensions), dtype=np.float32)
        vectors = self._ask(list(texts), len(texts))
        if vectors.shape[1] != self.dimensions:
            raise ValueError(f"{self.name} answered {vectors.shape} instead of {(len(texts), self.dimensions)} numbers")
        lengths: Vectors = np.linalg.norm(vectors, axis=1, keepdims=True)
        if not np.isfinite(lengths).all() or not lengths.all():
            raise ValueError(f"{self.name} answered a vector without a direction")
        return vectors / lengths

    def _ask(self, texts: list[str], count: int) -> Vectors:
        said = self._post("/api/embed", {"model": self.name, "input": texts})
        try:  # any JSON may come
            vectors = np.asarray(said.get("embeddings") if isinstance(said, dict) else None, dtype=np.float32)
        except (TypeError, ValueError):
            vectors = np.empty(0, dtype=np.float32)
        if vectors.ndim != 2 or len(vectors) != count or not vectors.shape[1]:
            raise ValueError(f"{self.name} answered {vectors.shape} instead of {count} vectors of numbers")
        return vectors

    def _post(self, path: str, body: dict[str, object]) -> object:
        try:
            answer = httpx.post(f"{self._url}{path}", json=body, timeout=ANSWER_SECONDS)
        except httpx.TransportError as error:
            raise OllamaAway(f"Ollama does not answer at {self._url}: {error}") from error
        if answer.status_code == httpx.codes.OK:
            return answer.json()
        if path == "/api/show":
            return None  # an older server, which may still embed
        if answer.status_code == httpx.codes.NOT_FOUND:
            raise OllamaAway(f'Ollama at {self._url} does not have the model: run "ollama pull {self.name}"')
        raise ValueError(f"Ollama refused ({answer.status_code}): {answer.text[:200]}")
