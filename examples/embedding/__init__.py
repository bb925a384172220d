"""Sentence embeddings without a server and without a download: the weights come with installed packages."""

from embedding.embedder import Embedder, Vectors
from embedding.mini_lm import MiniLM
from embedding.weights import WeightsMissing
from embedding.word_llama import WordLlama

__all__ = ["Embedder", "MiniLM", "Vectors", "WeightsMissing", "WordLlama"]
