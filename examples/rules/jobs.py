"""The queue: one job type, embedded up to fifty at a time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from uuid import UUID

from embedding import Vectors
from pydantic import BaseModel, Field, model_validator

from backstay import Backoff, Backstay, BlockingBatchContext, ConfigurationError, Retention, Retry
from rules.models import DEFAULT, mismatch, model_named
from rules.ollama import OllamaAway

QUEUE = "embeddings"


def _database_url() -> str:
    url = os.environ.get("DATABASE_URL") or "postgresql://postgres@127.0.0.1/postgres"
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigurationError("DATABASE_URL: the rules need PostgreSQL with pgvector, as postgresql://…")
    return url


app = Backstay(_database_url())


class RuleText(BaseModel):
    """The payload that the trigger submits. For a manual submit, the rule and its text are enough."""

    rule_id: UUID
    input_text: str = Field(pattern=r"\S")
    text_hash: str = ""
    embedding_model: str = DEFAULT
    embedding_dimensions: int | None = None  # of the column; the trigger knows it
    project_id: UUID | None = None

    @model_validator(mode="after")
    def _hash(self) -> RuleText:
        # The same as PostgreSQL's md5(): identifies the text, and is not a secret.
        hashed = hashlib.md5(self.input_text.encode(), usedforsecurity=False).hexdigest()
        if self.text_hash not in ("", hashed):
            raise ValueError("text_hash is not the md5 of input_text")
        self.text_hash = hashed
        return self


class Embedded(BaseModel):
    """The job's result; the same commit stores it on the rule."""

    embedding_vector: list[float]
    embedding_dimensions: int
    embedding_model: str
    embedding_ms: float


@app.batch_job(
    "embedding",
    queue=QUEUE,
    # However it is submitted: a job belongs to its rule, and a known text is not embedded again.
    subject="rule:{rule_id}",
    content_hash="{embedding_model}:{md5(input_text)}",
    reuse=True,
    retention=Retention(completed=None),  # so that a text stays known
    max_size=50,
    max_wait=0.2,
    max_attempts=3,
    backoff=Backoff(base=60, factor=2, max=300, jitter=0),  # min(300, 30·2^n) s after the nth failure
    timeout=600,
    concurrency=1,  # the model takes a whole core
)
def embed(payloads: list[RuleText], ctx: BlockingBatchContext) -> list[Embedded]:
    answers: dict[tuple[str, str], Embedded] = {}
    for model in {payload.embedding_model for payload in payloads}:
        texts = {each.text_hash: each.input_text for each in payloads if each.embedding_model == model}
        _check_dimensions(
            model, {each.embedding_dimensions or 0 for each in payloads if each.embedding_model == model} - {0}
        )
        vectors, each_ms = _timed(model, list(texts.values()))
        for text_hash, vector in zip(texts, vectors, strict=True):
            answers[model, text_hash] = Embedded(
                embedding_vector=[float(f"{each:.9g}") for each in vector],  # as precise as it is, in half the bytes
                embedding_dimensions=len(vector),
                embedding_model=model,
                embedding_ms=each_ms,
            )
    results = [answers[payload.embedding_model, payload.text_hash] for payload in payloads]
    for item, payload, result in zip(ctx, payloads, results, strict=True):
        item.metric("texts_in_call", len(payloads))
        with item.transaction() as tx:
            kept = [
                payload.rule_id,
                payload.text_hash,
                result.embedding_vector,
                result.embedding_model,
                result.embedding_ms,
            ]
            tx.execute("SELECT keep_vector($1, $2, $3, $4, $5)", kept)
    return results


def _check_dimensions(model: str, columns: set[int]) -> None:
    """Refuse a model whose vectors do not fit into the column, before it works on a text."""
    try:
        has = model_named(model).dimensions
    except OllamaAway as error:
        raise Retry(str(error)) from error
    for other in columns - {has}:
        raise Retry(mismatch(model, has, other))


def _timed(model: str, texts: Sequence[str]) -> tuple[Vectors, float]:
    started = time.perf_counter()
    try:
        vectors = model_named(model).embed(texts)
    except OllamaAway as error:
        raise Retry(str(error)) from error  # fails all of them: splitting the call would not find a culprit
    return vectors, round((time.perf_counter() - started) * 1000 / len(texts), 3)
