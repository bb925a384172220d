"""The input of a report: the rows of one PCA job and one UMAP job of a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from .tables import (
    ClusterAssignment,
    ClusterKeywords,
    CommentEmbedding,
    CommentExtremity,
    GraphEdge,
    ParticipantProjection,
    TopicName,
)


@dataclass(frozen=True, slots=True)
class PcaRows:
    job_id: str
    summary: dict[str, Any]  # the job's result, as tables.py describes it
    comments: Sequence[CommentExtremity]
    participants: Sequence[ParticipantProjection]


@dataclass(frozen=True, slots=True)
class UmapRows:
    job_id: str
    summary: dict[str, Any]
    embeddings: Sequence[CommentEmbedding]
    assignments: Sequence[ClusterAssignment]
    clusters: Sequence[ClusterKeywords]
    edges: Sequence[GraphEdge]
    topics: Sequence[TopicName]


class ExportMeta(BaseModel):
    """The conversation as a whole. Part of the PCA job's result, so that a report needs no export."""

    conversation_id: str
    title: str  # the topic in summary.csv, or "Conversation 36324" if there is none
    comments: int  # that were let in
    moderated_out: int
    participants: int  # who voted
    votes: int  # that were counted
    first_vote_at: str  # ISO 8601, UTC; of an export without votes the first comment's time
    last_vote_at: str
    has_votes: bool = True  # False: an export of comments alone; who voted how is unknown
    strict_moderation: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    conversation: ExportMeta
    pca: PcaRows
    umap: UmapRows
