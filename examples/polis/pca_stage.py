"""PCA: computes the opinion map from votes, its groups, and how they voted on each comment."""

import time
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from backstay import BlockingContext, Discard

from . import agreement, certainty, comments, groups
from .configs import PcaConfig
from .export import Export, ExportError, moment
from .findings import ExportMeta
from .outcome import LOADED, THREADS, put, read, results, step
from .tables import PCA_TABLES, ParticipantProjection
from .votes import VoteMatrix, matrix_of


def run(payload: PcaConfig, ctx: BlockingContext) -> dict[str, Any]:
    started = time.monotonic()
    export = read(ctx, step(ctx, LOADED, 0.4, "reading the export"))
    if not len(export.votes):
        return _without_votes(export, ctx, started)
    try:
        votes = matrix_of(
            export,
            payload.max_votes,
            payload.batch_size,
            step(ctx, 0.4, 0.5, "counting votes"),
        )
    except ExportError as error:
        raise Discard(str(error)) from error
    with threadpool_limits(THREADS):
        ctx.progress(0.5, stage="projecting participants")
        opinions = groups.opinion_map(votes, payload.n_components, payload.pca_method)
        ctx.progress(0.55, stage="finding groups")
        found = certainty.find_groups(votes, opinions, step(ctx, 0.57, 0.85, "testing how certain the groups are"))
        ctx.progress(0.85, stage="comparing with Polis")
        match = agreement.agreement(votes, opinions.places, found, export.polis_groups)
    ctx.log.info("%d votes, %d groups of %s (%s)", votes.counted, found.count, found.sizes(), found.clarity)
    tell = step(ctx, 0.88, 1.0, "writing rows")
    rows = comments.comment_rows(export.conversation_id, export, votes, opinions, found)
    put(ctx, tell, rows, _participant_rows(export.conversation_id, votes, opinions, found))
    metrics = {"votes_processed": votes.counted, "groups_identified": found.count}
    consensus = {each.comment_id: each.polis_consensus for each in export.let_in if each.polis_consensus is not None}
    return results(ctx, started, PCA_TABLES, metrics) | {
        "export_hash": export.digest,
        "conversation": _meta(export, votes).model_dump(),
        "method": opinions.solver,
        "explained_variance": [round(float(share), 6) for share in opinions.explained],
        "groups": [
            {"group_id": group, "size": size, "x": round(float(x), 6), "y": round(float(y), 6)}
            for group, (size, (x, y)) in enumerate(zip(found.sizes(), found.centres[:, :2], strict=True))
        ],
        "certainty": {
            "clarity": found.clarity,
            "silhouette": found.silhouette,
            "stability": found.stability,
            "by_chance": found.by_chance,
        },
        "agreement_with_polis": match.model_dump() if match else None,
        "consensus_rank_correlation": agreement.consensus_rank_correlation(rows, consensus),
    }


def _without_votes(export: Export, ctx: BlockingContext, started: float) -> dict[str, Any]:
    """Return the result for an export of comments alone: counts, but no map and no groups."""
    ctx.log.warning("the export has no votes.csv: there are no participants to group")
    rows = comments.rows_of_comments_alone(export.conversation_id, export)
    put(ctx, step(ctx, 0.5, 1.0, "writing rows"), rows)
    return results(ctx, started, PCA_TABLES, {"votes_processed": 0, "groups_identified": 0}) | {
        "export_hash": export.digest,
        "conversation": _meta(export, None).model_dump(),
        "method": "none",
        "explained_variance": [],
        "groups": [],
        "certainty": {"clarity": "none", "silhouette": None, "stability": None, "by_chance": None},
        "agreement_with_polis": None,
        "consensus_rank_correlation": None,
    }


def _meta(export: Export, votes: VoteMatrix | None) -> ExportMeta:
    let_in = export.let_in
    times = export.votes.timestamps if votes else np.array([each.timestamp for each in let_in])
    return ExportMeta(
        conversation_id=export.conversation_id,
        title=export.title,
        comments=len(let_in),
        moderated_out=len(export.comments) - len(let_in),
        participants=len(votes.participant_ids) if votes else 0,
        votes=votes.counted if votes else sum(each.agrees + each.disagrees for each in let_in),
        first_vote_at=moment(int(times.min())).isoformat(),
        last_vote_at=moment(int(times.max())).isoformat(),
        has_votes=votes is not None,
        strict_moderation=export.strict,
    )


def _participant_rows(
    conversation_id: str, votes: VoteMatrix, opinions: groups.OpinionMap, found: certainty.Groups
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
