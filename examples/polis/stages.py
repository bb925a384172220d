"""PCA and UMAP as handlers. They run in processes of their own: a timeout or a cancel ends them at once.

Each reads its conversation, puts its rows, and returns what the analysis queue calls job results. Rows are seen when
the job completes, all together; a run that was killed leaves nothing that a reader could find.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from holdfast import BlockingContext, Discard, ResultRow

from . import clustering, comments, embeddings, groups, llm, naming, neighbours, projecting, topics
from .configs import PcaConfig, UmapConfig
from .conversations import conversation
from .export import Export, ExportError, moment
from .findings import ExportMeta
from .tables import (
    PCA_TABLES,
    UMAP_TABLES,
    ClusterKeywords,
    CommentEmbedding,
    Embedding,
    ParticipantProjection,
    TopicName,
)
from .votes import Numbers, VoteMatrix, matrix_of

THREADS = 1  # workers run several jobs at a time: their threads would only fight for the cores


def pca(payload: PcaConfig, ctx: BlockingContext) -> dict[str, Any]:
    """Votes → the opinion map, its groups, and what they make of each comment."""
    started = time.monotonic()
    ctx.progress(0.02, stage="reading the export")
    export = _export(ctx)
    try:
        votes = matrix_of(
            export,
            payload.max_votes,
            payload.batch_size,
            lambda share: ctx.progress(0.1 + 0.4 * share, stage="counting votes"),
        )
    except ExportError as error:
        raise Discard(str(error)) from error
    with threadpool_limits(THREADS):
        ctx.progress(0.5, stage="projecting participants")
        opinions = groups.opinion_map(votes, payload.n_components, payload.pca_method)
        ctx.progress(0.7, stage="finding groups")
        cast = np.count_nonzero(votes.voted, axis=1).astype(np.int64)
        found = groups.find_groups(opinions.places, cast, len(votes.comment_ids))
    ctx.log.info("%d votes, %d groups of %s", votes.counted, found.count, found.sizes())
    ctx.progress(0.8, stage="writing rows")
    _put(ctx, comments.comment_rows(export.conversation_id, export, votes, opinions, found))
    _put(ctx, _participant_rows(export.conversation_id, votes, opinions, found))
    metrics = {"votes_processed": votes.counted, "groups_identified": found.count}
    return _results(ctx, started, PCA_TABLES, metrics) | {
        "export_hash": export.digest,
        "conversation": _meta(export, votes).model_dump(),
        "method": opinions.solver,
        "explained_variance": [round(float(share), 6) for share in opinions.explained],
        "groups": [
            {"group_id": group, "size": size, "x": round(float(x), 6), "y": round(float(y), 6)}
            for group, (size, (x, y)) in enumerate(zip(found.sizes(), found.centres[:, :2], strict=True))
        ],
        "likeness_to_export_groups": groups.likeness(found, votes.participant_ids, dict(export.polis_groups)),
    }


def umap(payload: UmapConfig, ctx: BlockingContext) -> dict[str, Any]:
    """Comments → vectors, the comment map, topics in layers."""
    started = time.monotonic()
    ctx.progress(0.02, stage="reading the export")
    export = _export(ctx)
    let_in = sorted(export.let_in, key=lambda comment: comment.comment_id)
    vectors = _vectors(payload, ctx, {comment.comment_id: comment.body for comment in let_in})
    with threadpool_limits(THREADS):
        ctx.progress(0.5, stage="finding neighbours")
        matrix = embeddings.matrix(vectors, payload.metric)
        graph = neighbours.neighbour_graph(matrix, payload.n_neighbors, payload.metric)
        ctx.progress(0.55, stage="projecting comments")
        places, projection = projecting.project(
            matrix, graph, payload.n_components, payload.n_neighbors, payload.min_dist, payload.metric
        )
        ctx.progress(0.75, stage="finding topics")
        layers = topics.measured(places, clustering.layers_of(places))
        clusters = topics.cluster_rows(export.conversation_id, let_in, layers)
    named, namer = _names(ctx, clusters, export)
    ctx.progress(0.9, stage="writing rows")
    _put(ctx, _embedding_rows(export, vectors, places, projection))
    _put(ctx, topics.assignment_rows(export.conversation_id, let_in, layers))
    _put(ctx, clusters)
    _put(ctx, topics.edge_rows(export.conversation_id, let_in, graph))
    _put(ctx, named)
    metrics = {"comments_embedded": len(let_in), "topics_found": len(clusters)}
    return _results(ctx, started, UMAP_TABLES, metrics) | {
        "export_hash": export.digest,
        "embedding_model": vectors[0].model,
        "dimensions": vectors[0].dimensions,
        "projection": projection,
        "topic_names_by": namer,
        "layers": [each.layer.count for each in layers],
    }


def _export(ctx: BlockingContext) -> Export:
    try:
        return conversation(ctx.job.subject)
    except ExportError as error:
        raise Discard(str(error)) from error  # the file will not be better at the next attempt


def _put(ctx: BlockingContext, rows: Sequence[ResultRow]) -> None:
    if rows:
        ctx.results(type(rows[0])).put(rows)


def _results(ctx: BlockingContext, started: float, tables: Iterable[str], metrics: dict[str, int]) -> dict[str, Any]:
    for name, value in metrics.items():
        ctx.metric(name, value)
    return {
        "result_type": "SUCCESS",
        "output_location": {"tables": list(tables), "artifacts": []},
        "summary_metrics": {"processing_time_seconds": round(time.monotonic() - started, 3), **metrics},
    }


def _meta(export: Export, votes: VoteMatrix) -> ExportMeta:
    return ExportMeta(
        conversation_id=export.conversation_id,
        title=export.title,
        comments=len(export.let_in),
        moderated_out=len(export.comments) - len(export.let_in),
        participants=len(votes.participant_ids),
        votes=votes.counted,
        first_vote_at=moment(int(export.votes.timestamps.min())).isoformat(),
        last_vote_at=moment(int(export.votes.timestamps.max())).isoformat(),
    )


def _participant_rows(
    conversation_id: str, votes: VoteMatrix, opinions: groups.OpinionMap, found: groups.Groups
) -> list[ParticipantProjection]:
    agrees, disagrees, passes = (votes.count(value, axis=1).tolist() for value in (1, -1, 0))
    return [
        ParticipantProjection(
            participant_id=participant,
            conversation_id=conversation_id,
            x=float(opinions.places[place, 0]),
            y=float(opinions.places[place, 1]),
            components=opinions.places[place].tolist(),
            group_id=None if found.labels[place] == groups.NOBODY else int(found.labels[place]),
            votes=agrees[place] + disagrees[place] + passes[place],
            agrees=agrees[place],
            disagrees=disagrees[place],
        )
        for place, participant in enumerate(votes.participant_ids.tolist())
    ]


def _vectors(payload: UmapConfig, ctx: BlockingContext, bodies: dict[int, str]) -> list[Embedding]:
    if payload.skip_embedding:
        ctx.progress(0.1, stage="reading stored vectors")
        try:
            return embeddings.stored(ctx.results(CommentEmbedding).latest(ctx.job.subject or "", "UMAP"), bodies)
        except embeddings.NothingStored as error:
            raise Discard(str(error)) from error
    model = embeddings.embedder(payload.embedding_model, ctx.log)
    return embeddings.embed(
        model, list(bodies.values()), lambda share: ctx.progress(0.05 + 0.45 * share, stage="embedding comments")
    )


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


def _names(ctx: BlockingContext, clusters: Sequence[ClusterKeywords], export: Export) -> tuple[list[TopicName], str]:
    """By the model, each answer recorded, so that none is paid for twice. At the last attempt keywords must do."""
    model, plain = llm.configured(), naming.by_keywords(clusters)
    if model is None:
        return _topic_rows(clusters, plain, naming.BY_KEYWORDS), naming.BY_KEYWORDS
    bodies = {comment.comment_id: comment.body for comment in export.let_in}
    names = {}
    try:
        for done, cluster in enumerate(clusters):
            ctx.progress(0.75 + 0.15 * done / len(clusters), stage="naming topics")
            asked = naming.question(cluster, bodies, export.title)
            names[cluster.cluster_key] = ctx.once(
                f"name {cluster.cluster_key}", lambda asked=asked: naming.ask(model, asked)
            )
    except llm.LLMError as error:
        if ctx.job.failures + 1 < ctx.job.max_attempts:
            raise
        ctx.log.warning("topics are named by keywords: %s", error)
        return _topic_rows(clusters, plain, naming.BY_KEYWORDS), naming.BY_KEYWORDS
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
