"""All that a report is made of: the rows of one PCA job and one UMAP job of a conversation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True)
class ExportMeta:
    """Of the conversation as a whole; from the export's files, which have no title of their own."""

    conversation_id: str
    title: str  # of the sample; else "Conversation 36324"
    comments: int  # that were let in
    moderated_out: int
    participants: int
    votes: int
    first_vote_at: str  # ISO 8601, UTC
    last_vote_at: str


@dataclass(frozen=True, slots=True)
class Findings:
    conversation: ExportMeta
    pca: PcaRows
    umap: UmapRows
