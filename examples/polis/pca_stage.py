"""PCA: computes the opinion map from votes, its groups, and how they voted on each comment."""

import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from backstay import BlockingContext, Discard

from . import comments, groups
from .configs import PcaConfig
from .export import Export, ExportError, moment
from .findings import ExportMeta
from .outcome import THREADS, put, read, results
from .tables import PCA_TABLES, ParticipantProjection
from .votes import VoteMatrix, matrix_of


def run(payload: PcaConfig, ctx: BlockingContext) -> dict[str, Any]:
    started = time.monotonic()
    ctx.progress(0.02, stage="reading the export")
    export = read(ctx)
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
    put(ctx, comments.comment_rows(export.conversation_id, export, votes, opinions, found))
    put(ctx, _participant_rows(export.conversation_id, votes, opinions, found))
    metrics = {"votes_processed": votes.counted, "groups_identified": found.count}
    return results(ctx, started, PCA_TABLES, metrics) | {
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
            group_id=None if found.labels[place] == groups.NO_GROUP else int(found.labels[place]),
            votes=agrees[place] + disagrees[place] + passes[place],
            agrees=agrees[place],
            disagrees=disagrees[place],
        )
        for place, participant in enumerate(votes.participant_ids.tolist())
    ]
