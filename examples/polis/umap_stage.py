"""UMAP: computes vectors of comments, the comment map, and topics in layers."""

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from threadpoolctl import threadpool_limits

from backstay import BlockingContext, Discard

from . import clustering, embeddings, language, llm, neighbours, topic_names, topics, umap_projection
from .configs import UmapConfig
from .export import Export
from .outcome import LOADED, THREADS, put, read, results, step
from .tables import UMAP_TABLES, ClusterKeywords, CommentEmbedding, Embedding, TopicName
from .votes import Numbers


def run(payload: UmapConfig, ctx: BlockingContext) -> dict[str, Any]:
    started = time.monotonic()
    export = read(ctx, step(ctx, LOADED, 0.25, "reading the export"))
    let_in = sorted(export.let_in, key=lambda comment: comment.comment_id)
    vectors = _vectors(payload, ctx, {comment.comment_id: comment.body for comment in let_in})
    with threadpool_limits(THREADS):
        ctx.progress(0.5, stage="finding neighbours")
        matrix = embeddings.matrix(vectors, payload.metric)
        graph = neighbours.neighbour_graph(matrix, payload.n_neighbors, payload.metric)
        places, projection = umap_projection.project(
            matrix,
            graph,
            payload.n_components,
            payload.n_neighbors,
            payload.min_dist,
            payload.metric,
            step(ctx, 0.52, 0.78, "projecting comments"),
        )
        ctx.progress(0.78, stage="finding topics")
        layers = topics.measured(places, clustering.layers_of(places))
        texts = [comment.body for comment in let_in]
        spoken = language.language_of(texts)
        ctx.progress(0.8, stage="naming topics")
        clusters = topics.cluster_rows(export.conversation_id, let_in, layers, language.vocabulary(texts, spoken))
    named, namer = _names(ctx, clusters, export, spoken)
    put(
        ctx,
        step(ctx, 0.9, 1.0, "writing rows"),
        _embedding_rows(export, vectors, places, projection),
        topics.assignment_rows(export.conversation_id, let_in, layers),
        clusters,
        topics.edge_rows(export.conversation_id, let_in, graph),
        named,
    )
    metrics = {"comments_embedded": len(let_in), "topics_found": len(clusters)}
    return results(ctx, started, UMAP_TABLES, metrics) | {
        "export_hash": export.digest,
        "embedding_model": vectors[0].model,
        "dimensions": vectors[0].dimensions,
        "projection": projection,
        "topic_names_by": namer,
        "language": spoken,
        "layers": [each.layer.count for each in layers],
    }


def _vectors(payload: UmapConfig, ctx: BlockingContext, bodies: dict[int, str]) -> list[Embedding]:
    if payload.skip_embedding:
        ctx.progress(0.3, stage="reading stored vectors")
        try:
            return embeddings.stored(ctx.results(CommentEmbedding).latest(ctx.job.subject or "", "UMAP"), bodies)
        except embeddings.NothingStored as error:
            raise Discard(str(error)) from error
    ctx.progress(0.25, stage="loading the model")
    model = embeddings.embedder(payload.embedding_model, ctx.log)
    return embeddings.embed(model, list(bodies.values()), step(ctx, 0.3, 0.5, "embedding comments"))


def _embedding_rows(
    export: Export, vectors: Sequence[Embedding], places: Numbers, projection: str
) -> list[CommentEmbedding]:
    let_in = sorted(export.let_in, key=lambda comment: comment.comment_id)
    return [
        CommentEmbedding(
            comment_id=comment.comment_id,
            conversation_id=export.conversation_id,
            body=comment.body,
            embedding=vector,
            x=float(place[0]),
            y=float(place[1]),
            components=place.tolist(),
            projection=projection,
        )
        for comment, vector, place in zip(let_in, vectors, places, strict=True)
    ]


def _names(
    ctx: BlockingContext, clusters: Sequence[ClusterKeywords], export: Export, spoken: str
) -> tuple[list[TopicName], str]:
    """Return the names from the model; each answer is recorded, so that none is paid for twice. The last attempt falls
    back to keywords."""
    model, plain = llm.configured(), topic_names.by_keywords(clusters, spoken)
    if model is None:
        return _topic_rows(clusters, plain, topic_names.BY_KEYWORDS), topic_names.BY_KEYWORDS
    bodies = {comment.comment_id: comment.body for comment in export.let_in}
    names = {}
    try:
        for done, cluster in enumerate(clusters):
            ctx.progress(0.8 + 0.1 * done / len(clusters), stage="naming topics")
            asked = partial(topic_names.ask, model, topic_names.question(cluster, bodies, export.title))
            names[cluster.cluster_key] = ctx.once(f"name {cluster.cluster_key}", asked)
    except llm.LLMError as error:
        if ctx.job.failures + 1 < ctx.job.max_attempts:
            raise
        ctx.log.warning("topics are named by keywords: %s", error)
        return _topic_rows(clusters, plain, topic_names.BY_KEYWORDS), topic_names.BY_KEYWORDS
    return _topic_rows(clusters, names, model.model), model.model


def _topic_rows(clusters: Sequence[ClusterKeywords], names: dict[str, str], namer: str) -> list[TopicName]:
    return [
        TopicName(
            topic_key=each.cluster_key,
            conversation_id=each.conversation_id,
            layer=each.layer,
            cluster_id=each.cluster_id,
            topic_name=names[each.cluster_key],
            model_name=namer,
        )
        for each in clusters
    ]
