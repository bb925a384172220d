"""WordLlama: one stored vector per token, averaged. Far faster than a transformer, and blind to word order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from embedding.embedder import Vectors, checked, unit
from embedding.weights import weights_file

_PACKAGE, _DISTRIBUTION = "wordllama", "wordllama==0.4.0.post1"


class WordLlama:
    name = "wordllama-l2-supercat-256"
    dimensions = 256

    def __init__(self) -> None:
        rows = load_file(weights_file(_PACKAGE, _DISTRIBUTION, "weights/l2_supercat_256.safetensors"))
        self._rows: Vectors = rows["embedding.weight"].astype(np.float32)
        tokenizer = weights_file(_PACKAGE, _DISTRIBUTION, "tokenizers/l2_supercat_tokenizer_config.json")
        self._tokenizer = Tokenizer.from_file(str(tokenizer))

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for place, read in enumerate(self._tokenizer.encode_batch(checked(texts), add_special_tokens=False)):
            vectors[place] = self._rows[read.ids].mean(axis=0)
        return unit(vectors)
