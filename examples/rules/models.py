"""The models by the names used in jobs."""

from __future__ import annotations

import os
from functools import lru_cache

from embedding import Embedder, MiniLM

from rules.ollama import Ollama

DEFAULT = os.environ.get("EMBEDDING_MODEL") or MiniLM.name


@lru_cache(maxsize=4)  # weights are read once
def model_named(name: str) -> Embedder:
    """Return a model: MiniLM runs here; any other name is a model of the Ollama server at OLLAMA_URL."""
    return MiniLM() if name == MiniLM.name else Ollama(name)


def mismatch(name: str, dimensions: int, stored: int) -> str:
    return (
        f"{name} has {dimensions} dimensions, and the column of the rules has {stored}: run"
        f' "python -m rules setup --model {name}", which embeds every rule again'
    )
